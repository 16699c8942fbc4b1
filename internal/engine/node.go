package engine

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/guard"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// node is one path: what is believed of it, and what was last written for it.
//
// Nodes form a hierarchy. The root of a class matches every address. A path has the
// prefix length that the configuration asks for. If connections of one path go to
// several hosts, each host gets a node of its own, so that one slow host does not
// change the choice for its neighbours.
type node struct {
	key      key
	rule     *ruleState
	parent   *node // nil for a root
	children list  // nodes whose parent this is, least recently used first
	belief   learn.Belief

	samples  uint64
	lastUsed int64 // Unix ns
	// host is the only remote address with a scored connection; invalid once there are two.
	host      netip.Addr
	best      int8 // index into policy.arms, -1 is none
	lifetimes lifetimes
	metrics   estimate.Path
	first     *policy.FirstWindows // nil until an initial window was raised

	hosts bool // there are several hosts, with nodes of their own
	marks marks

	dirty       bool // in queue.dirty
	queued      bool // waits in queue.later
	listed      bool // in queue.later, where it may wait no more
	deferred    bool // in queue.deferred
	lowPriority bool // deferred, and goes to queue.later afterwards: nothing urgent has happened
	changed     bool // in saves.changed
	stored      bool // the store has a record of it
	gone        bool // dropped, but some list may still contain it

	rootEvidence   float64 // evidence that this path gave to the root of its rule, as of rootEvidenceAt
	rootEvidenceAt int64   // Unix ns
	comparisons

	guard   *guard.State      // nil until there is something to compare with
	retired guard.Retirements // arms that guards retired on the path, also in the past

	// What is in the kernel. id 0: no row. expires 0: the row is to be written again,
	// whatever it contains.
	id       uint32
	reason   policy.Reason
	expires  int64
	rowAt    int64 // Unix ns since when there is a row; 0: there is none
	policy   written
	decided  int64  // Unix ns of the latest decision
	windowAt int64  // Unix ns until which a raised initial window was in use
	changes  uint64 // belief.Changes then
	stamp    uint32 // queue.stamp then

	// Where it is in Engine.cache.
	networks   [len(networkLevels)]*network
	passedOver int64 // lastUsed when network.victim last passed it over

	links    [numLists]links
	memberOf uint8 // the lists that it is in, by bit
}

func (e *Engine) newNode(k key, rs *ruleState, parent *node) *node {
	n := &node{key: k, rule: rs, parent: parent, best: -1, children: list{which: listChildren}}
	n.belief.Pooled = parent == nil
	e.nodes[k] = n
	if parent != nil {
		parent.children.pushBack(n)
		rs.paths++
	}
	if parent != nil || k.scope != 0 { // a rule's own root is never evicted; a namespace's is
		e.cache.add(n)
	}
	e.queue.mark(n)
	return n
}

// node returns the path of an address in a class. If there is none, it is created if
// make is set; otherwise node returns nil.
func (e *Engine) node(rs *ruleState, scope uint64, addr netip.Addr, make bool) *node {
	k := keyOf(rs.class, scope, addr, e.opt.Bits(addr))
	if n := e.nodes[k]; n != nil || !make {
		return n
	}
	return e.newNode(k, rs, e.root(rs, scope))
}

func (n *node) isGone() bool { return n.gone }

// isRoot reports whether n is the root of a class, which applies where no path is known.
func (n *node) isRoot() bool { return n.parent == nil }

// fixed reports whether the node's rule learns nothing: then it is the rule's root.
func (n *node) fixed() bool { return n.rule.rule.Learn == nil }

// adapts reports whether the node's rule adapts a field.
func (n *node) adapts(f tcp.Field) bool { return n.rule.rule.Adapts(f) }

// raisesWindows reports whether the rule has windows of its paths raised.
func (n *node) raisesWindows() bool { return n.adapts(tcp.InitCwnd) || n.adapts(tcp.ResumeCwnd) }

// policyNode returns the node whose policy the kernel applies to connections of n: n
// itself, or its nearest ancestor with a row in the kernel.
func (n *node) policyNode() *node {
	for g := n; g != nil; g = g.parent {
		if g.id != 0 {
			return g
		}
	}
	return n.rule.root
}

// root returns the root of a class and scope, and creates it if needed.
func (e *Engine) root(rs *ruleState, scope uint64) *node {
	if scope == 0 {
		return rs.root
	}
	k := rootKey(rs.class, scope)
	if n := e.nodes[k]; n != nil {
		return n
	}
	return e.newNode(k, rs, nil)
}

// host returns the node of one host of a path; nil as long as the path has only one host
// and no separate nodes.
func (e *Engine) host(n *node, addr netip.Addr) *node {
	if !n.hosts {
		return nil
	}
	return e.nodes[hostKey(n, addr)]
}

// makeHost is host for a connection that is to be scored: it creates the node. It returns nil if the
// path has no room for another host. At the second host of a path, it moves what the path has
// learned so far to the first host.
func (e *Engine) makeHost(n *node, addr netip.Addr, now int64) *node {
	if n.key.bits == hostBits {
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
	if !e.makeRoom(n, now) {
		return nil
	}
	return e.newNode(k, n.rule, n)
}

// The hosts of one path have a bounded part of Options.Limit, so that one network cannot evict what is
// known of others, however many of its addresses connect, and however often.
const (
	// hostPart: a path has nodes for 1/hostPart of Options.Limit hosts at most: 256 by default,
	// as many as a /24 has.
	hostPart   = 64
	leastHosts = 8
	// idleHost is the time in nanoseconds without a connection after which a host makes room for
	// another one of its path. Until then it keeps what was learned of it.
	idleHost = 3600 * 1e9
)

func (e *Engine) mostHosts() int { return max(leastHosts, e.opt.Limit/hostPart) }

// makeRoom reports whether a path may have a node for one more host. At its bound, it drops the
// least recently used host for that, if little is known of it or if it is idle.
func (e *Engine) makeRoom(n *node, now int64) bool {
	if n.children.len < e.mostHosts() {
		return true
	}
	h := n.children.first
	if !e.cache.probation.has(h) && now-h.lastUsed < idleHost {
		return false
	}
	e.evictNode(h)
	return true
}

// split moves the belief of a path to a new node of the only host that it came from.
// From then on the path's own belief is pooled: how arms differ over its hosts.
func (e *Engine) split(n *node) {
	h := e.newNode(hostKey(n, n.host), n.rule, n)
	h.belief, h.samples, h.lastUsed, h.metrics = n.belief, n.samples, n.lastUsed, n.metrics.Clone()
	h.lifetimes, h.marks, h.windowAt = n.lifetimes, n.marks, n.windowAt
	if n.first != nil {
		first := *n.first
		h.first = &first
	}
	h.guard, h.retired, n.guard, n.retired = n.guard, n.retired, nil, nil
	h.compared, h.slices, h.left, h.running, n.compared, n.slices, n.left, n.running = n.compared, n.slices, n.left, n.running, nil, nil, nil, nil // failures have no level: they stay the path's
	n.belief = learn.Belief{Pooled: true, MinRTT: h.belief.MinRTT, Rate: h.belief.Rate, HoldOut: h.belief.Clone().HoldOut}
	n.hosts, n.host = true, netip.Addr{}
	e.admit(h)
	e.beliefChanged(n, tcp.CC{})
	e.beliefChanged(h, tcp.CC{})
}

func hostKey(n *node, addr netip.Addr) key {
	return keyOf(n.key.class, n.key.scope, addr, hostBits)
}

// touch makes n the most recently used. Its ancestors were used at the same time.
func (e *Engine) touch(n *node, now int64) {
	for m := n; m != nil; m = m.above() {
		m.lastUsed = learn.Later(m.lastUsed, now)
	}
	e.toBack(n)
}

// toBack moves n to the end of the lists that are ordered by use.
func (e *Engine) toBack(n *node) {
	e.cache.touch(n)
	if n.parent != nil {
		n.parent.children.toBack(n)
	}
}

const (
	// admittedAt is the number of observations that end the probation of a path (cache.go).
	admittedAt = 3
)

// admit ends the probation of n if enough is known of it.
func (e *Engine) admit(n *node) {
	if n.belief.Count >= admittedAt || n.children.len > 0 {
		e.cache.admit(n)
	}
}

// markAll asks for a decision about every path, because something changed that all of
// them depend on. It follows the order of use, not of a map, so that a replay decides in
// the same order every time.
func (e *Engine) markAll() {
	e.queue.stamp++
	for _, rs := range e.rules.states {
		if rs.root != nil {
			e.queue.mark(rs.root)
		}
	}
	e.cache.byUse.each(e.queue.mark)
}

// beliefChanged notes that an outcome of arm changed a node's belief.
func (e *Engine) beliefChanged(n *node, arm tcp.CC) {
	if n.canWait(arm) {
		e.queue.enqueue(n)
	} else {
		e.queue.mark(n)
	}
	e.saves.add(n)
}

// evict drops paths beyond the limit, each after the hosts within it.
func (e *Engine) evict(now int64) {
	for n := e.cache.victim(now); n != nil; n = e.cache.victim(now) {
		e.evictNode(n)
	}
}

// evictNode drops a node, also from the store.
func (e *Engine) evictNode(n *node) {
	e.totals.Evicted++
	e.saves.forget(n)
	e.drop(n)
}

// drop takes a node out of every list and of the kernel.
func (e *Engine) drop(n *node) {
	delete(e.nodes, n.key)
	e.withdraw(n)
	if n.parent != nil {
		n.parent.children.remove(n)
		n.rule.paths--
	}
	e.cache.remove(n)
	n.gone = true
	// The lists of queue and saves may contain the node for long. So free its memory now.
	n.belief, n.comparisons, n.guard, n.retired = learn.Belief{}, comparisons{}, nil, nil
	if n.dirty || n.listed || n.deferred || n.changed {
		if e.dropped++; e.dropped > e.opt.Limit/probationPart {
			e.dropListed()
		}
	}
}

// dropListed removes dropped nodes from the lists that still contain them, so that memory
// stays bounded if paths are dropped faster than they are saved.
func (e *Engine) dropListed() {
	e.queue.dropGone()
	e.saves.dropGone()
	e.dropped = 0
}

// byLastUse sorts all lists by time of use, after many nodes were added at once, and drops the
// hosts of each path beyond its bound.
func (e *Engine) byLastUse() {
	all := make([]*node, 0, e.cache.byUse.len)
	e.cache.byUse.each(func(n *node) { all = append(all, n) })
	slices.SortStableFunc(all, func(a, b *node) int { return cmp.Compare(a.lastUsed, b.lastUsed) })
	for _, n := range all {
		e.toBack(n)
		e.admit(n)
	}
	for _, n := range all {
		for !n.isRoot() && n.children.len > e.mostHosts() {
			e.evictNode(n.children.first)
		}
	}
}
