package engine

import (
	"container/list"
	"net/netip"
	"reflect"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/policy"
)

// node is one path: what is believed of it, and what was last written for it.
//
// Nodes form a hierarchy. The root of a class holds for every address; a path
// has the prefix that the configuration asks for; and where connections of one
// path go to several hosts, each of these gets a node of its own, so that a bad
// host does not spoil its neighbours' choice.
type node struct {
	key    path.Key
	rule   *ruleState
	parent *node // nil for a root
	belief learn.Belief

	samples  uint64
	lastUsed int64 // Unix ns
	srtt     uint32
	// host is the only remote address scored, until a second one is.
	host  netip.Addr
	hosts bool // several hosts: they have nodes of their own
	// ecn: a connection negotiated ECN and a mark arrived.
	ecn bool

	treatedSum, treatedN float64 // rewards of connections that were not held out
	heldSum, heldN       float64

	// What is in the kernel; id 0 is nothing.
	id      uint32
	expires int64
	policy  written
	reason  policy.Reason
	best    int8

	dirty   bool
	use     *list.Element
	written *list.Element
}

// written is the part of a policy that differs between the paths of a rule, and
// a stamp of what does not.
type written struct {
	arms    [path.MaxArms]path.Arm
	num     uint8
	holdOut uint32
	params  uint64 // hash of the fixed fields
}

func (e *Engine) newNode(k path.Key, rs *ruleState, parent *node) *node {
	n := &node{key: k, rule: rs, parent: parent, best: -1}
	n.belief.Pooled = parent == nil
	e.nodes[k] = n
	if parent != nil {
		n.use = e.byUse.PushBack(n)
		rs.paths++
	}
	e.mark(n)
	return n
}

// node returns the path of an address in a class, making it if it is new.
func (e *Engine) node(rs *ruleState, scope uint64, addr netip.Addr) *node {
	bits := e.opt.Bits(addr)
	k := path.Of(rs.class, scope, addr, bits)
	if n := e.nodes[k]; n != nil {
		return n
	}
	n := e.newNode(k, rs, e.root(rs, scope))
	e.evict()
	return n
}

// root is the node that encloses every path of a class and scope.
func (e *Engine) root(rs *ruleState, scope uint64) *node {
	if scope == 0 {
		return rs.root
	}
	k := path.Root(rs.class, scope)
	if n := e.nodes[k]; n != nil {
		return n
	}
	return e.newNode(k, rs, nil)
}

// host returns the node that one of a path's hosts has of its own; nil while the
// path and its only host are the same thing.
func (e *Engine) host(n *node, addr netip.Addr) *node {
	if !n.hosts {
		return nil
	}
	return e.nodes[hostKey(n, addr)]
}

// makeHost is host for a connection that is to be scored: it makes the node, and
// gives what the path has learned from its one host so far to that host.
func (e *Engine) makeHost(n *node, addr netip.Addr) *node {
	if n.key.Prefix.Bits() == addr.BitLen() {
		return nil
	}
	if !n.hosts {
		if !n.host.IsValid() {
			n.host = addr
		}
		if n.host == addr {
			return nil
		}
		e.split(n)
	}
	k := hostKey(n, addr)
	if h := e.nodes[k]; h != nil {
		return h
	}
	h := e.newNode(k, n.rule, n)
	e.evict()
	return h
}

// split gives the belief of a path to the one host that it came from. What the
// path holds from here on is how arms differ between its hosts.
func (e *Engine) split(n *node) {
	h := e.newNode(hostKey(n, n.host), n.rule, n)
	h.belief, h.samples, h.lastUsed, h.srtt, h.ecn = n.belief, n.samples, n.lastUsed, n.srtt, n.ecn
	n.belief = learn.Belief{Pooled: true, MinRTT: h.belief.MinRTT, Rate: h.belief.Rate}
	n.hosts, n.host = true, netip.Addr{}
	e.changed(n)
	e.changed(h)
}

func hostKey(n *node, addr netip.Addr) path.Key {
	return path.Of(n.key.Class, n.key.Scope, addr, addr.BitLen())
}

// touch makes n the most recently used.
func (e *Engine) touch(n *node, now int64) {
	n.lastUsed = max(n.lastUsed, now)
	if n.use != nil {
		e.byUse.MoveToBack(n.use)
	}
}

func (e *Engine) mark(n *node) {
	if !n.dirty {
		n.dirty = true
		e.dirty = append(e.dirty, n)
	}
}

// evict makes room: the least recently used paths are forgotten.
func (e *Engine) evict() {
	for e.byUse.Len() > e.opt.Limit {
		n := e.byUse.Front().Value.(*node)
		e.totals.Evicted++
		e.forget(n)
	}
}

// forget drops a node and what the store has of it.
func (e *Engine) forget(n *node) {
	e.dropped = append(e.dropped, e.memory(n))
	e.drop(n)
}

// drop takes a node out of every list and of the kernel.
func (e *Engine) drop(n *node) {
	delete(e.nodes, n.key)
	delete(e.unsaved, n.key)
	if n.id != 0 {
		e.removed = append(e.removed, n.key)
	}
	if n.use != nil {
		e.byUse.Remove(n.use)
		n.rule.paths--
	}
	if n.written != nil {
		e.byWrite.Remove(n.written)
		n.written = nil
	}
	n.id = 0
	n.dirty = true // never marked again
}

func equalTables(a, b *class.Table) bool { return reflect.DeepEqual(a, b) }
