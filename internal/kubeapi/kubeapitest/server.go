package kubeapitest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Pod is a pod as the server has it.
type Pod struct {
	Namespace, Name, UID, Node string
	Annotations                map[string]string
}

// Server is an API server whose only user has the token "secret".
type Server struct {
	*httptest.Server

	mu       sync.Mutex
	changed  *sync.Cond
	changes  []change // changes[i] has resource version i+1
	first    int      // the changes before it are forgotten
	pods     map[string]Pod
	nodes    map[string]Node // by UID
	events   []Event
	refuse   int  // status of all answers; 0: none
	held     bool // no answer begins
	paused   bool // watches see nothing
	requests []string
	closed   bool
}

type change struct {
	kind string
	pod  Pod
	node *Node // instead of a pod
}

// Node is a node as the server has it.
type Node struct {
	Name, UID string
	PodCIDRs  []string
	Addresses []string // InternalIP
}

// Event is an event that was written.
type Event struct {
	Metadata              struct{ Name string }
	Type, Reason, Message string
	InvolvedObject        struct{ Namespace, Name, UID string }
}

// New starts a server that listens on l; nil for any port.
func New(t testing.TB, l net.Listener) *Server {
	s := &Server{pods: map[string]Pod{}, nodes: map[string]Node{}}
	s.changed = sync.NewCond(&s.mu)
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	if l != nil {
		s.Listener.Close()
		s.Listener = l
	}
	s.StartTLS()
	t.Cleanup(func() {
		s.do(func() { s.closed = true })
		s.Server.CloseClientConnections()
		s.Server.Close()
	})
	return s
}

// Kubeconfig writes a file for the server.
func (s *Server) Kubeconfig(t testing.TB, token string) string {
	t.Helper()
	return Kubeconfig(t, s.URL, token)
}

func (s *Server) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.changed.Broadcast()
}

// Put creates or changes a pod.
func (s *Server) Put(p Pod) {
	s.do(func() {
		kind := "ADDED"
		if _, there := s.pods[p.UID]; there {
			kind = "MODIFIED"
		}
		s.pods[p.UID] = p
		s.changes = append(s.changes, change{kind: kind, pod: p})
	})
}

// Delete deletes a pod.
func (s *Server) Delete(uid string) {
	s.do(func() {
		s.changes = append(s.changes, change{kind: "DELETED", pod: s.pods[uid]})
		delete(s.pods, uid)
	})
}

// PutNode creates or changes a node.
func (s *Server) PutNode(n Node) {
	s.do(func() {
		kind := "ADDED"
		if _, there := s.nodes[n.UID]; there {
			kind = "MODIFIED"
		}
		s.nodes[n.UID] = n
		s.changes = append(s.changes, change{kind: kind, node: &n})
	})
}

// DeleteNode deletes a node.
func (s *Server) DeleteNode(uid string) {
	s.do(func() {
		n := s.nodes[uid]
		s.changes = append(s.changes, change{kind: "DELETED", node: &n})
		delete(s.nodes, uid)
	})
}

// Refuse makes all answers errors with this status; 0 ends it.
func (s *Server) Refuse(status int) { s.do(func() { s.refuse = status }); s.CloseClientConnections() }

// Hold ends all answers, and begins none until Release.
func (s *Server) Hold() { s.do(func() { s.held = true }); s.CloseClientConnections() }

// Release ends Hold.
func (s *Server) Release() { s.do(func() { s.held = false }) }

// Forget makes changes and forgets them, as compaction does, before a watch has seen them.
func (s *Server) Forget(change func()) {
	s.do(func() { s.paused = true })
	change()
	s.do(func() { s.paused, s.first = false, len(s.changes)+1 })
}

// Events are the events that were written.
func (s *Server) Events() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

// Asked counts the requests whose URL contains text.
func (s *Server) Asked(text string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if strings.Contains(r, text) {
			n++
		}
	}
	return n
}

func fail(w http.ResponseWriter, status int, message string) {
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": status})
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.Method+" "+r.URL.String())
	for s.held && !s.closed {
		s.changed.Wait()
	}
	refuse := s.refuse
	s.mu.Unlock()
	query := r.URL.Query()
	switch {
	case refuse != 0:
		fail(w, refuse, http.StatusText(refuse))
	case r.Header.Get("Authorization") != "Bearer secret":
		fail(w, http.StatusUnauthorized, "Unauthorized")
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/events"):
		s.addEvent(w, r)
	case r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, nodesPath+"/"):
		s.oneNode(w, strings.TrimPrefix(r.URL.Path, nodesPath+"/"))
	case r.Method != http.MethodGet || r.URL.Path != "/api/v1/pods" && r.URL.Path != nodesPath:
		fail(w, http.StatusNotFound, "no such path")
	case query.Get("watch") != "":
		s.watch(w, wanted(r), query.Get("resourceVersion"))
	case r.URL.Path == nodesPath:
		s.listNodes(w)
	default:
		s.list(w, strings.TrimPrefix(query.Get("fieldSelector"), "spec.nodeName="), query.Get("continue"))
	}
}

func (s *Server) addEvent(w http.ResponseWriter, r *http.Request) {
	var e Event
	text, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(text, &e)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	s.do(func() { s.events = append(s.events, e) })
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, "{}")
}

const nodesPath = "/api/v1/nodes"

// wanted reports which changes a watch is about.
func wanted(r *http.Request) func(change) bool {
	node := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "spec.nodeName=")
	return func(c change) bool {
		if r.URL.Path == nodesPath {
			return c.node != nil
		}
		return c.node == nil && c.pod.Node == node
	}
}

func (c change) object(version int) map[string]any {
	if c.node != nil {
		return nodeObject(*c.node, version)
	}
	return object(c.pod, version)
}

func nodeObject(n Node, version int) map[string]any {
	addresses := []any{map[string]string{"type": "Hostname", "address": n.Name}}
	for _, a := range n.Addresses {
		addresses = append(addresses, map[string]string{"type": "InternalIP", "address": a})
	}
	return map[string]any{"metadata": map[string]any{"name": n.Name, "uid": n.UID, "resourceVersion": strconv.Itoa(version)},
		"spec": map[string]any{"podCIDRs": n.PodCIDRs}, "status": map[string]any{"addresses": addresses}}
}

func (s *Server) oneNode(w http.ResponseWriter, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		if n.Name == name {
			json.NewEncoder(w).Encode(nodeObject(n, len(s.changes)))
			return
		}
	}
	fail(w, http.StatusNotFound, fmt.Sprintf("nodes %q not found", name))
}

func (s *Server) listNodes(w http.ResponseWriter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []any{}
	for _, n := range s.nodes {
		items = append(items, nodeObject(n, len(s.changes)))
	}
	json.NewEncoder(w).Encode(map[string]any{"kind": "NodeList", "metadata": map[string]any{"resourceVersion": strconv.Itoa(len(s.changes))}, "items": items})
}

func object(p Pod, version int) map[string]any {
	return map[string]any{"metadata": map[string]any{"namespace": p.Namespace, "name": p.Name, "uid": p.UID,
		"resourceVersion": strconv.Itoa(version), "annotations": p.Annotations}}
}

// list answers in pages of one pod.
func (s *Server) list(w http.ResponseWriter, node, next string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var uids []string
	for uid, p := range s.pods {
		if p.Node == node {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	at, _ := strconv.Atoi(next)
	items := []any{}
	meta := map[string]any{"resourceVersion": strconv.Itoa(len(s.changes))}
	if at < len(uids) {
		items = append(items, object(s.pods[uids[at]], len(s.changes)))
		if at+1 < len(uids) {
			meta["continue"] = strconv.Itoa(at + 1)
		}
	}
	json.NewEncoder(w).Encode(map[string]any{"kind": "PartialObjectMetadataList", "metadata": meta, "items": items})
}

func (s *Server) watch(w http.ResponseWriter, wanted func(change) bool, version string) {
	at, _ := strconv.Atoi(version)
	out := json.NewEncoder(w)
	w.(http.Flusher).Flush()
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed {
		if s.paused {
			s.changed.Wait()
			continue
		}
		if at+1 < s.first {
			out.Encode(map[string]any{"type": "ERROR", "object": map[string]any{"kind": "Status", "message": "too old resource version", "code": http.StatusGone}})
			return
		}
		for ; at < len(s.changes); at++ {
			if c := s.changes[at]; wanted(c) {
				if out.Encode(map[string]any{"type": c.kind, "object": c.object(at + 1)}) != nil {
					return
				}
			}
		}
		out.Encode(map[string]any{"type": "BOOKMARK", "object": object(Pod{}, at)})
		w.(http.Flusher).Flush()
		s.changed.Wait()
	}
}
