package engine

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/tcpilot/tcpilot/internal/guard"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// node is one path: what is believed of it, and what was last written for it.
//
// Nodes form a hierarchy. The root of a class holds for every address; a path
// has the prefix that the configuration asks for; and where connections of one
// path go to several hosts, each of these gets a node of its own, so that a bad
// host does not spoil its neighbours' choice.
type node struct {
	key    key
	rule   *ruleState
	parent *node // nil for a root
	kids   int   // nodes whose parent it is
	belief learn.Belief

	samples  uint64
	lastUsed int64 // Unix ns
	// host is the only remote address scored, until a second one is.
	host netip.Addr
	srtt uint32
	best int8 // index into policy.arms, -1 is none
	life life

	hosts bool // several hosts: they have nodes of their own
	ecn   bool // enough connections negotiated ECN and met marks
	// marked counts connections that met marks, up to provenMarks.
	marked uint8

	dirty   bool // in Engine.dirty
	waits   bool // in Engine.later
	onHold  bool // in Engine.onHold
	patient bool // on hold, and can wait longer: nothing urgent has happened
	changed bool // in Engine.unsaved
	stored  bool // the store has a record of it
	gone    bool // forgotten, though some list may still name it

	rootEvidence   float64           // evidence that the rule's root had from here, as of rootEvidenceAt
	rootEvidenceAt int64             // Unix ns
	compared       *learn.Comparison // with the hold-out; nil while none of it was met
	back           *Back             // nil unless the path was once left to the default

	guard *guard.Watch // nil until there is something to compare with
	bans  guard.Bans   // arms that guards took from the path, those included that are back

	// What is in the kernel. id 0 is nothing; expires 0 is that it is to be written
	// again, whatever is there.
	id      uint32
	reason  policy.Reason
	expires int64
	policy  written
	decided int64  // when it was last looked at
	changes uint64 // belief.Changes then
	stamp   uint32 // Engine.stamp then

	links [numLists]links
}

// written is the part of a policy that differs between the paths of a rule, and
// stands for the rest.
type written struct {
	arms    *armSet
	weights [path.MaxArms]uint32
	holdOut uint32
	slices  uint32 // held out
	slice   uint8  // path.Policy's
	params  uint32 // stamp of the rule's fixed fields
}

// armSet is a list of arms; paths with the same one share it.
type armSet struct {
	num       uint8
	isDefault [path.MaxArms]bool
	cc        [path.MaxArms]tcp.CC
}

func (s *armSet) list() []tcp.CC {
	if s == nil {
		return nil
	}
	return s.cc[:s.num]
}

func (e *Engine) newNode(k key, rs *ruleState, parent *node) *node {
	n := &node{key: k, rule: rs, parent: parent, best: -1}
	n.belief.Pooled = parent == nil
	e.nodes[k] = n
	if parent != nil {
		parent.kids++
		rs.paths++
	}
	if parent != nil || k.scope != 0 { // namespaces come and go; the rule's own root stays
		e.byUse.pushBack(n)
		e.byTrial.pushBack(n)
	}
	e.mark(n)
	return n
}

// node returns the path of an address in a class. One that is new is made, or nil
// is returned.
func (e *Engine) node(rs *ruleState, scope uint64, addr netip.Addr, make bool) *node {
	k := keyOf(rs.class, scope, addr, e.opt.Bits(addr))
	if n := e.nodes[k]; n != nil || !make {
		return n
	}
	return e.newNode(k, rs, e.root(rs, scope))
}

// isRoot reports whether n is what a rule gives where no path is known.
func (n *node) isRoot() bool { return n.parent == nil }

// policyNode is the node whose policy the kernel gives to connections of n: its own, or
// the nearest around it that has one.
func (n *node) policyNode() *node {
	for g := n; g != nil; g = g.parent {
		if g.id != 0 {
			return g
		}
	}
	return n.rule.root
}

// root is the node that encloses every path of a class and scope.
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
	return e.newNode(k, n.rule, n)
}

// split gives the belief of a path to the one host that it came from. What the
// path holds from here on is how arms differ between its hosts.
func (e *Engine) split(n *node) {
	h := e.newNode(hostKey(n, n.host), n.rule, n)
	h.belief, h.samples, h.lastUsed, h.srtt, h.ecn = n.belief, n.samples, n.lastUsed, n.srtt, n.ecn
	h.life, h.marked = n.life, n.marked
	h.guard, h.bans, n.guard, n.bans = n.guard, n.bans, nil, nil
	h.compared, h.back, n.compared, n.back = n.compared, n.back, nil, nil
	n.belief = learn.Belief{Pooled: true, MinRTT: h.belief.MinRTT, Rate: h.belief.Rate, HoldOut: h.belief.HoldOut}
	n.hosts, n.host = true, netip.Addr{}
	e.moved(n, tcp.CC{})
	e.moved(h, tcp.CC{})
}

func hostKey(n *node, addr netip.Addr) key {
	return keyOf(n.key.class, n.key.scope, addr, hostBits)
}

// touch makes n the most recently used.
func (e *Engine) touch(n *node, now int64) {
	n.lastUsed = max(n.lastUsed, now)
	e.byUse.toBack(n)
	e.byTrial.toBack(n)
}

// admittedAt is the number of observations from which a path is kept before others: who
// connects once from each of many networks does not push out what is in use.
const admittedAt = 3

// admit notes that enough is known of n.
func (e *Engine) admit(n *node) {
	if n.belief.Count >= admittedAt || n.kids > 0 {
		e.byTrial.remove(n)
	}
}

// mark asks for a decision about n at the next tick.
func (e *Engine) mark(n *node) {
	if !n.dirty && !n.gone {
		n.dirty = true
		e.dirty = append(e.dirty, n)
	}
}

// urge asks for a decision at the next tick, whatever slice it is in.
func (e *Engine) urge(n *node) {
	n.stamp = e.stamp - 1
	e.mark(n)
}

// markAll asks for a decision about every path, since what all of them depend on
// has changed. It goes by the order of use, not of a map, so that a
// replay decides in the same order every time.
func (e *Engine) markAll() {
	e.stamp++
	for _, rs := range e.byRule {
		if rs.root != nil {
			e.mark(rs.root)
		}
	}
	e.byUse.each(e.mark)
}

// moved notes that an outcome of arm changed a node's belief.
func (e *Engine) moved(n *node, arm tcp.CC) {
	if n.canWait(arm) {
		e.await(n)
	} else {
		e.mark(n)
	}
	if !n.changed && !n.gone {
		n.changed = true
		e.unsaved = append(e.unsaved, n)
	}
}

// await asks for a decision in its turn, unless one is asked for.
func (e *Engine) await(n *node) {
	if !n.dirty && !n.waits && !n.gone {
		n.waits = true
		e.later = append(e.later, n)
	}
}

// trialPart is the part of the paths, 1/trialPart, that those on trial have at least.
const trialPart = 8

// evict makes room: the least recently used paths are forgotten, each after the
// hosts within it. Those on trial go first, unless they are few.
func (e *Engine) evict() {
	for e.byUse.len > e.opt.Limit {
		n := e.byUse.first
		if e.byTrial.len > e.opt.Limit/trialPart {
			n = e.byTrial.first
		}
		if n.kids > 0 {
			e.byUse.toBack(n)
			e.byTrial.remove(n)
			continue
		}
		e.totals.Evicted++
		if n.stored {
			e.forgotten = append(e.forgotten, n.place())
		}
		e.drop(n)
	}
}

// drop takes a node out of every list and of the kernel.
func (e *Engine) drop(n *node) {
	delete(e.nodes, n.key)
	if n.id != 0 {
		e.removed = append(e.removed, n.key)
	}
	if n.parent != nil {
		n.parent.kids--
		n.rule.paths--
	}
	e.byUse.remove(n)
	e.byTrial.remove(n)
	e.byWrite.remove(n)
	n.id, n.gone = 0, true
	// Lists name it until they are next gone through, which for the store may be long.
	n.belief, n.compared, n.guard, n.bans, n.back = learn.Belief{}, nil, nil, nil, nil
	if n.dirty || n.waits || n.onHold || n.changed {
		if e.listed++; e.listed > e.opt.Limit/trialPart {
			e.dropListed()
		}
	}
}

// dropListed takes nodes that are gone out of the lists that still name them: what is
// forgotten faster than it is saved must not stay in memory.
func (e *Engine) dropListed() {
	gone := func(n *node) bool { return n.gone }
	e.dirty, e.later = slices.DeleteFunc(e.dirty, gone), slices.DeleteFunc(e.later, gone)
	e.unsaved = slices.DeleteFunc(e.unsaved, gone)
	for i := range e.onHold {
		e.onHold[i] = slices.DeleteFunc(e.onHold[i], gone)
	}
	e.listed = 0
}

// byLastUse puts the nodes into the order of use, after many were added at once.
func (e *Engine) byLastUse() {
	all := make([]*node, 0, e.byUse.len)
	e.byUse.each(func(n *node) { all = append(all, n) })
	slices.SortStableFunc(all, func(a, b *node) int { return cmp.Compare(a.lastUsed, b.lastUsed) })
	for _, n := range all {
		e.byUse.toBack(n)
		e.byTrial.toBack(n)
		e.admit(n)
	}
}
