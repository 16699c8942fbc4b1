package engine

import (
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Observe folds one sample into what is known of its path. It does not keep s.
func (e *Engine) Observe(s *tcp.Sample) {
	e.mu.Lock()
	defer e.mu.Unlock()

	if int(s.Kind) < len(e.kinds) {
		e.kinds[s.Kind]++
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
	n := e.node(rs, scope, addr, s.Kind != tcp.KindFailedConnect)
	if n == nil {
		e.ignored[learn.FailedConnect]++
		return
	}
	leaf := n
	if h := e.host(n, addr); h != nil {
		leaf = h
		e.seen(h, s)
	}
	e.seen(n, s)
	e.watchECN(leaf, s)
	out, why := learn.Reward(rs.rule.Learn.Objective, s, leaf.belief.MinRTT)
	switch {
	case why != learn.Scored:
		e.ignored[why]++
	case s.Arm == (tcp.CC{}) && !s.Has(tcp.FlagHoldOut):
		e.noArm++
	default:
		if leaf == n {
			if h := e.makeHost(n, addr); h != nil {
				leaf = h
				e.seen(h, s)
			}
		}
		e.score(leaf, s, out)
	}
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
	by := heldBy(s)
	if e.slices && (e.observe || by != learn.HeldConnection) {
		out.Slice = s.At >> leaf.sliceShift()
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
		if m == leaf {
			e.opt.Learner.Observe(&m.belief, arm, out)
		} else {
			learn.ObserveParent(e.opt.Learner, &leaf.belief, &m.belief, arm, out)
		}
		e.moved(m, arm)
	}
	e.watch(leaf, s, out)
	e.totals.ObserveCount++
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
