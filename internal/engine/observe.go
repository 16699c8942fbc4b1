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
		return
	}
	scope := uint64(0)
	if rs.rule.Learn.OwnScope {
		scope = s.NetNS
	}
	n := e.node(rs, scope, s.Remote.Addr())
	leaf := n
	if h := e.host(n, s.Remote.Addr()); h != nil {
		leaf = h
		e.seen(h, s)
	}
	e.seen(n, s) // last, so that a path is never forgotten before its hosts
	out, why := learn.Reward(rs.rule.Learn.Objective, s, leaf.belief.MinRTT)
	if why != learn.Scored {
		e.ignored[why]++
		return
	}
	if leaf == n {
		if h := e.makeHost(n, s.Remote.Addr()); h != nil {
			leaf = h
			e.seen(h, s)
			e.touch(n, s.At)
		}
	}
	e.score(leaf, s, out)
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
		e.mark(n)
	}
}

// score folds an outcome into a path, and into the prefixes around it.
func (e *Engine) score(leaf *node, s *tcp.Sample, out learn.Outcome) {
	if s.Has(tcp.FlagHoldOut) {
		for m := leaf; m != nil; m = m.parent {
			e.opt.Learner.ObserveHoldOut(&m.belief, out)
			m.heldSum, m.heldN = discounted(m.heldSum, m.heldN, out)
			e.changed(m)
		}
		return
	}
	if s.Arm == (tcp.CC{}) {
		e.noArm++
		return
	}
	out.Greedy = leaf.best >= 0 && int(leaf.best) < int(leaf.policy.num) && leaf.policy.arms[leaf.best].CC == s.Arm
	e.opt.Learner.Observe(&leaf.belief, s.Arm, out)
	e.totals.ObserveCount++
	for m := leaf; m != nil; m = m.parent {
		if m != leaf {
			learn.ObserveParent(e.opt.Learner, &leaf.belief, &m.belief, s.Arm, out)
		}
		m.treatedSum, m.treatedN = discounted(m.treatedSum, m.treatedN, out)
		e.changed(m)
	}
}

// comparisonMemory is the number of outcomes over which hold-out and treated
// connections are compared.
const comparisonMemory = 200

func discounted(sum, n float64, o learn.Outcome) (float64, float64) {
	keep := 1.0
	if n > comparisonMemory {
		keep = comparisonMemory / n
	}
	return sum*keep + o.Reward*o.Weight, n*keep + o.Weight
}

// changed notes that a node's belief moved.
func (e *Engine) changed(n *node) {
	e.mark(n)
	e.unsaved[n.key] = struct{}{}
}
