package engine

import (
	"math"
	"time"

	"github.com/tcpilot/tcpilot/internal/guard"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// runGuards passes an outcome to the guards of a path, and retires the arm on the path if a
// guard decides so.
func (e *Engine) runGuards(n *node, s *tcp.Sample, out learn.Outcome) {
	if !(out.Weight > 0) || math.IsInf(out.Reward, 0) || math.IsNaN(out.Reward) {
		return
	}
	holdOut := s.Has(tcp.FlagHoldOut)
	switch {
	case !holdOut && n.retired.Retires(s.Arm, s.At):
		return // the connection began before the retirement
	case n.guard == nil && !holdOut && !n.marks.proven:
		return // nothing to compare with yet; saves the memory on most paths
	}
	var goodput learn.Outcome
	if n.rule.rule.Learn.Objective != learn.Throughput {
		goodput, _ = learn.Goodput(s)
		goodput.Slice = out.Slice
	}
	if a := n.guardAt(s.At).Add(s, out, goodput); a != nil {
		e.judge(n, a, s.At)
	}
}

// guardAt returns the guards' state of a path; a new one if the path changed.
func (n *node) guardAt(now int64) *guard.State {
	if !n.guard.Current(n.belief.Changes) {
		n.guard = guard.New(now, n.belief.Changes)
	}
	return n.guard
}

// judge retires an arm on a path if a guard decides so.
func (e *Engine) judge(n *node, a *guard.Arm, now int64) {
	if which, why := n.guard.Judge(a, n.marks.proven && e.arms.offered.needsECN(a.CC)); why != "" {
		e.retire(n, a.CC, which, why, now)
	}
}

// retire retires an arm on a path for a limited time, and resets the guards' state.
func (e *Engine) retire(n *node, cc tcp.CC, which guard.Kind, why string, now int64) {
	until := n.retired.Add(cc, which, why, now)
	n.guard = nil
	if which == guard.MarksLost {
		n.marks = marks{}
	}
	e.retirements[which]++
	e.log.Warn("arm retired on a path", "cc", cc, "rule", n.rule.rule.Name, "path", n.key.path().Prefix,
		"reason", policy.ArmRetired, "guard", which, "why", why, "for", time.Duration(until-now))
	e.queue.markUrgent(n)
}

// retiredFor lists the arms that must not be used on a path now.
func (e *Engine) retiredFor(n *node, now int64) []tcp.CC {
	if len(n.retired) == 0 {
		return e.arms.retired
	}
	e.unusable = append(e.unusable[:0], e.arms.retired...)
	for i := range n.retired {
		if n.retired[i].InForce(now) {
			e.unusable = append(e.unusable, n.retired[i].CC)
		}
	}
	return e.unusable
}
