package learn

import (
	"math"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Two things open a search, in which arms are tried at once as the learner likes:
// the rewards of the arm in use fell, or the default takes random loss for congestion.
// Both mean that the default itself does badly now.

const (
	// crowdFall is the fall of rewards from which a search puts whole crowds at risk: users
	// wait twice as long. Where 20 connections of bbr fill a link, slices scatter by 0.1 to
	// 0.4 (standard deviation, measured), and less than this is no sign of a change.
	crowdFall = math.Ln2

	// randomLoss is the share of packets lost without a queue from which a control that
	// takes each loss for congestion is held back: at 0.3 % the window of CUBIC is about
	// 50 packets at 50 ms (RFC 9438, 5.2). leastSent packets make it believable.
	randomLoss = 0.003
	leastSent  = 500
	// wholeCrowds is how many observations the same must rest on where each is of a crowd.
	wholeCrowds = 3
	// allAlike is the least share of the connections that random loss would meet which it
	// has to have met.
	allAlike = 0.75
	// noQueue is the greatest ln(srtt/min_rtt) of a path that loses packets without a
	// queue. Measured with cubic, 1 MB, a queue of one round trip: with 1 % loss 0.05 (5 at
	// a time) and 0.13 (20, which all but fill the link, so that little is to be won),
	// without loss 0.2 and 0.4.
	noQueue = 0.08
	// ownQueue is the same of controls that keep a queue of their own: 0.2 and 0.45.
	ownQueue = 0.25
)

// lossTolerant lists controls that model the path's rate, and so do not take each loss
// for congestion.
var lossTolerant = [...]tcp.CC{named("bbr"), named("bbr2"), named("bbr3"), named("tcpilot_bbr3")}

func named(name string) tcp.CC {
	cc, _ := tcp.ParseCC(name)
	return cc
}

func tolerant(cc tcp.CC) bool {
	for i := range lossTolerant {
		if lossTolerant[i] == cc {
			return true
		}
	}
	return false
}

// search is what is being searched for on a path, and why.
type search struct {
	fell   bool // the path has just become worse: for any arm
	random bool // it loses packets at random, and the default is not made for it: for what is
	lossy  bool // it loses packets at random: not for what takes that for congestion
}

// searches finds out what the path asks for now.
func (t thompson) searches(cs []candidate, base *candidate, b *Belief, now int64) search {
	s := search{fell: t.fell(b, now)}
	s.random = !tolerant(base.cc) && base.losesAtRandom(b) && b.Count-b.ChangedAt <= searching
	last := latestOf(cs)
	s.lossy = s.random || last != nil && last.losesAtRandom(b)
	return s
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
// Of a crowd, those that end first met less of its queue: whole crowds are looked at.
func (c *candidate) losesAtRandom(b *Belief) bool {
	a, queue := c.arm, noQueue
	if tolerant(c.cc) {
		queue = ownQueue
	}
	if a == nil || b.crowded() && float64(a.Judged) < wholeCrowds*b.outcomesEach() {
		return false
	}
	if a.Sent < leastSent || a.Again <= randomLoss*a.Sent || float64(a.Stretch) >= queue {
		return false
	}
	return a.alike()
}

// alike reports whether losses came to all connections alike.
func (l *Losses) alike() bool {
	some := 1 - math.Exp(-float64(l.Again/l.Judged)) // would have any, by Poisson
	return float64(l.Resent/l.Judged) > allAlike*some
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
