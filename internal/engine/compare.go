package engine

import (
	"fmt"
	"time"

	"github.com/tcpilot/tcpilot/internal/guard"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Every path, the prefix around it and its rule compare what their connections got with
// the hold-out. Where the default is better for certain, it is in use again, for a time
// that doubles if the same happens soon after.
//
// An arm's first trials on a path are not compared. They are few, and what the arm costs is
// known after them; those of a bad arm would otherwise leave a new path to the default
// before the good one is found. A prefix or a rule leaves them out as long as it has not
// met the arm twice itself.

// Back is a path, or a rule, that is left to the default.
type Back struct {
	Why   string `json:"why"`   // with figures
	Since int64  `json:"since"` // Unix ns
	Until int64  `json:"until"` // Unix ns; later it is tuned again
}

// compare folds an outcome into the comparisons with the hold-out.
func (e *Engine) compare(leaf *node, s *tcp.Sample, out learn.Outcome) {
	if leaf.rule.rule.Learn.HoldOut <= 0 && e.rollout(leaf.rule) == 1 || e.observe || leaf.leftToDefault(s.At) {
		return // nothing is held out, or nothing is treated
	}
	if leaf.compared == nil {
		leaf.compared = &learn.Comparison{}
	}
	by := heldBy(s)
	first := by == learn.NotHeld && leaf.belief.FirstTrial(s.Arm, out)
	for m := leaf.parent; m != nil; m = m.parent {
		if m.compared == nil {
			m.compared = &learn.Comparison{}
		}
		if !first || !m.belief.FirstTrial(s.Arm, out) {
			m.compared.AddRelative(leaf.compared, out, by)
		}
	}
	if first {
		by = learn.OnTrial
	}
	leaf.compared.Add(out, by)
	if !s.Has(tcp.FlagHoldOut) || e.armsOnly {
		return // most outcomes; the hold-out's come often enough to look
	}
	for m := leaf; m != nil; m = m.parent {
		if e.judgeDefault(m, s.At) {
			return
		}
	}
}

// judgeDefault acts where the default is better for certain, and reports whether it did.
// A rule that is being rolled out is taken back: it is the operator's to try again.
func (e *Engine) judgeDefault(n *node, now int64) bool {
	g := n.compared.Gain()
	switch {
	case !g.Worse():
		return false
	case n.isRoot() && n.key.scope == 0 && e.rollout(n.rule) < 1:
		n.compared = nil
		e.rollBack(n.rule, whyWorse(g), now)
	default:
		e.leaveToDefault(n, g, now)
	}
	return true
}

// leaveToDefault takes a path, or a rule, back to what its connections have without
// tcpilot, and has it compared anew once it is tuned again.
func (e *Engine) leaveToDefault(n *node, g learn.Gain, now int64) {
	var last Back
	if n.back != nil {
		last = *n.back
	}
	length := guard.BanLength(last.Since, last.Until, now)
	n.back = &Back{Why: whyWorse(g), Since: now, Until: now + length}
	n.compared = &learn.Comparison{}
	e.guarded[guard.WorseThanDefault]++
	e.log.Warn("left to the default", "rule", n.rule.rule.Name, "path", n.key.path().Prefix,
		"reason", policy.WorseThanDefault, "why", n.back.Why, "for", time.Duration(length))
	e.moved(n, tcp.CC{})
	e.urge(n)
	e.byUse.each(func(m *node) {
		if m.within(n) {
			e.urge(m)
		}
	})
}

func whyWorse(g learn.Gain) string {
	what := "single connections held out"
	if g.BySlice {
		what = "slices of time held out"
	}
	return fmt.Sprintf("connections were %.2f times as fast as with the default (95 %%: %.2f to %.2f), over %.0f slices of time and %.0f %s",
		g.Ratio, g.Low, g.High, g.Treated, g.HeldOut, what)
}

// within reports whether n lies in around.
func (n *node) within(around *node) bool {
	for n = n.parent; n != nil; n = n.parent {
		if n == around {
			return true
		}
	}
	return false
}

// leftNow is why a path, or what is around it, is left to the default now; nil if it is
// not.
func (n *node) leftNow(now int64) *Back {
	for ; n != nil; n = n.parent {
		if n.back != nil && now < n.back.Until {
			return n.back
		}
	}
	return nil
}

func (n *node) leftToDefault(now int64) bool { return n.leftNow(now) != nil }
