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
		e.stoodFor[s.Kind] += uint64(max(1, s.StandsFor))
	}
	rs := e.byClass[s.Class]
	if rs == nil {
		e.totals.Unattributed++
		return
	}
	rs.samples++
	if rs.rule.Learn == nil {
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
	if s.Has(tcp.FlagECN) && s.DeliveredCE > 0 && !n.ecn {
		n.ecn = true
		e.urge(n)
	}
}

// score folds an outcome into a path, and into the prefixes around it.
func (e *Engine) score(leaf *node, s *tcp.Sample, out learn.Outcome) {
	leaf.lived(s)
	if s.Has(tcp.FlagHoldOut) {
		for m := leaf; m != nil; m = m.parent {
			e.opt.Learner.ObserveHoldOut(&m.belief, out)
			m.held.add(out)
			e.moved(m, s.Arm)
		}
		e.watch(leaf, s, out)
		return
	}
	if e.slices {
		out.Slice = s.At >> leaf.sliceShift()
	}
	giver := leaf.giver()
	arms := giver.policy.arms.list()
	out.Greedy = giver.best >= 0 && int(giver.best) < len(arms) && arms[giver.best] == s.Arm
	for m := leaf; m != nil; m = m.parent {
		if m.belief.Arms == nil { // exactly as many as there will be: memory counts
			m.belief.Arms = make([]learn.ArmBelief, 0, max(1, len(arms)))
		}
		if m == leaf {
			e.opt.Learner.Observe(&m.belief, s.Arm, out)
		} else {
			learn.ObserveParent(e.opt.Learner, &leaf.belief, &m.belief, s.Arm, out)
		}
		m.treated.add(out)
		e.moved(m, s.Arm)
	}
	e.watch(leaf, s, out)
	e.totals.ObserveCount++
}
