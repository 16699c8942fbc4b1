package engine

import (
	"cmp"
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

	// copyPace is the least time between two decisions about the paths that copy the arms of
	// their rule's root (updateCopies), because there may be many.
	copyPace = int64(10 * time.Second)
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
	if now < e.rows.retryAt && e.rows.retryAt-now <= retryPause {
		return false
	}
	e.queue.release(now, false)
	return !e.queue.empty() || len(e.rows.removed) > 0 || e.rows.due(now)
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
	e.queue.release(now, true)
	e.mu.Unlock()
	return e.settle(now, true)
}

// renew marks the policies that are due, in the order in which they expire.
func (e *Engine) renew(now int64) {
	// All rows are renewed within half of their time; twice that rate catches up.
	most := max(leastRenewals, int(4*int64(e.rows.byWrite.len)*int64(tickPause)/e.rows.ttl))
	for range most {
		if !e.rows.due(now) {
			return
		}
		n := e.rows.byWrite.first
		e.rows.byWrite.remove(n)
		n.expires = 0
		e.queue.mark(n)
	}
}

// updateCopies asks for decisions about the paths without observations that have a row of their own,
// for adapted values: their arms are a copy of the root's, whose row was written since.
func (e *Engine) updateCopies(now int64) {
	var due []*ruleState
	for _, rs := range e.rules.states {
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
			e.queue.mark(n)
		}
	})
}

// decideSome decides on paths until a batch of rows is full, or the round is done. In the
// second case the batch is not full.
func (e *Engine) decideSome(now int64, all bool) {
	for len(e.writer.batch) < writeBatch {
		n := e.queue.next(now, all)
		if n == nil {
			return
		}
		if en, write := e.decide(n, now); write {
			e.writer.batch = append(e.writer.batch, en)
			e.writer.batched = append(e.writer.batched, n)
		}
	}
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
	n.decided, n.stamp, n.changes = now, e.queue.stamp, n.belief.Changes
	if e.leftToParent(n, now) {
		return en, false
	}
	if expires := n.policy.windowExpires; expires != 0 {
		n.windowAt = min(now, expires)
	}
	d := policy.Decide(e.input(n, now))
	n.reason, n.best = d.Reason, int8(d.Best)
	w := e.rows.written(n.rule.paramsOf(&d.Policy), &d.Policy)
	if n.id != 0 && e.rows.fresh(n, now) && w.same(&n.policy) {
		return en, false
	}
	e.reasons[d.Reason]++
	if n.isRoot() && len(n.rule.rule.Adapt) > 0 {
		n.rule.copiesDue = true
	}
	adopt := w.followAll && !n.followsAll()
	e.rows.put(n, w, now)
	return path.Entry{Key: n.key.path(), ID: n.id, Expires: n.expires, Rule: n.rule.rule.Name, Policy: d.Policy, Adopt: adopt}, true
}

// followsAll reports whether the row that connections of n match follows all of them.
func (n *node) followsAll() bool {
	if row := n.policyNode(); row.id != 0 {
		return row.policy.followAll
	}
	return n.rule.rule.FollowsAll(nil, true, false)
}

// toFollow reports whether a row of n is to follow all of its connections.
func (e *Engine) toFollow(n *node, now int64) bool {
	return n.rule.rule.FollowsAll(&n.metrics, n.followsAll(), n.policy.adapted.Window != 0 || n.windowUsed(now)) && e.treats(n)
}

// watchesLosses reports whether the row that connections of n match watches their losses.
func (n *node) watchesLosses() bool {
	if row := n.policyNode(); row.id != 0 {
		return row.policy.watchLosses
	}
	return n.rule.rule.WatchesLosses(nil, true)
}

// toWatch reports whether a row of n is to watch losses.
func (e *Engine) toWatch(n *node) bool {
	return n.rule.rule.WatchesLosses(&n.metrics, n.followsAll() || n.policy.countFlows) && e.treats(n)
}

// countMemory is how long a path that is not used keeps a row only to count its connections.
const countMemory = 10 * time.Minute

// toCount reports whether n needs a row for the number of its connections that lose packets.
func (e *Engine) toCount(n *node, now int64) bool {
	return n.metrics.Policer.Uncounted && now-n.lastUsed < int64(countMemory) && e.toWatch(n)
}

// treats reports whether some connections of n's rule are given something.
func (e *Engine) treats(n *node) bool {
	return !e.rollouts.observe && e.rollouts.share(n.rule.rule) > 0
}

// windowMemory is how long all connections of a path are followed after a raised initial window was in use: windows come
// and go with the load of a path, and each time that all of its connections are to be followed, all sockets of the host
// are looked at.
const windowMemory = 10 * time.Minute

// windowUsed reports whether a raised initial window was in use lately.
func (n *node) windowUsed(now int64) bool {
	return n.windowAt != 0 && now-n.windowAt < int64(windowMemory)
}

// leftToParent reports whether n has no row of its own, because nothing is known of it, and
// removes the row that it may have had. Then the kernel matches the row of an ancestor,
// which stays up to date, as a copy would not.
func (e *Engine) leftToParent(n *node, now int64) bool {
	if n.belief.Count > 0 || n.left != nil || n.key == rootKey(n.key.class, 0) || e.hasOwnPolicy(n, now) {
		return false
	}
	e.withdraw(n)
	n.reason = policy.NewPath
	if e.parentBelief(n) != nil {
		n.reason = policy.Inherited
	}
	return true
}

// withdraw asks for the row of n to be deleted. Its connections get the row of an ancestor, which may follow all of them.
func (e *Engine) withdraw(n *node) {
	left := n.id != 0 && !n.policy.followAll
	e.rows.withdraw(n)
	e.rows.adopt = e.rows.adopt || left && n.followsAll()
}

// hasOwnPolicy reports whether n gets another policy than its parent although it has no
// observations: other arms, values adapted to it, or other connections that are followed or counted.
func (e *Engine) hasOwnPolicy(n *node, now int64) bool {
	up := cmp.Or(n.parent, n.rule.root)
	return up.followsAll() != e.toFollow(n, now) || up.watchesLosses() != e.toWatch(n) || e.toCount(n, now) || n.marks.proven && !slices.Equal(e.arms.offered.plain, e.arms.offered.suit(n)) ||
		n.rule.rule.Adapted(&n.metrics, n.first, n.policy.adapted, now) != (policy.Adapted{})
}

// input collects the input of a decision about n.
func (e *Engine) input(n *node, now int64) *policy.Input {
	in := &e.in
	in.Rule = n.rule.rule
	in.Arms, in.ByName, in.Default = e.arms.offered.suit(n), e.arms.offered.byName, e.arms.offered.def
	in.Retired = e.retiredFor(n, now)
	in.LeftToDefault, in.KeepRunning = n.leftToDefault(now), n.running.stoppedAt(now)
	in.Belief, in.Metrics, in.Adapted = &n.belief, &n.metrics, n.policy.adapted
	in.First, in.Root, in.Followed, in.Counted, in.WindowUsed = n.first, n.isRoot(), n.followsAll(), n.policy.countFlows, n.windowUsed(now)
	in.Parent = e.parentBelief(n)
	if in.Now, in.Slice = now, 0; e.slices || n.fixed() {
		in.Slice = n.sliceShift()
	}
	in.Many, in.MoreHeldOut = n.longSlices(), n.moreHeldOut()
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
