package learn

import "math"

// Two things open a search, in which arms are tried at once as the learner likes:
// the rewards of the arm in use fell, or the default takes random loss for congestion.
// Both mean that the default itself does badly now.

const (
	// crowdFall is the fall of rewards that opens a search where many connections overlap: it
	// puts all of a slice at risk. Where 20 connections of bbr fill a link, slices scatter by
	// 0.1 to 0.4 (standard deviation, measured), and less than this is no sign of a change.
	crowdFall = math.Ln2

	// randomLoss is the share of packets lost without a queue from which a control that
	// takes each loss for congestion is held back: at 0.3 % the window of CUBIC is about
	// 50 packets at 50 ms (RFC 9438, 5.2). leastSent packets make it believable.
	randomLoss = 0.003
	leastSent  = 500
	// noQueue is the greatest ln(srtt/min_rtt) of a path that loses packets without a
	// queue, noQueueAlone the same of connections one at a time. Measured with cubic, 1 MB,
	// a queue of one round trip: with 1 % loss 0.05 (5 at a time), 0.1 to 0.13 (one or two,
	// 3 % loss, 10 ms, where one millisecond is 0.1), without loss 0.2 (5) and 0.4 (20).
	noQueue      = 0.12
	noQueueAlone = 0.15
	// ownQueue is the same of controls that keep a queue of their own: 0.2 and 0.45.
	ownQueue = 0.25
)

// search is why arms are to be tried at once.
type search struct {
	fell   bool // rewards fell: any arm may be tried
	random bool // random loss, and the default slows down for each loss: what does not may be tried
	lossy  bool // random loss: what slows down for each loss is not to be tried
	// outdone: the default slows down for each loss, and what does not does far better. So
	// will it than all that slow down, but for variants of the default.
	outdone bool
}

// searchOf finds out what a path asks for now.
func (t thompson) searchOf(cs []candidate, base *candidate, b *Belief, now int64) search {
	s := search{fell: t.fell(b, now)}
	s.random = !tolerant(base.cc) && base.losesAtRandom(b) && b.Count-b.ChangedAt <= searching
	last := latestOf(cs)
	s.lossy = s.random || last != nil && last.losesAtRandom(b)
	s.outdone = !tolerant(base.cc) && t.outdone(cs, base)
	return s
}

// outdone reports whether an arm that does not slow down for each loss did far better than
// the default. The queue of such an arm may hide that losses are random.
func (t thompson) outdone(cs []candidate, base *candidate) bool {
	for i := range cs {
		c := &cs[i]
		if tolerant(c.cc) && c.trials() >= tried && c.value() > base.value()+t.opt.HarmGap {
			return true
		}
	}
	return false
}

// excludes reports whether c is not to be tried.
func (s search) excludes(c *candidate) bool {
	return !tolerant(c.cc) && (s.lossy || s.outdone && !c.variant)
}

// fell reports whether the path has just become worse, and its arms are being tried
// again.
func (t thompson) fell(b *Belief, now int64) bool {
	least := 0.0
	if b.crowded() {
		least = crowdFall
	}
	return b.Changes > 0 && b.Fall > least && b.Count-b.ChangedAt <= searching &&
		seconds(b.Changed, now) <= t.opt.HalfLife.Seconds()
}

// losesAtRandom reports whether the path loses packets that no queue of ours overflowed
// for, by what the arm met. Random loss comes to all connections alike: where a few have
// most of it, slow start overflowed a queue which was empty again at their end.
//
// In a crowd this is not believed where the arm slows down for losses: 20 connections of
// cubic with 1 % loss all but fill a link (0.13, measured), so that little is to be won and
// what fills it whole takes from those beside it; and the first to end met a shorter queue.
func (c *candidate) losesAtRandom(b *Belief) bool {
	a, queue := c.arm, noQueue
	switch {
	case tolerant(c.cc):
		queue = ownQueue
	case b.crowded():
		return false
	case b.AtOnce > 0 && !b.overlaps():
		queue = noQueueAlone
	}
	return a != nil && a.Sent >= leastSent && a.Again > randomLoss*a.Sent &&
		float64(a.Stretch) < queue && a.alike()
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
