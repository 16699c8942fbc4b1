package learn

import "math"

// A search tries arms immediately, without a bound on their share. Two things begin one: the
// rewards of the arm in use fell, or the default takes random loss for congestion. Both mean
// that the default does badly now.

const (
	// manyFall is the least fall of rewards that begins a search if many connections overlap,
	// because the search risks all connections of a slice. When 20 connections of bbr fill a
	// link, slices scatter by 0.1 to 0.4 (standard deviation, measured): a smaller fall is not
	// a sign of a change.
	manyFall = math.Ln2

	// randomLoss is the share of packets lost without a queue from which a control that
	// takes each loss for congestion counts as slowed down: at 0.3 % the window of CUBIC is
	// about 50 packets at 50 ms (RFC 9438, 5.2). leastSent is the least number of packets
	// from which the share is computed.
	randomLoss = 0.003
	leastSent  = 500
	// noQueue is the greatest Outcome.Queue, in the mean, that counts as a path without a queue.
	// Measured with cubic: with 3 % loss 0.01 to 0.02 (two at a time, 10 ms); without random loss
	// 0.16 (1 MB, 5 at a time, a queue of one round trip) and more. The same of Outcome.Stretch is
	// 0.1 to 0.15 and 0.19: jitter and delayed ACKs make it useless where one millisecond is a
	// tenth of a round trip.
	noQueue = 0.08
	// ownQueue is the same for controls that keep a queue of their own: 0.2 and 0.45.
	ownQueue = 0.25
)

// search is why arms are to be tried immediately.
type search struct {
	fell   bool // rewards fell: any arm may be tried
	random bool // random loss, and the default slows down for each loss: tolerant arms may be tried
	lossy  bool // random loss: arms that slow down for each loss are not tried
	// tolerantAhead: the default slows down for each loss, and a tolerant arm does far
	// better. Other arms that slow down for each loss are not tried, except variants of the
	// default.
	tolerantAhead bool
}

// searchOf returns which searches are on for a path.
func (t thompson) searchOf(cs []candidate, base *candidate, b *Belief, now int64) search {
	s := search{fell: t.fell(b, now)}
	s.random = !base.LossTolerant && base.losesAtRandom(b) && b.Count-b.ChangedAt <= searching
	last := latestOf(cs)
	s.lossy = s.random || last != nil && last.losesAtRandom(b)
	s.tolerantAhead = !base.LossTolerant && t.tolerantAhead(cs, base)
	return s
}

// tolerantAhead reports whether an arm that does not slow down for each loss did far better
// than the default. It is needed because the queue of such an arm may hide that losses are
// random.
func (t thompson) tolerantAhead(cs []candidate, base *candidate) bool {
	for i := range cs {
		c := &cs[i]
		if c.LossTolerant && c.trials() >= tried && c.value() > base.value()+t.opt.HarmGap {
			return true
		}
	}
	return false
}

// excludes reports whether c is not to be tried.
func (s search) excludes(c *candidate) bool {
	return !c.LossTolerant && (s.lossy || s.tolerantAhead && !c.variant)
}

// fell reports whether rewards fell recently, so that the arms are tried again.
func (t thompson) fell(b *Belief, now int64) bool {
	least := 0.0
	if b.manyOverlap() {
		least = manyFall
	}
	return b.Changes > 0 && b.Fall > least && b.Count-b.ChangedAt <= searching &&
		seconds(b.Changed, now) <= t.opt.HalfLife.Seconds()
}

// losesAtRandom reports whether, by the losses of this arm, the path loses packets without a
// full queue. Random loss is spread evenly over connections. If a few connections have most
// of it, their slow start overflowed a queue that was empty again when they ended.
//
// If many connections overlap, this is not assumed for arms that slow down for losses: 20
// connections of cubic with 1 % loss nearly fill a link (0.13, measured). So there is little
// to gain, and an arm that fills the link takes from the connections beside it. Also, the
// first connections to end met a shorter queue.
func (c *candidate) losesAtRandom(b *Belief) bool {
	a, queue := c.arm, noQueue
	switch {
	case c.LossTolerant:
		queue = ownQueue
	case b.manyOverlap():
		return false
	}
	return a != nil && a.Sent >= leastSent && a.Again > randomLoss*a.Sent &&
		float64(a.Queue) < queue && a.alike()
}

// latestOf is the arm that was seen last, of those that sent enough to tell; nil if none did.
func latestOf(cs []candidate) (last *candidate) {
	for i := range cs {
		if a := cs[i].arm; a != nil && a.Sent >= leastSent && (last == nil || a.Last > last.arm.Last) {
			last = &cs[i]
		}
	}
	return last
}
