package kubeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

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
	opt    Options
	access access
	client *http.Client
	base   *url.URL
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
func Open(opt Options) (w *Watcher, err error) {
	w = &Watcher{opt: opt, events: make(chan event, maxEvents)}
	if opt.Kubeconfig != "" {
		w.access, err = fromKubeconfig(opt.Kubeconfig)
	} else {
		w.access, err = inCluster()
	}
	if err == nil {
		w.client, w.base, err = w.access.client()
	}
	if err != nil {
		return nil, fmt.Errorf("reach the API server of Kubernetes: %w", err)
	}
	return w, nil
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
		UID             string            `json:"uid"`
		Namespace       string            `json:"namespace"`
		Name            string            `json:"name"`
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations"`
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

const (
	// pageSize bounds one answer of a list.
	pageSize = 500
	// watchTime is how long the API server keeps one watch open, and watchSlack how much longer it may take.
	watchTime  = 5 * time.Minute
	watchSlack = 30 * time.Second
	maxError   = 4 << 10 // bytes read of an answer that refuses a request
	// shortWatch is the least duration of a watch. One that ends earlier without an error was probably refused
	// by a proxy, and counts as failed.
	shortWatch = time.Second
	// gonePause is the least time between two lists that are read without a pause because the API server has
	// forgotten changes. If it forgets them more often, Run returns an error as for other failures.
	gonePause = 10 * time.Second
)

// errGone means that the API server has forgotten the changes since the last one that was read.
var errGone = errors.New("resource version too old (410)")

// Run follows the pods until ctx ends, or until an error. After an error the caller waits, and calls it again.
func (w *Watcher) Run(ctx context.Context) error {
	var forgot time.Time
	for {
		version, err := w.list(ctx)
		for err == nil {
			begun := time.Now()
			if version, err = w.watch(ctx, version); err == nil && time.Since(begun) < shortWatch {
				err = errors.New("a watch ended at once")
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, errGone) || time.Since(forgot) < gonePause {
			// Not %w: the daemon's supervisor ends the daemon on os.ErrClosed, which it takes for a
			// closed handle of its own.
			return fmt.Errorf("follow pods at the API server of Kubernetes: %v", err)
		}
		forgot = time.Now()
	}
}

// list reads all pods of the node.
func (w *Watcher) list(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, watchTime)
	defer cancel()
	pods := map[string]object{}
	next, n := "", 0
	for {
		query := url.Values{"limit": {strconv.Itoa(pageSize)}}
		if next != "" {
			query.Set("continue", next)
		}
		body, err := w.get(ctx, query, "PartialObjectMetadataList")
		if err != nil {
			return "", err
		}
		var page struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
				Continue        string `json:"continue"`
			} `json:"metadata"`
			Items []metadata `json:"items"`
		}
		err = errors.Join(json.NewDecoder(body).Decode(&page), body.Close())
		if err != nil {
			return "", fmt.Errorf("read list: %w", err)
		}
		n += len(page.Items)
		for i := range page.Items {
			for _, uid := range page.Items[i].uids() {
				pods[uid] = page.Items[i].object()
			}
		}
		version, next = page.Metadata.ResourceVersion, page.Metadata.Continue
		if next == "" {
			break
		}
	}
	w.mu.Lock()
	same := maps.EqualFunc(w.pods, pods, object.equal)
	w.pods = pods
	w.mu.Unlock()
	first := !w.reads.Swap(true)
	if first && w.opt.Listed != nil {
		w.opt.Listed(n)
	}
	if first || !same {
		w.opt.Changed()
	}
	return version, nil
}

// watch follows changes since version until the API server ends the answer.
func (w *Watcher) watch(ctx context.Context, version string) (next string, err error) {
	ctx, cancel := context.WithTimeout(ctx, watchTime+watchSlack)
	defer cancel()
	body, err := w.get(ctx, url.Values{"watch": {"1"}, "resourceVersion": {version}, "allowWatchBookmarks": {"true"},
		"timeoutSeconds": {strconv.Itoa(int(watchTime / time.Second))}}, "PartialObjectMetadata")
	if err != nil {
		return "", err
	}
	defer body.Close()
	for d := json.NewDecoder(body); ; {
		var e struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		err := d.Decode(&e)
		if errors.Is(err, io.EOF) {
			return version, nil
		}
		if err != nil {
			return "", fmt.Errorf("read change: %w", err)
		}
		if e.Type == "ERROR" {
			return "", statusError(0, e.Object)
		}
		var m metadata
		if err := json.Unmarshal(e.Object, &m); err != nil {
			return "", fmt.Errorf("read change: %w", err)
		}
		if m.Metadata.ResourceVersion != "" {
			version = m.Metadata.ResourceVersion
		}
		if w.apply(e.Type, &m) {
			w.opt.Changed()
		}
	}
}

// apply notes one change, and reports whether annotations or UIDs differ.
func (w *Watcher) apply(kind string, m *metadata) (changed bool) {
	if kind == "BOOKMARK" || m.Metadata.UID == "" {
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

// get asks for the node's pods as objects of a kind that has their metadata only.
func (w *Watcher) get(ctx context.Context, query url.Values, as string) (io.ReadCloser, error) {
	query.Set("fieldSelector", "spec.nodeName="+w.opt.Node)
	return w.do(ctx, http.MethodGet, "/api/v1/pods", query, "application/json;as="+as+";g=meta.k8s.io;v=v1", nil)
}

// do sends a request with these contents.
func (w *Watcher) do(ctx context.Context, method, at string, query url.Values, accept string, body []byte) (io.ReadCloser, error) {
	u := *w.base
	u.Path, u.RawQuery = path.Join("/", u.Path, at), query.Encode()
	r, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", accept)
	r.Header.Set("User-Agent", "tcpilot")
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if err := w.access.authorize(r); err != nil {
		return nil, err
	}
	return w.send(r)
}

// send sends a request, and returns the body of an answer that is no error.
func (w *Watcher) send(r *http.Request) (io.ReadCloser, error) {
	answer, err := w.client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode/100 == 2 {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, maxError))
	return nil, statusError(answer.StatusCode, text)
}

// apiError is an answer that says why a request was refused.
type apiError struct {
	code    int
	message string
}

func (e *apiError) Error() string {
	switch e.code {
	case http.StatusUnauthorized:
		return "the API server does not accept the credentials (401): " + e.message
	case http.StatusForbidden:
		return "not allowed (403), the service account has to get, list and watch pods, and to create events: " + e.message
	}
	return fmt.Sprintf("the API server answers %d: %s", e.code, e.message)
}

// statusError reads a Status object (k8s.io/apimachinery/pkg/apis/meta/v1); code is that of the answer, 0 if it is in
// the object.
func statusError(code int, text []byte) error {
	var s struct {
		Message string `json:"message"`
		Code    int    `json:"code"`
	}
	if json.Unmarshal(text, &s) != nil || s.Message == "" {
		s.Message = fmt.Sprintf("%.200q", text)
	}
	if code == 0 {
		code = s.Code
	}
	if code == http.StatusGone {
		return fmt.Errorf("%w: %s", errGone, s.Message)
	}
	return &apiError{code, s.Message}
}
