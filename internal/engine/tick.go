package engine

import (
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

const (
	// writeBatch bounds the rows of one write, and so the memory for them: half a
	// kilobyte each.
	writeBatch = 256
	// retryPause is the time between two tries while writes to the sink fail.
	retryPause = int64(time.Second)
	// leastRenewals is how many unchanged policies one tick may renew; it renews more if
	// they would expire otherwise.
	leastRenewals = 500
	// tickPause is the longest pause between two ticks that renewals allow for.
	tickPause = time.Second

	// pace is the least time between two decisions about one path, so that a busy path is
	// not decided on after each of its connections.
	pace = int64(50 * time.Millisecond)
	// copyPace is the least time between two such decisions about the paths that copy the arms
	// of their rule's root: there may be many.
	copyPace = int64(10 * time.Second)
	// settledAt is the number of observations, since a path was first seen or changed,
	// from which the decision after another outcome of the best arm goes to Engine.later,
	// unless the sum of the change detector is urgentSum or more (a quarter of its limit,
	// see learn).
	settledAt = 16
	urgentSum = 1.5
	// laterRate is how many decisions a second are made about the paths in Engine.later: at
	// 2.5 us each, about a thousandth of a core. At lower rates they do not wait.
	laterRate = 500

	// sameShare is the greatest difference of shares, in 1/65536, that is not written.
	sameShare = policy.One / 256
)

// Tick decides on the paths that changed, renews policies before they expire, and writes
// the differences. A path that was decided on less than pace ago, or in the current slice,
// may have to wait for a later tick. now is in Unix nanoseconds.
func (e *Engine) Tick(now int64) {
	e.writing.Lock()
	defer e.writing.Unlock()
	if e.beginTick(now) {
		_ = e.settle(now, false) // counted, logged, and tried again
	}
}

// beginTick reports whether there is anything to do.
func (e *Engine) beginTick(now int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now < e.retryAt && e.retryAt-now <= retryPause {
		return false
	}
	e.releaseDeferred(now, false)
	return len(e.dirty)+len(e.later)+len(e.removed) > 0 || e.due(now)
}

// Settle is a Tick in which no path has to wait. Failed writes are counted, logged, and
// tried again by a later tick; the error reports them.
func (e *Engine) Settle(now int64) error {
	e.writing.Lock()
	defer e.writing.Unlock()
	return e.settleAll(now)
}

// settleAll is Settle for callers that hold e.writing.
func (e *Engine) settleAll(now int64) error {
	e.mu.Lock()
	e.releaseDeferred(now, true)
	e.mu.Unlock()
	return e.settle(now, true)
}

// due reports whether a policy must be renewed: half of its time is over.
func (e *Engine) due(now int64) bool {
	n := e.byWrite.first
	return n != nil && !e.fresh(n, now)
}

// fresh reports whether more than half of the time of n's policy is left. If more than
// all of it is left, the clock was set back: then the policy is not fresh, because the
// kernel uses another clock.
func (e *Engine) fresh(n *node, now int64) bool {
	left := n.expires - now
	return left > int64(e.opt.TTL)/2 && left <= int64(e.opt.TTL)
}

// renew marks the policies that are due, in the order in which they expire.
func (e *Engine) renew(now int64) {
	// All rows are renewed within half of their time; twice that rate catches up.
	most := max(leastRenewals, int(4*int64(e.byWrite.len)*int64(tickPause)/int64(e.opt.TTL)))
	for range most {
		if !e.due(now) {
			return
		}
		n := e.byWrite.first
		e.byWrite.remove(n)
		n.expires = 0
		e.mark(n)
	}
}

// beginRound takes the nodes to decide on now. During the round, nodes that have to wait,
// or whose write failed, are marked for the next one.
func (e *Engine) beginRound(now int64) {
	e.renew(now)
	e.updateCopies(now)
	e.deciding, e.dirty, e.spare = e.dirty, e.spare[:0], nil
	e.allowance = min(laterRate, e.allowance+laterRate*max(0, float64(now-e.allowed)*1e-9))
	e.allowed = now
}

// updateCopies decides again on paths that have a row of their own, because values are adapted to
// them, and no observations of arms: their arms are a copy of the root's.
func (e *Engine) updateCopies(now int64) {
	var due []*ruleState
	for _, rs := range e.byRule {
		if rs.copiesDue && now-rs.copiedAt >= copyPace {
			rs.copiesDue, rs.copiedAt = false, now
			due = append(due, rs)
		}
	}
	if due == nil {
		return
	}
	e.cache.byUse.each(func(n *node) {
		if n.id != 0 && n.belief.Count == 0 && !n.isRoot() && slices.Contains(due, n.rule) {
			e.mark(n)
		}
	})
}

// decideSome decides on paths until a batch of rows is full, or the round is done. In the
// second case the batch is not full.
func (e *Engine) decideSome(now int64, all bool) {
	i := 0
	for ; i < len(e.deciding) && len(e.batch) < writeBatch; i++ {
		n := e.deciding[i]
		n.dirty = false
		switch {
		case n.gone:
		case !all && e.inSlice(n, now):
			e.deferNode(n, false)
		case !all && tooSoon(n, now, e.stamp):
			e.mark(n)
		default:
			e.decideNow(n, now)
		}
	}
	e.deciding = e.deciding[i:]
	e.decideLater(now, all)
}

// decideLater decides on the paths of Engine.later in order, as long as the allowance
// lasts.
func (e *Engine) decideLater(now int64, all bool) {
	i := 0
	for ; i < len(e.later) && len(e.batch) < writeBatch && (all || e.allowance >= 1); i++ {
		n := e.later[i]
		switch {
		case !n.queued || n.gone:
		case !all && e.inSlice(n, now):
			n.queued = false
			e.deferNode(n, true)
		default:
			e.decideNow(n, now)
			e.allowance--
		}
	}
	e.allowance = max(0, e.allowance)
	if e.later = e.later[i:]; len(e.later) == 0 {
		e.later = nil
	}
}

func (e *Engine) decideNow(n *node, now int64) {
	n.queued, n.deferred = false, false
	if en, write := e.decide(n, now); write {
		e.batch = append(e.batch, en)
		e.batched = append(e.batched, n)
	}
}

// endRound marks again the nodes that were not decided on because a write failed.
func (e *Engine) endRound(round []*node) {
	for _, n := range e.deciding {
		n.dirty = false
		e.mark(n)
	}
	clear(round)
	e.deciding, e.spare = nil, round[:0]
}

// tooSoon reports whether n was decided on less than pace ago, and only outcomes have come
// since. A change of the path, or of something that all paths depend on, never waits.
func tooSoon(n *node, now int64, stamp uint32) bool {
	since := now - n.decided
	return settled(n, stamp) && since >= 0 && since < pace
}

// settled reports whether only outcomes have come since n was decided on.
func settled(n *node, stamp uint32) bool {
	return n.expires != 0 && n.stamp == stamp && n.changes == n.belief.Changes
}

// canWait reports whether a decision after an outcome of arm is not urgent: the path has
// enough observations, arm is its best, and the outcomes are as expected.
func (n *node) canWait(arm tcp.CC) bool {
	b := &n.belief
	if n.expires == 0 || n.changes != b.Changes || b.Count-b.ChangedAt < settledAt {
		return false
	}
	if b.Pooled {
		return !n.isRoot()
	}
	arms := n.policy.arms.list()
	if n.best < 0 || int(n.best) >= len(arms) || arms[n.best] != arm {
		return false
	}
	for i := range b.Arms {
		if b.Arms[i].CC == arm {
			return b.Arms[i].Down.Sum < urgentSum
		}
	}
	return false
}

// decide returns the row to write for n; write is false if the row in the kernel is the
// same and fresh.
func (e *Engine) decide(n *node, now int64) (en path.Entry, write bool) {
	if n.rule.rule.Leave {
		return en, false
	}
	n.decided, n.stamp, n.changes = now, e.stamp, n.belief.Changes
	if e.leftToParent(n, now) {
		return en, false
	}
	d := policy.Decide(e.input(n, now))
	n.reason, n.best = d.Reason, int8(d.Best)
	w := e.writtenOf(n.rule, &d.Policy)
	if n.id != 0 && e.fresh(n, now) && w.same(&n.policy) {
		return en, false
	}
	e.reasons[d.Reason]++
	if e.ids++; e.ids == 0 {
		e.ids = 1 // 0 is no policy
	}
	if n.id == 0 {
		n.rowAt = now
	}
	if n.isRoot() && len(n.rule.rule.Adapt) > 0 {
		n.rule.copiesDue = true
	}
	n.id, n.policy, n.expires = e.ids, w, now+int64(e.opt.TTL)
	e.byWrite.remove(n)
	e.byWrite.pushBack(n)
	return path.Entry{Key: n.key.path(), ID: n.id, Expires: n.expires, Rule: n.rule.rule.Name, Policy: d.Policy}, true
}

// leftToParent reports whether n has no row of its own, because nothing is known of it, and
// removes the row that it may have had. Then the kernel matches the row of an ancestor,
// which stays up to date, as a copy would not.
func (e *Engine) leftToParent(n *node, now int64) bool {
	if n.belief.Count > 0 || n.left != nil || n.key == rootKey(n.key.class, 0) || e.hasOwnPolicy(n, now) {
		return false
	}
	if n.id != 0 {
		e.removed = append(e.removed, n.key)
		e.byWrite.remove(n)
	}
	n.id, n.rowAt, n.expires, n.policy, n.best = 0, 0, 0, written{}, -1
	n.reason = policy.NewPath
	if e.parentBelief(n) != nil {
		n.reason = policy.Inherited
	}
	return true
}

// hasOwnPolicy reports whether n gets another policy than its parent although it has no
// observations: other arms, or values adapted to it.
func (e *Engine) hasOwnPolicy(n *node, now int64) bool {
	return n.ecn && !slices.Equal(e.offered.plain, e.armsFor(n)) ||
		n.rule.rule.Adapted(&n.metrics, n.first, n.policy.adapted, now) != (policy.Adapted{})
}

// writtenOf returns the part of a policy that is needed to compare it with the next one.
func (e *Engine) writtenOf(rs *ruleState, p *path.Policy) written {
	if fixed := p.Params.Without(p.Adapted); fixed != rs.params {
		rs.params = fixed
		rs.paramStamp++
	}
	w := written{holdOut: p.HoldOut, slices: p.HoldSlices, slice: p.Slice, params: rs.paramStamp, adapted: policy.AdaptedIn(p), windowExpires: p.WindowExpires,
		switchFrom: p.SwitchFrom, switchTo: p.SwitchTo}
	set := armSet{num: p.NumArms}
	for i := range p.NumArms {
		set.cc[i], set.isDefault[i], w.weights[i] = p.Arms[i].CC, p.Arms[i].Default, p.Arms[i].Weight
	}
	for _, s := range e.armSets {
		if *s == set {
			w.arms = s
			return w
		}
	}
	w.arms = new(armSet) // not &set, which would then be allocated for every decision
	*w.arms = set
	e.armSets = append(e.armSets, w.arms)
	return w
}

// same reports whether the policies are equal, apart from differences of shares that are
// too small to be written.
func (w *written) same(o *written) bool {
	if w.arms != o.arms || w.holdOut != o.holdOut || w.slice != o.slice || w.params != o.params || w.adapted != o.adapted ||
		w.switchFrom != o.switchFrom || w.switchTo != o.switchTo || policy.WindowRenewed(o.windowExpires, w.windowExpires) {
		return false
	}
	// The hold-out share of a new path falls with each outcome: a change by an eighth or
	// less is not written.
	if a, b := w.slices, o.slices; (a == 0) != (b == 0) || max(a, b)-min(a, b) > max(a, b)/8 {
		return false
	}
	for i := range w.weights {
		a, b := w.weights[i], o.weights[i]
		if (a == 0) != (b == 0) || max(a, b)-min(a, b) > sameShare {
			return false
		}
	}
	return true
}

// input collects the input of a decision about n.
func (e *Engine) input(n *node, now int64) *policy.Input {
	in := &e.in
	in.Rule = n.rule.rule
	in.Arms, in.ByName, in.Default = e.armsFor(n), e.offered.byName, e.offered.def
	in.Retired = e.retiredFor(n, now)
	in.LeftToDefault = n.leftToDefault(now)
	in.Belief, in.Metrics, in.Adapted = &n.belief, &n.metrics, n.policy.adapted
	in.First, in.Root = n.first, n.isRoot()
	in.Parent = e.parentBelief(n)
	if in.Now, in.Slice = now, 0; e.slices || n.fixed() {
		in.Slice = n.sliceShift()
	}
	e.addRollout(in, n.rule)
	return in
}

// parentBelief is the belief of the nearest ancestor of n with any observation; nil if
// there is none.
func (e *Engine) parentBelief(n *node) *learn.Belief {
	for up := n.parent; up != nil; up = up.parent {
		if up.belief.Count > 0 {
			return &up.belief
		}
	}
	return nil
}
