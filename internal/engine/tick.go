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
	// retryPause is the time between two tries while the sink refuses.
	retryPause = int64(time.Second)
	// leastRenewals is how many policies one tick may renew only since time has
	// passed; more where they would otherwise expire first.
	leastRenewals = 500
	// tickPause is the longest pause between two ticks that renewals allow for.
	tickPause = time.Second

	// pace is the time between two decisions about one path, that a path of many
	// connections is not decided on after each of them.
	pace = int64(50 * time.Millisecond)
	// settledAt is the number of outcomes, since a path was first seen or changed,
	// from which one more of the best arm can wait its turn, and urgentSum the sum of
	// the change detector (a quarter of its limit, see learn) from which not.
	settledAt = 16
	urgentSum = 1.5
	// laterRate is how many decisions a second are made about paths that can wait: at
	// 2.5 us each, about a thousandth of a core. What comes more seldom than that is
	// decided at once.
	laterRate = 500

	// sameShare is a difference of shares, in 1/65536, that is not worth a write.
	sameShare = policy.One / 256
)

// Tick decides on the paths of which something changed, renews what is about to
// expire, and writes the difference. A path that was decided on just now may have
// to wait for a later tick. now is in Unix nanoseconds.
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
	e.release(now, false)
	return len(e.dirty)+len(e.later)+len(e.removed) > 0 || e.due(now)
}

// Settle is a Tick that lets no path wait. What could not be written is counted,
// logged, and tried again by a later tick; the error says that it is not there yet.
func (e *Engine) Settle(now int64) error {
	e.writing.Lock()
	defer e.writing.Unlock()
	return e.settleAll(now)
}

// settleAll is Settle for who holds e.writing.
func (e *Engine) settleAll(now int64) error {
	e.mu.Lock()
	e.release(now, true)
	e.mu.Unlock()
	return e.settle(now, true)
}

// due reports whether a policy wants renewal: half of its time is over.
func (e *Engine) due(now int64) bool {
	n := e.byWrite.first
	return n != nil && !e.fresh(n, now)
}

// fresh: more than half of the time of n's policy is left. More than all of it is
// not: the clock was set back, and the kernel counts on another one.
func (e *Engine) fresh(n *node, now int64) bool {
	left := n.expires - now
	return left > int64(e.opt.TTL)/2 && left <= int64(e.opt.TTL)
}

// renew marks what is due, in the order in which it expires.
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

// beginRound takes what is to be decided on now. What has to wait, or fails, is marked
// again meanwhile.
func (e *Engine) beginRound(now int64) {
	e.renew(now)
	e.deciding, e.dirty, e.spare = e.dirty, e.spare[:0], nil
	e.allowance = min(laterRate, e.allowance+laterRate*max(0, float64(now-e.allowed)*1e-9))
	e.allowed = now
}

// decideSome decides on paths until a batch of rows is full, or all that the round has
// are decided on: then it is not full.
func (e *Engine) decideSome(now int64, all bool) {
	i := 0
	for ; i < len(e.deciding) && len(e.batch) < writeBatch; i++ {
		n := e.deciding[i]
		n.dirty = false
		switch {
		case n.gone:
		case !all && e.inSlice(n, now):
			e.hold(n, false)
		case !all && tooSoon(n, now, e.stamp):
			e.mark(n)
		default:
			e.decideNow(n, now)
		}
	}
	e.deciding = e.deciding[i:]
	e.decideLater(now, all)
}

// decideLater takes those that can wait, in their order, as far as the allowance
// goes.
func (e *Engine) decideLater(now int64, all bool) {
	i := 0
	for ; i < len(e.later) && len(e.batch) < writeBatch && (all || e.allowance >= 1); i++ {
		n := e.later[i]
		switch {
		case !n.waits || n.gone:
		case !all && e.inSlice(n, now):
			n.waits = false
			e.hold(n, true)
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
	n.waits, n.onHold = false, false
	if en, write := e.decide(n, now); write {
		e.batch = append(e.batch, en)
		e.batched = append(e.batched, n)
	}
}

// endRound puts off what was not decided on, because a write failed.
func (e *Engine) endRound(round []*node) {
	for _, n := range e.deciding {
		n.dirty = false
		e.mark(n)
	}
	clear(round)
	e.deciding, e.spare = nil, round[:0]
}

// tooSoon: the policy of n is in the kernel, and younger than one more outcome is
// worth. A change of the path, or of what all paths depend on, never waits.
func tooSoon(n *node, now int64, stamp uint32) bool {
	since := now - n.decided
	return settled(n, stamp) && since >= 0 && since < pace
}

// settled: nothing but outcomes has happened since n was decided on.
func settled(n *node, stamp uint32) bool {
	return n.expires != 0 && n.stamp == stamp && n.changes == n.belief.Changes
}

// canWait reports whether an outcome of arm is little news to n: what it has is
// well known, of its best arm, and as expected.
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

// decide returns the row to write for n; write is false if what the kernel has
// is right and fresh enough.
func (e *Engine) decide(n *node, now int64) (en path.Entry, write bool) {
	if n.rule.rule.Leave {
		return en, false
	}
	n.decided, n.stamp, n.changes = now, e.stamp, n.belief.Changes
	if e.leftToParent(n) {
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
	n.id, n.policy, n.expires = e.ids, w, now+int64(e.opt.TTL)
	e.byWrite.remove(n)
	e.byWrite.pushBack(n)
	return path.Entry{Key: n.key.path(), ID: n.id, Expires: n.expires, Policy: d.Policy}, true
}

// leftToParent: a path of which nothing is known has no row of its own. What
// encloses it matches then, and unlike a copy of it that stays up to date.
func (e *Engine) leftToParent(n *node) bool {
	ownArms := n.ecn && !slices.Equal(e.offered.plain, e.armsFor(n))
	if n.belief.Count > 0 || ownArms || n.back != nil || n.key == rootKey(n.key.class, 0) {
		return false
	}
	if n.id != 0 {
		e.removed = append(e.removed, n.key)
		e.byWrite.remove(n)
	}
	n.id, n.expires, n.policy, n.best = 0, 0, written{}, -1
	n.reason = policy.NewPath
	if e.parentBelief(n) != nil {
		n.reason = policy.Inherited
	}
	return true
}

// writtenOf notes what is needed to tell whether the next policy differs.
func (e *Engine) writtenOf(rs *ruleState, p *path.Policy) written {
	if p.Params != rs.params {
		rs.params = p.Params
		rs.paramStamp++
	}
	w := written{holdOut: p.HoldOut, slices: p.HoldSlices, slice: p.Slice, params: rs.paramStamp}
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

// same reports whether connections would not notice the difference.
func (w *written) same(o *written) bool {
	if w.arms != o.arms || w.holdOut != o.holdOut || w.slice != o.slice || w.params != o.params {
		return false
	}
	// What is held out of a new path falls with each outcome: an eighth is no news.
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

// input collects what a decision about n is made from.
func (e *Engine) input(n *node, now int64) *policy.Input {
	in := &e.in
	in.Rule = n.rule.rule
	in.Arms, in.ByName, in.Default = e.armsFor(n), e.offered.byName, e.offered.def
	in.Retired = e.retiredFor(n, now)
	in.Back = n.leftToDefault(now)
	in.Belief = &n.belief
	in.Parent = e.parentBelief(n)
	if in.Now, in.Slice = now, 0; e.slices {
		in.Slice = n.sliceShift()
	}
	e.heldBack(in, n.rule)
	return in
}

// parentBelief is of the nearest around n that knows anything.
func (e *Engine) parentBelief(n *node) *learn.Belief {
	for up := n.parent; up != nil; up = up.parent {
		if up.belief.Count > 0 {
			return &up.belief
		}
	}
	return nil
}
