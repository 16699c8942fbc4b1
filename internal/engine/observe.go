package engine

import (
	"math"
	"net/netip"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Observe folds one sample into what is known of its path. It does not keep s. These are
// its steps: the rule, the path and the host that it is of; what every sample tells; the
// outcome, if it has one; comparison with the hold-out; belief; guards.
func (e *Engine) Observe(s *tcp.Sample) {
	e.mu.Lock()
	defer e.mu.Unlock()

	rs := e.ruleOf(s)
	switch {
	case rs == nil:
		return
	case rs.rule.Learn == nil:
		e.compareFixed(rs, s)
		return
	}
	at := e.find(rs, s)
	e.note(at, s)
	out, scored := e.outcome(rs, at, s)
	if !scored {
		return
	}
	leaf := e.place(rs, at, s)
	if e.attribute(leaf, s, &out) {
		e.compare(leaf, s, out)
		e.learn(leaf, s, out)
		e.watch(leaf, s, out)
	}
	e.evict() // last: it may forget any of them
}

// ruleOf counts a sample, and returns the rule of its class; nil if that is no more.
func (e *Engine) ruleOf(s *tcp.Sample) *ruleState {
	if int(s.Kind) < len(e.kinds) {
		e.kinds[s.Kind]++
		e.stoodFor[s.Kind] += uint64(max(1, s.StandsFor))
	}
	rs := e.byClass[s.Class]
	if rs == nil {
		e.totals.Unattributed++
		return nil
	}
	rs.samples++
	return rs
}

// position is where a sample belongs, as far as that is known: a path, and one of its
// hosts where it has several. Either may be nil.
type position struct {
	scope      uint64
	addr       netip.Addr
	path, host *node
}

// leaf is the smaller of what is known; nil if nothing is.
func (p *position) leaf() *node {
	if p.host != nil {
		return p.host
	}
	return p.path
}

func (e *Engine) find(rs *ruleState, s *tcp.Sample) position {
	at := position{addr: s.Remote.Addr().Unmap()}
	if rs.rule.Learn.OwnScope {
		at.scope = s.NetNS
	}
	if at.path = e.node(rs, at.scope, at.addr, false); at.path != nil {
		at.host = e.host(at.path, at.addr)
	}
	return at
}

// note keeps what every sample tells, whether it has an outcome or not.
func (e *Engine) note(at position, s *tcp.Sample) {
	if at.path == nil {
		return
	}
	if at.host != nil {
		e.seen(at.host, s)
	}
	e.seen(at.path, s)
	e.watchECN(at.leaf(), s)
}

// seen keeps what every sample tells, whether it can be scored or not.
func (e *Engine) seen(n *node, s *tcp.Sample) {
	n.samples++
	e.touch(n, s.At)
	if s.SRTT != 0 {
		n.srtt = s.SRTT
	}
	if s.Has(tcp.FlagECN) && s.DeliveredCE > 0 && s.Kind == tcp.KindClose && !n.ecn {
		if n.marked++; n.marked >= provenMarks {
			n.ecn = true
			e.urge(n)
		}
	}
}

// outcome is what a sample says of an arm or of the default; false: nothing.
func (e *Engine) outcome(rs *ruleState, at position, s *tcp.Sample) (out learn.Outcome, ok bool) {
	minRTT := uint32(0)
	if leaf := at.leaf(); leaf != nil {
		minRTT = leaf.belief.MinRTT
	}
	out, why := learn.Reward(rs.rule.Learn.Objective, s, minRTT)
	switch {
	case why != learn.Scored:
		e.ignored[why]++
		return out, false
	case s.Arm == (tcp.CC{}) && !s.Has(tcp.FlagHoldOut):
		e.noArm++
		return out, false
	}
	return out, true
}

// place returns the node that an outcome is of, and makes it if need be: what never
// answered, or said nothing, is no path.
func (e *Engine) place(rs *ruleState, at position, s *tcp.Sample) *node {
	if at.path == nil {
		at.path = e.node(rs, at.scope, at.addr, true)
		e.seen(at.path, s)
	}
	if at.host == nil {
		if at.host = e.makeHost(at.path, at.addr); at.host != nil {
			e.seen(at.host, s)
		}
	}
	return at.leaf()
}

// attribute completes an outcome with how many connections there were at a time, and with
// the slice of time that it counts for; false: it counts for none.
func (e *Engine) attribute(leaf *node, s *tcp.Sample, out *learn.Outcome) bool {
	leaf.lived(s)
	out.AtOnce = leaf.lives().atOnce()
	if !e.slices {
		return true
	}
	slice, edge := leaf.sliceOf(s)
	if edge && !e.observe {
		e.ignored[learn.SliceEdge]++
		return false
	}
	if e.observe || heldBy(s) != learn.HeldConnection {
		out.Slice = slice
	}
	return true
}

// learn folds an outcome into what is believed of a path, and of the prefixes around it:
// of the hold-out, of an arm, or of both, where a slice held out had the default.
func (e *Engine) learn(leaf *node, s *tcp.Sample, out learn.Outcome) {
	arm, by := s.Arm, heldBy(s)
	if by != learn.NotHeld {
		for m := leaf; m != nil; m = m.parent {
			e.opt.Learner.ObserveHoldOut(&m.belief, out)
			e.moved(m, tcp.CC{})
		}
		// A slice held out is one with the default for an arm, if the rule sets nothing
		// else. What the application chose is not the default. In mode observe there is
		// nothing but the default.
		isDefault := by == learn.HeldSlice && leaf.rule.rule.Set.Mask() == 0 && e.offered.def != (tcp.CC{})
		if s.CC == (tcp.CC{}) || !isDefault && !e.observe {
			return
		}
		arm = s.CC
	}
	from := leaf.policyNode()
	arms := from.policy.arms.list()
	out.Greedy = from.best >= 0 && int(from.best) < len(arms) && arms[from.best] == arm
	for m := leaf; m != nil; m = m.parent {
		if m.belief.Arms == nil { // exactly as many as there will be: memory counts
			m.belief.Arms = make([]learn.ArmBelief, 0, max(1, len(arms)))
		}
		switch {
		case m == leaf:
			e.opt.Learner.Observe(&m.belief, arm, out)
		case m.isRoot():
			e.observeRoot(leaf, m, arm, out)
		default:
			learn.ObserveParent(e.opt.Learner, &leaf.belief, &m.belief, arm, out)
		}
		e.admit(m)
		e.moved(m, arm)
	}
	e.totals.ObserveCount++
}

// rootHalfLife is the time in which what a path told counts half, nanoseconds, as
// learn.ThompsonOptions.HalfLife.
const rootHalfLife = 6 * 3600 * 1e9

// observeRoot folds an outcome into what a rule believes of all its paths. The hosts of one
// path are one voice there, and no path has a large one: what nobody has met yet would
// else be given what the busiest network likes, or somebody who has many addresses.
func (e *Engine) observeRoot(leaf, root *node, arm tcp.CC, out learn.Outcome) {
	path := leaf
	if path.parent != root {
		path = path.parent
		out.Weight /= float64(max(1, path.kids))
	}
	out.AtOnce = 0 // of one path
	path.rootEvidence *= math.Exp2(-max(0, float64(out.At-path.rootEvidenceAt)) / rootHalfLife)
	path.rootEvidenceAt = max(path.rootEvidenceAt, out.At)
	if path.rootEvidence < learn.OnePath {
		path.rootEvidence += learn.ObserveParent(e.opt.Learner, &leaf.belief, &root.belief, arm, out)
	}
}

// heldBy says how a connection was held out.
func heldBy(s *tcp.Sample) learn.HeldBy {
	switch {
	case !s.Has(tcp.FlagHoldOut):
		return learn.NotHeld
	case s.Has(tcp.FlagHeldSlice):
		return learn.HeldSlice
	}
	return learn.HeldConnection
}
