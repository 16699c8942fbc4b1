package engine

import (
	"math"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Observe folds one sample into what is known of its path. It does not keep s.
func (e *Engine) Observe(s *tcp.Sample) {
	e.mu.Lock()
	defer e.mu.Unlock()

	if int(s.Kind) < len(e.kinds) {
		e.kinds[s.Kind]++
		e.stoodFor[s.Kind] += uint64(max(1, s.StandsFor))
	}
	rs := e.byClass[s.Class]
	if rs == nil {
		e.totals.Unattributed++
		return
	}
	rs.samples++
	if rs.rule.Learn == nil {
		e.compareFixed(rs, s)
		return
	}
	scope := uint64(0)
	if rs.rule.Learn.OwnScope {
		scope = s.NetNS
	}
	addr := s.Remote.Addr().Unmap()
	n, minRTT := e.node(rs, scope, addr, false), uint32(0)
	leaf := n
	if n != nil {
		if h := e.host(n, addr); h != nil {
			leaf = h
			e.seen(h, s)
		}
		e.seen(n, s)
		e.watchECN(leaf, s)
		minRTT = leaf.belief.MinRTT
	}
	out, why := learn.Reward(rs.rule.Learn.Objective, s, minRTT)
	switch {
	case why != learn.Scored:
		e.ignored[why]++
		return
	case s.Arm == (tcp.CC{}) && !s.Has(tcp.FlagHoldOut):
		e.noArm++
		return
	case n == nil: // what never answered, or said nothing, is no path
		n = e.node(rs, scope, addr, true)
		e.seen(n, s)
		leaf = n
	}
	if leaf == n {
		if h := e.makeHost(n, addr); h != nil {
			leaf = h
			e.seen(h, s)
		}
	}
	e.score(leaf, s, out)
	e.evict() // last: it may forget any of them
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

// score folds an outcome into a path, and into the prefixes around it.
func (e *Engine) score(leaf *node, s *tcp.Sample, out learn.Outcome) {
	leaf.lived(s)
	out.AtOnce = leaf.lives().atOnce()
	by := heldBy(s)
	if e.slices {
		slice, edge := leaf.sliceOf(s)
		if edge && !e.observe {
			e.ignored[learn.SliceEdge]++
			return
		}
		if e.observe || by != learn.HeldConnection {
			out.Slice = slice
		}
	}
	e.compare(leaf, s, out, by)
	arm := s.Arm
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
			e.watch(leaf, s, out)
			return
		}
		arm = s.CC
	}
	giver := leaf.giver()
	arms := giver.policy.arms.list()
	out.Greedy = giver.best >= 0 && int(giver.best) < len(arms) && arms[giver.best] == arm
	for m := leaf; m != nil; m = m.parent {
		if m.belief.Arms == nil { // exactly as many as there will be: memory counts
			m.belief.Arms = make([]learn.ArmBelief, 0, max(1, len(arms)))
		}
		switch {
		case m == leaf:
			e.opt.Learner.Observe(&m.belief, arm, out)
		case m.isRoot():
			e.tellRoot(leaf, m, arm, out)
		default:
			learn.ObserveParent(e.opt.Learner, &leaf.belief, &m.belief, arm, out)
		}
		e.admit(m)
		e.moved(m, arm)
	}
	e.watch(leaf, s, out)
	e.totals.ObserveCount++
}

// toldHalf is the time in which what a path told counts half, nanoseconds, as
// learn.ThompsonOptions.HalfLife.
const toldHalf = 6 * 3600 * 1e9

// tellRoot folds an outcome into what a rule believes of all its paths. The hosts of one
// path are one voice there, and no path has a large one: what nobody has met yet would
// else be given what the busiest network likes, or somebody who has many addresses.
func (e *Engine) tellRoot(leaf, root *node, arm tcp.CC, out learn.Outcome) {
	path := leaf
	if path.parent != root {
		path = path.parent
		out.Weight /= float64(max(1, path.kids))
	}
	out.AtOnce = 0 // of one path
	path.told *= math.Exp2(-max(0, float64(out.At-path.toldAt)) / toldHalf)
	path.toldAt = max(path.toldAt, out.At)
	if path.told < learn.OnePath {
		path.told += learn.ObserveParent(e.opt.Learner, &leaf.belief, &root.belief, arm, out)
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
