package engine

import (
	"errors"
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
	// from which one more of the best arm can wait its turn, and restless the sum of
	// the change detector (a quarter of its limit, see learn) from which not.
	settledAt = 16
	restless  = 1.5
	// unhurried is how many decisions a second are made about paths that can wait: at
	// 2.5 us each, about a thousandth of a core. What comes more seldom than that is
	// decided at once.
	unhurried = 500

	// sameShare is a difference of shares, in 1/65536, that is not worth a write.
	sameShare = policy.One / 256
)

// Tick decides on the paths of which something changed, renews what is about to
// expire, and writes the difference. A path that was decided on just now may have
// to wait for a later tick. now is in Unix nanoseconds.
func (e *Engine) Tick(now int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now < e.retryAt && e.retryAt-now <= retryPause {
		return
	}
	e.release(now, false)
	if len(e.dirty)+len(e.later)+len(e.removed) == 0 && !e.due(now) {
		return
	}
	_ = e.settle(now, false) // counted, logged, and tried again
}

// Settle is a Tick that lets no path wait. What could not be written is counted,
// logged, and tried again by a later tick; the error says that it is not there yet.
func (e *Engine) Settle(now int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.release(now, true)
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

func (e *Engine) settle(now int64, all bool) error {
	var begun time.Time
	if e.opt.Clock != nil { // only to measure; no decision depends on it
		begun = e.opt.Clock()
	}
	e.renew(now)
	err := errors.Join(e.decideDirty(now, all), e.deleteRemoved())
	e.noteWriting(now, err)
	e.totals.Ticks++
	if e.opt.Clock != nil {
		e.totals.TickSeconds += e.opt.Clock().Sub(begun).Seconds()
	}
	return err
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

func (e *Engine) decideDirty(now int64, all bool) (err error) {
	nodes := e.dirty
	e.dirty, e.wait = e.wait[:0], nil // what has to wait, or fails, is marked again meanwhile
	for _, n := range nodes {
		n.dirty = false
		switch {
		case n.gone:
		case err == nil && !all && e.inSlice(n, now):
			e.hold(n, false)
		case err != nil || !all && tooSoon(n, now, e.stamp):
			e.mark(n)
		default:
			err = e.decideNow(n, now)
		}
	}
	clear(nodes)
	e.wait = nodes[:0]
	if err == nil {
		err = e.decideLater(now, all)
	}
	return errors.Join(err, e.flush())
}

// decideLater takes those that can wait, in their order, as far as the allowance
// goes.
func (e *Engine) decideLater(now int64, all bool) (err error) {
	e.allowance = min(unhurried, e.allowance+unhurried*max(0, float64(now-e.allowed)*1e-9))
	e.allowed = now
	i := 0
	for ; i < len(e.later) && err == nil && (all || e.allowance >= 1); i++ {
		n := e.later[i]
		switch {
		case !n.waits || n.gone:
		case !all && e.inSlice(n, now):
			n.waits = false
			e.hold(n, true)
		default:
			err = e.decideNow(n, now)
			e.allowance--
		}
	}
	e.allowance = max(0, e.allowance)
	if e.later = e.later[i:]; len(e.later) == 0 {
		e.later = nil
	}
	return err
}

func (e *Engine) decideNow(n *node, now int64) error {
	n.waits, n.onHold = false, false
	if en, write := e.decide(n, now); write {
		e.batch = append(e.batch, en)
		e.batched = append(e.batched, n)
	}
	if len(e.batch) == writeBatch {
		return e.flush()
	}
	return nil
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
			return b.Arms[i].Down.Sum < restless
		}
	}
	return false
}

// flush writes the batch. What the sink refuses is decided on again.
func (e *Engine) flush() error {
	if len(e.batch) == 0 {
		return nil
	}
	err := e.opt.Sink.WritePolicies(e.batch)
	if err != nil {
		e.totals.WriteErrors += uint64(len(e.batch))
		for _, n := range e.batched {
			n.expires = 0 // some of the rows may be there: id stays, for the deletion
			e.mark(n)
		}
	} else {
		e.totals.Writes += uint64(len(e.batch))
	}
	clear(e.batched)
	e.batch, e.batched = e.batch[:0], e.batched[:0]
	return err
}

// deleteRemoved deletes the rows of paths that are no more, unless they are again.
func (e *Engine) deleteRemoved() error {
	if len(e.removed) == 0 {
		return nil
	}
	keys := make([]path.Key, 0, len(e.removed))
	for _, k := range e.removed {
		if n := e.nodes[k]; n == nil || n.id == 0 {
			keys = append(keys, k.path())
		}
	}
	if err := e.opt.Sink.DeletePolicies(keys); err != nil {
		e.totals.WriteErrors += uint64(len(keys))
		return err
	}
	e.removed = e.removed[:0]
	return nil
}

// noteWriting logs that writing began to fail, or works again; what happens in
// between is counted.
func (e *Engine) noteWriting(now int64, err error) {
	switch {
	case err != nil && e.retryAt == 0:
		e.log.Error("policies cannot be written, trying again every second", "error", err)
	case err == nil && e.retryAt != 0:
		e.log.Info("policies can be written again")
	}
	e.retryAt = 0
	if err != nil {
		e.retryAt = now + retryPause
	}
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
