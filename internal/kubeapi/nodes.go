package kubeapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
)

// Node is what routes to the pods of a node need.
type Node struct {
	Name      string
	PodCIDRs  []netip.Prefix // spec.podCIDRs: one of each family at most
	Addresses []netip.Addr   // status.addresses of the type InternalIP
}

func (n Node) equal(o Node) bool {
	return n.Name == o.Name && slices.Equal(n.PodCIDRs, o.PodCIDRs) && slices.Equal(n.Addresses, o.Addresses)
}

// nodeObject is the part of a Node that is read (k8s.io/api/core/v1).
type nodeObject struct {
	Metadata struct {
		Name string `json:"name"`
		UID  string `json:"uid"`
	} `json:"metadata"`
	Spec struct {
		PodCIDR  string   `json:"podCIDR"`
		PodCIDRs []string `json:"podCIDRs"`
	} `json:"spec"`
	Status struct {
		Addresses []struct{ Type, Address string } `json:"addresses"`
	} `json:"status"`
}

// node leaves out what is no network or address, and what would not be one of a family.
func (o *nodeObject) node() Node {
	n := Node{Name: o.Metadata.Name}
	texts := o.Spec.PodCIDRs
	if len(texts) == 0 && o.Spec.PodCIDR != "" {
		texts = []string{o.Spec.PodCIDR}
	}
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			n.PodCIDRs = append(n.PodCIDRs, p.Masked())
		}
	}
	for _, a := range o.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == "InternalIP" {
			n.Addresses = append(n.Addresses, ip.Unmap())
		}
	}
	return n
}

// ReadNode reads one node. Without a kubeconfig this process is in a pod of the cluster.
func ReadNode(ctx context.Context, kubeconfig, name string) (Node, error) {
	s, err := openServer(kubeconfig)
	if err != nil {
		return Node{}, err
	}
	defer s.client.CloseIdleConnections()
	body, err := s.do(ctx, http.MethodGet, "/api/v1/nodes/"+url.PathEscape(name), nil, "application/json", nil)
	if err != nil {
		return Node{}, fmt.Errorf("read node %s from the API server of Kubernetes: %w", name, err)
	}
	var o nodeObject
	err = errors.Join(json.NewDecoder(io.LimitReader(body, maxNode)).Decode(&o), body.Close())
	if err != nil {
		return Node{}, fmt.Errorf("read node %s from the API server of Kubernetes: %w", name, err)
	}
	return o.node(), nil
}

const maxNode = 4 << 20 // bytes: etcd does not store more than 1.5 MiB

// NodeWatcher knows the nodes of the cluster. Its methods can be called at any time.
type NodeWatcher struct {
	server  *server
	changed func()

	mu    sync.RWMutex
	nodes map[string]Node // by UID; nil: the server has not answered yet
}

// OpenNodes reads how the API server is reached; it does not connect. changed is called after something of a node has changed; it must return
// soon.
func OpenNodes(kubeconfig string, changed func()) (*NodeWatcher, error) {
	s, err := openServer(kubeconfig)
	if err != nil {
		return nil, err
	}
	return &NodeWatcher{server: s, changed: changed}, nil
}

// Run follows the nodes until ctx ends, or until an error. After an error the caller waits, and calls it again. Nodes are read whole, and
// not as metadata only: a kubelet writes its node's status every 5 min.
func (w *NodeWatcher) Run(ctx context.Context) error {
	return w.server.follow(ctx, &resource{what: "nodes", path: "/api/v1/nodes", listAs: "application/json", watchAs: "application/json", listed: w.listed, changed: w.change})
}

// Nodes are those of the cluster, in the order of their names. known is false if the API server has not answered yet. If it stops answering, what it
// reported before is kept.
func (w *NodeWatcher) Nodes() (list []Node, known bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	list = slices.SortedFunc(maps.Values(w.nodes), func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return list, w.nodes != nil
}

func (w *NodeWatcher) listed() (add func(json.RawMessage) error, done func()) {
	nodes := map[string]Node{}
	add = func(item json.RawMessage) error {
		var o nodeObject
		if err := json.Unmarshal(item, &o); err != nil {
			return err
		}
		nodes[o.Metadata.UID] = o.node()
		return nil
	}
	return add, func() { w.note(nodes) }
}

func (w *NodeWatcher) note(nodes map[string]Node) {
	w.mu.Lock()
	same := w.nodes != nil && maps.EqualFunc(w.nodes, nodes, Node.equal)
	w.nodes = nodes
	w.mu.Unlock()
	if !same {
		w.changed()
	}
}

func (w *NodeWatcher) change(kind string, item json.RawMessage) error {
	var o nodeObject
	if err := json.Unmarshal(item, &o); err != nil {
		return err
	}
	w.mu.Lock()
	before, known := w.nodes[o.Metadata.UID]
	now := o.node()
	if kind == "DELETED" {
		delete(w.nodes, o.Metadata.UID)
	} else {
		w.nodes[o.Metadata.UID] = now
	}
	w.mu.Unlock()
	if kind == "DELETED" && known || kind != "DELETED" && !(known && before.equal(now)) {
		w.changed()
	}
	return nil
}
