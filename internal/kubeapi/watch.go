package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"sync"
	"sync/atomic"

	"github.com/tcpilot/tcpilot/internal/pod"
)

// Options say which pods to follow.
type Options struct {
	Kubeconfig string // file; empty: this process is in a pod of the cluster
	Node       string // name of the node
	// Changed is called after annotations have changed, and Listed, unless it is nil, when the node's pods are known
	// for the first time. They must return soon.
	Changed func()
	Listed  func(pods int)
}

// Watcher knows the annotations of a node's pods. Its methods can be called at any time.
type Watcher struct {
	*server
	opt    Options
	events chan event

	mu    sync.RWMutex
	pods  map[string]object // by UID, of the API server and of the runtime
	reads atomic.Bool       // the list was read at least once
}

// object is a pod as the API server has it.
type object struct {
	uid             string
	namespace, name string
	annotations     map[string]string
}

func (o object) equal(p object) bool {
	return o.uid == p.uid && maps.Equal(o.annotations, p.annotations)
}

// Open reads how the API server is reached; it does not connect.
func Open(opt Options) (*Watcher, error) {
	s, err := openServer(opt.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return &Watcher{server: s, opt: opt, events: make(chan event, maxEvents)}, nil
}

// Annotations are those of the pod with this UID. known is false if the API server has no such pod on this node, or
// has not answered yet. If it stops answering, what it reported before is kept.
func (w *Watcher) Annotations(uid string) (annotations map[string]string, known bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	o, known := w.pods[uid]
	return o.annotations, known
}

// Pods are the node's pods by their UIDs for the runtime, in no order, with their names and annotations only.
func (w *Watcher) Pods() (list []pod.Pod) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for uid, o := range w.pods {
		if uid == o.uid && staticUID(o.annotations) != "" {
			continue // only the API server knows it by this one
		}
		list = append(list, pod.Pod{UID: uid, Namespace: o.namespace, Name: o.name, Annotations: o.annotations})
	}
	return list
}

// UID is that of the pod's object at the API server; empty: not known yet.
func (w *Watcher) UID(p *pod.Pod) string {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if o, known := w.pods[p.UID]; known {
		return o.uid
	}
	if p.Annotations[configHash] == p.UID {
		return ""
	}
	return p.UID
}

// metadata is the part of an object that is read.
type metadata struct {
	Metadata struct {
		UID         string            `json:"uid"`
		Namespace   string            `json:"namespace"`
		Name        string            `json:"name"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
}

// configHash is the annotation of a static pod, which the kubelet starts from a file, that has its UID for the
// container runtime. At the API server the pod has another UID (pkg/kubelet/types: ConfigHashAnnotationKey).
const configHash = "kubernetes.io/config.hash"

func (m *metadata) object() object {
	return object{m.Metadata.UID, m.Metadata.Namespace, m.Metadata.Name, m.Metadata.Annotations}
}

// staticHash is the form of a static pod's UID, which is never that of another pod: otherwise an annotation could claim to be one.
var staticHash = regexp.MustCompile(`^[0-9a-f]{32}$`)

// staticUID is the UID of a static pod for the container runtime; empty if the pod is not static.
func staticUID(annotations map[string]string) string {
	if uid := annotations[configHash]; staticHash.MatchString(uid) {
		return uid
	}
	return ""
}

func (m *metadata) uids() []string {
	if uid := staticUID(m.Metadata.Annotations); uid != "" {
		return []string{m.Metadata.UID, uid}
	}
	return []string{m.Metadata.UID}
}

// Run follows the pods until ctx ends, or until an error. After an error the caller waits, and calls it again.
func (w *Watcher) Run(ctx context.Context) error { return w.server.follow(ctx, w.resource()) }

// resource is the node's pods, as objects that have their metadata only.
func (w *Watcher) resource() *resource {
	const partial = "application/json;as=%s;g=meta.k8s.io;v=v1"
	return &resource{
		what: "pods", path: "/api/v1/pods", selector: "spec.nodeName=" + w.opt.Node,
		listAs: fmt.Sprintf(partial, "PartialObjectMetadataList"), watchAs: fmt.Sprintf(partial, "PartialObjectMetadata"),
		listed: w.listed, changed: w.change,
	}
}

// listed begins a list of all pods of the node.
func (w *Watcher) listed() (add func(json.RawMessage) error, done func()) {
	pods, items := map[string]object{}, 0
	add = func(item json.RawMessage) error {
		var m metadata
		if err := json.Unmarshal(item, &m); err != nil {
			return err
		}
		items++
		for _, uid := range m.uids() {
			pods[uid] = m.object()
		}
		return nil
	}
	return add, func() { w.note(pods, items) }
}

// note takes the pods of a list of so many items.
func (w *Watcher) note(pods map[string]object, items int) {
	w.mu.Lock()
	same := maps.EqualFunc(w.pods, pods, object.equal)
	w.pods = pods
	w.mu.Unlock()
	first := !w.reads.Swap(true)
	if first && w.opt.Listed != nil {
		w.opt.Listed(items)
	}
	if first || !same {
		w.opt.Changed()
	}
}

func (w *Watcher) change(kind string, item json.RawMessage) error {
	var m metadata
	if err := json.Unmarshal(item, &m); err != nil {
		return err
	}
	if w.apply(kind, &m) {
		w.opt.Changed()
	}
	return nil
}

// apply notes one change, and reports whether annotations or UIDs differ.
func (w *Watcher) apply(kind string, m *metadata) (changed bool) {
	if m.Metadata.UID == "" {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, uid := range m.uids() {
		before, known := w.pods[uid]
		if kind == "DELETED" {
			// Its connections may outlive it. They get the annotations of the pod's record, with which it started.
			delete(w.pods, uid)
			changed = changed || known
			continue
		}
		changed = changed || !known || !before.equal(m.object())
		w.pods[uid] = m.object()
	}
	return changed
}
