package engine

import (
	"math"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// An arm is drawn for a slice of time, about as long as a connection of the path: then
// most of those that share it at one time have the same arm, and what an arm wins is
// won from the path, not from the others. Where many connections overlap, they probably
// fill what they share, and one arm's gain is another's loss: there a slice is eight times
// as long, and connections from its beginning and its end are not scored
// (docs/design/0007-switchback.md).

const (
	leastSlice   = 26 // 2^26 ns, 67 ms: a few round trips of most paths
	longestSlice = 33 // 8.6 s: a trial of a bad arm must end
	firstSlice   = 30 // 1.07 s, where nothing is known

	lifeMemory = 32 // connections over which their length is averaged
	lifeLeast  = 4  // connections that a length rests on
	// lifeSlack is how far, in powers of two, the length must be from the slice for the
	// slice to change: half a power is where it would be rounded.
	lifeSlack = 0.75

	// manyFrom is the number of connections at a time from which there are many. The state
	// ends below manyLeft, which is lower so that it does not alternate. Slices are
	// 1 << manyShift times as long then.
	manyFrom  = 8
	manyLeft  = 4
	manyShift = 3
)

// life is how long connections of a path last, and how many there are at a time.
type life struct {
	log   float32 // binary logarithm of nanoseconds, mean
	ms    float32 // milliseconds, mean
	gap   float32 // milliseconds between two ends, mean; at most as long as the later one lasted
	ended uint32  // Unix milliseconds modulo 2^32, of the latest
	n     uint8   // connections, up to lifeMemory
	shift uint8   // of the slice that this asks for; 0 is unknown
	many  bool    // there are many at a time
}

// lived notes how long a connection of n lasted, for n and what is around it.
func (n *node) lived(s *tcp.Sample) {
	if !whole(s) || s.Duration <= 0 {
		return
	}
	for ; n != nil; n = n.parent {
		n.life.add(s.Duration, uint32(s.At/int64(time.Millisecond)), max(1, s.StandsFor), !n.isRoot())
	}
}

// whole reports whether a sample covers a connection from its beginning to its end.
func whole(s *tcp.Sample) bool { return s.Kind == tcp.KindClose && !s.Has(tcp.FlagLater) }

// add notes a connection that ended, and standsFor-1 like it. shared: what lasts at the
// same time shares a path.
func (l *life) add(lasted time.Duration, ended, standsFor uint32, shared bool) {
	ms := float32(lasted.Seconds() * 1e3)
	if l.n = min(l.n+1, lifeMemory); shared && l.n > 1 {
		since := float32(max(0, int32(ended-l.ended))) / float32(standsFor)
		l.gap += (min(since, ms) - l.gap) / float32(l.n-1)
	}
	l.ms += (ms - l.ms) / float32(l.n)
	if l.n == 1 || int32(ended-l.ended) > 0 {
		l.ended = ended
	}
	l.log += (float32(math.Log2(float64(lasted))) - l.log) / float32(l.n)
	if l.n < lifeLeast {
		return
	}
	at, longest := float64(l.log), longestSlice
	if l.many = shared && l.areMany(); l.many {
		at += manyShift
		longest += manyShift
	}
	at = min(max(at, leastSlice), float64(longest))
	if l.shift == 0 || math.Abs(at-float64(l.shift)) > lifeSlack {
		l.shift = uint8(math.Round(at))
	}
}

// atOnce is how many connections there are at a time by Little's law: as many as end in
// the time that one lasts. Pauses without any are left out, so that connections one after
// the other are 1, whatever their lengths. 0 is unknown.
func (l *life) atOnce() float64 {
	if l.n < 2 {
		return 0
	}
	return float64(l.ms / max(l.gap, 1e-3))
}

func (l *life) areMany() bool {
	from := manyFrom
	if l.many {
		from = manyLeft
	}
	return l.n >= lifeMemory && l.atOnce() >= float64(from)
}

// lives are those that n's slices follow: those of the network, which draws for all its
// hosts.
func (n *node) lives() *life {
	if n.parent != nil && n.parent.hosts {
		return &n.parent.life
	}
	return &n.life
}

// sliceShift is path.Policy's Slice for a path, or for what is around it as long as
// nothing is known of the path itself.
func (n *node) sliceShift() uint8 {
	for ; n != nil; n = n.parent {
		if shift := n.lives().shift; shift != 0 {
			return shift
		}
	}
	return firstSlice
}

// sliceOf returns the slice to which a sample belongs, by the time at which it began: the
// one in which it arrived; where there are many at a time, the one in which the connection
// began. edge: of these, it began in the first or the last eighth of the slice, which is
// about the length of one connection. It probably shared the path with connections of the
// slice beside, which may have another arm.
func (n *node) sliceOf(s *tcp.Sample) (id int64, edge bool) {
	at, shift := s.At, n.drawnFor()
	if n.lives().many && whole(s) {
		const parts = 1 << manyShift
		at -= int64(s.Duration)
		part := at >> (shift - manyShift) & (parts - 1)
		edge = part == 0 || part == parts-1
	}
	return at >> shift << shift, edge
}

// drawnFor is the slice by which the kernel draws for n now: what is asked for is written
// when a slice ends.
func (n *node) drawnFor() uint8 {
	if shift := n.policyNode().policy.slice; shift != 0 {
		return shift
	}
	return n.sliceShift()
}

// sliceLength is for how long one draw of an arm holds; 0 where none is drawn.
func (w *written) sliceLength() time.Duration {
	if w.slice == 0 {
		return 0
	}
	return 1 << w.slice
}

// inSlice: n was decided on in the slice of time that it is now, and what has happened
// since can wait: other shares would mean another arm for the rest of it.
func (e *Engine) inSlice(n *node, now int64) bool {
	slice := n.policy.slice
	return slice > 0 && now>>slice == n.decided>>slice && settled(n, e.stamp)
}

// hold puts n off until its slice ends; patient says that it can wait then, too.
func (e *Engine) hold(n *node, patient bool) {
	if n.onHold {
		n.patient = n.patient && patient
		return
	}
	n.onHold, n.patient = true, patient
	list := &e.onHold[n.policy.slice-leastSlice]
	*list = append(*list, n)
}

// release has those decided on whose slice has ended, or all of them.
func (e *Engine) release(now int64, all bool) {
	for i := range e.onHold {
		if shift := leastSlice + i; len(e.onHold[i]) == 0 || !all && now>>shift == e.releasedAt>>shift {
			continue
		}
		for _, n := range e.onHold[i] {
			if !n.onHold {
				continue
			}
			n.onHold = false
			if n.patient {
				e.await(n)
			} else {
				e.mark(n)
			}
		}
		clear(e.onHold[i])
		e.onHold[i] = e.onHold[i][:0]
	}
	e.releasedAt = now
}
