package engine

import (
	"fmt"
	"time"

	"github.com/tcpilot/tcpilot/internal/guard"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Every path, its prefix and its rule (also each of its namespaces, if they learn for
// themselves) compare their connections with the hold-out. If the
// default is significantly better, the path gets the default again, for a time that
// doubles if the same happens again soon.
//
// An arm's first trials on a path are not compared by how long they take, unless slices are
// tested (testSlices): those of a bad arm would otherwise leave a new path to the default before a
// good arm is found. Their cost is bounded, because they are few. A prefix or a rule leaves them out
// until it has tried the arm twice itself.

// StoredLeftToDefault is a path, or a rule, that is left to the default.
type StoredLeftToDefault struct {
	Why   string `json:"why"`      // with figures
	Since int64  `json:"since_ns"` // Unix ns
	Until int64  `json:"until_ns"` // Unix ns; later it is tuned again
}

func (l *StoredLeftToDefault) inForce(now int64) bool { return guard.InForce(l.Since, l.Until, now) }

// comparisons compare the connections of a node with those held out.
type comparisons struct {
	compared *learn.Comparison    // by how long they take; nil before the first sample
	slices   *learn.SliceTest     // by slices of time, of a path on which many connections overlap; nil of others
	failures *learn.Failures      // by how many fail; nil before the first one failed
	left     *StoredLeftToDefault // nil unless the node was once left to the default
	running  *running             // what became of running connections; nil: none was to get another arm
}

// end drops them, and reports whether there were any.
func (c *comparisons) end() bool {
	was := *c
	*c = comparisons{}
	return was != *c
}

// compare updates the comparisons with the hold-out by an outcome.
func (e *Engine) compare(leaf *node, s *tcp.Sample, out learn.Outcome) {
	if !e.comparable(leaf.rule, s) || leaf.leftToDefault(s.At) {
		return // it is not comparable, or its path has the default now
	}
	if leaf.compared == nil {
		leaf.compared = &learn.Comparison{}
	}
	by := assignmentOf(s)
	out.Oversampled = e.oversampled(leaf)
	first := by == learn.Treated && leaf.belief.FirstTrial(s.Arm, out)
	leaveOut := first
	for m := leaf.above(); m != nil; m = m.above() {
		if m.compared == nil {
			m.compared = &learn.Comparison{}
		}
		if m.key.scope == leaf.key.scope { // beliefs are those of one namespace
			leaveOut = first && m.belief.FirstTrial(s.Arm, out)
		}
		if !leaveOut {
			m.compared.AddRelative(leaf.compared, out, by)
			e.saves.add(m) // no belief of it changes if it is the root of a rule whose namespaces learn for themselves
		}
	}
	if first {
		by = learn.OnTrial
	}
	leaf.compared.Add(out, by)
	from := leaf
	if leaf.longSlices() {
		if e.testSlices(leaf, s, out) {
			return
		}
		if leaf.slices.Follows(out.Slice, leaf.drawnFor()) {
			from = leaf.above()
		}
	}
	if !s.Has(tcp.FlagHoldOut) {
		return // judging at outcomes of the hold-out alone is often enough
	}
	for m := from; m != nil; m = m.above() {
		if e.judgeDefault(m, s.At) {
			return
		}
	}
}

// testSlices tests by an outcome whether a path with many connections at a time is slower than in the
// slices held out, and reports whether the path is left to the default for that.
func (e *Engine) testSlices(leaf *node, s *tcp.Sample, out learn.Outcome) (worse bool) {
	if leaf.slices == nil {
		leaf.slices = &learn.SliceTest{}
	}
	if by := assignmentOf(s); by != learn.HoldOutConnection && leaf.midSlice(s) {
		leaf.slices.Add(out, by == learn.HoldOutSlice, leaf.heldSlices())
	}
	if worse = leaf.slices.Worse(); worse {
		e.backToDefault(leaf, whySlower(leaf.slices), s.At)
	}
	return worse
}

// heldSlices is the share of slices that the kernel holds out on a path now.
func (n *node) heldSlices() float64 { return float64(n.policyNode().policy.slices) / policy.One }

// moreHeldOut is policy.Input.MoreHeldOut of a path. The hosts of a network share the draws of its slices, so
// that they have one share: if more were held out of one host, its slices held out would be
// others' treated ones.
func (n *node) moreHeldOut() float64 {
	if n.slices == nil || !n.longSlices() || n.sliceLifetimes() != &n.lifetimes {
		return 1
	}
	return n.slices.More()
}

// oversampled is learn.Outcome.Oversampled of a path: at most by what factor more of its slices are held
// out than are configured.
func (e *Engine) oversampled(leaf *node) float64 {
	more := leaf.moreHeldOut()
	if more == 1 {
		return 1 // as on most paths
	}
	usual := 1 - e.rollouts.share(leaf.rule.rule)*(1-leaf.rule.rule.Learn.HoldOut)
	if usual == 0 {
		return 1
	}
	return min(more, leaf.heldSlices()/usual)
}

// comparable reports whether the connection of a sample was assigned to a group by the rule as it
// is now. One that got an earlier default may live on for long.
func (e *Engine) comparable(rs *ruleState, s *tcp.Sample) bool {
	return e.rollouts.holdsOut(rs.rule) && rs.root != nil && s.PolicyID != 0 && s.Class == rs.class && !s.Has(tcp.FlagAdopted) &&
		!e.baseline.predates(s)
}

// baseline has the default that connections are compared with, which is the last one that was known,
// and the one before it.
type baseline struct{ now, former tcp.CC }

// set notes the host's default; zero: not known. It reports whether the default is another one than
// connections were compared with.
func (b *baseline) set(def tcp.CC) (changed bool) {
	if def == (tcp.CC{}) || def == b.now {
		return false
	}
	b.former, b.now = b.now, def
	return b.former != (tcp.CC{})
}

// predates reports whether a connection got the former default.
func (b *baseline) predates(s *tcp.Sample) bool {
	return s.CC == b.former && s.CC != (tcp.CC{}) && s.Flags&(tcp.FlagHoldOut|tcp.FlagDefaultArm) != 0
}

// endComparisons ends the comparisons of some nodes, and what followed from them, because what is
// compared has changed. It is called for
//
//   - all nodes, if the default changes;
//   - the nodes of a rule (ruleState.has), if what it gives changes;
//   - the rule as a whole (hasAsAWhole), if only its conditions, or the share of its connections
//     that get it, change: of each path, the same connections are compared as before.
func (e *Engine) endComparisons(of func(*node) bool) {
	end := func(n *node) {
		if !of(n) {
			return
		}
		n.guard = nil
		if n.comparisons.end() {
			e.beliefChanged(n, tcp.CC{})
			e.queue.markUrgent(n)
		}
	}
	e.cache.byUse.each(end)
	for _, r := range e.rules.states {
		if r.root != nil {
			end(r.root)
		}
	}
}

// has reports whether n is a node of the rule.
func (rs *ruleState) has(n *node) bool { return n.rule == rs }

// hasAsAWhole reports whether the comparisons of n are about all connections of the rule, or of a
// variant of it, in one network namespace or in all: a variant is rolled out as its rule.
func (rs *ruleState) hasAsAWhole(n *node) bool {
	return n.isRoot() && (n.rule == rs || n.rule.rule.Of == rs.rule.Name)
}

// subject identifies what is compared: on a path, what the rule gives to its connections; of a
// rule as a whole, also which connections get it, and how many of them.
func (e *Engine) subject(n *node) string {
	if n.isRoot() {
		return fmt.Sprint(n.rule.fingerprint, " ", e.rollouts.share(n.rule.rule))
	}
	return n.rule.treatment
}

// judgeDefault returns a node to the default if that is significantly better, and reports
// whether it did.
func (e *Engine) judgeDefault(n *node, now int64) bool {
	g, worse := n.compared.Harm()
	if worse {
		e.backToDefault(n, whyWorse(g), now)
	}
	return worse
}

// backToDefault leaves a node to the default, because tcpilot does harm there. The partial
// rollout of a rule is set to 0 instead: only the operator starts it again.
func (e *Engine) backToDefault(n *node, why string, now int64) {
	if n.isRoot() && e.rollouts.share(n.rule.rule) < 1 {
		e.rollBack(n.rule, why, now)
		return
	}
	e.leaveToDefault(n, why, now)
}

// leaveToDefault returns a path, or a rule, to the kernel's defaults for a limited time, and
// resets its comparison.
func (e *Engine) leaveToDefault(n *node, why string, now int64) {
	var last StoredLeftToDefault
	if n.left != nil {
		last = *n.left
	}
	length := guard.Length(last.Until-last.Since, n.usedSince(last.Until, now))
	n.left = &StoredLeftToDefault{Why: why, Since: now, Until: now + length}
	n.compared, n.slices, n.failures = &learn.Comparison{}, nil, nil
	e.retirements[guard.WorseThanDefault]++
	e.log.Warn("left to the default", "rule", n.rule.rule.Name, "path", n.key.path().Prefix,
		"reason", policy.WorseThanDefault, "why", n.left.Why, "for", time.Duration(length))
	e.beliefChanged(n, tcp.CC{})
	e.queue.markUrgent(n)
	e.cache.byUse.each(func(m *node) {
		if m.within(n) {
			e.queue.markUrgent(m)
		}
	})
}

func whyWorse(g learn.Gain) string {
	return fmt.Sprintf("connections were %.2f times as fast as with the default (95 %%: %.2f to %.2f), over %.0f slices of time and %.0f %s held out",
		g.Ratio, g.Low, g.High, g.Treated, g.HeldOut, g.BySlice)
}

func whySlower(t *learn.SliceTest) string {
	const why = "slices of time were slower than those held out (error at most 5 %)"
	if t.HeldOut.N < 5 || t.Ratio() >= 1 { // small differences over a long time: the latest slices do not show them
		return why
	}
	return fmt.Sprintf("%s: %.2f times as fast in the last %.0f, of which %.0f were held out",
		why, t.Ratio(), t.Treated.N+t.HeldOut.N, t.HeldOut.N)
}

// above is the node that n is part of: its parent or, of a namespace's root, the rule's own.
func (n *node) above() *node {
	if n.parent != nil {
		return n.parent
	}
	if root := n.rule.root; root != n {
		return root
	}
	return nil
}

// within reports whether around is an ancestor of n.
func (n *node) within(around *node) bool {
	for n = n.above(); n != nil; n = n.above() {
		if n == around {
			return true
		}
	}
	return false
}

// usedSince is how long, of the time from until to now (Unix ns), no ancestor of n was left to the
// default, in nanoseconds. A rule with a single path has the same evidence as the path, and is often
// left to the default right after it. If that time counted, neither would be left for longer.
func (n *node) usedSince(until, now int64) int64 {
	used := now - until
	for a := n.above(); a != nil; a = a.above() {
		if a.left != nil {
			used -= max(0, min(a.left.Until, now)-max(a.left.Since, until))
		}
	}
	return used
}

// leftNow is why a path, or an ancestor of it, is left to the default now; nil if it is not.
func (n *node) leftNow(now int64) *StoredLeftToDefault {
	for ; n != nil; n = n.above() {
		if n.left != nil && n.left.inForce(now) {
			return n.left
		}
	}
	return nil
}

func (n *node) leftToDefault(now int64) bool { return n.leftNow(now) != nil }
