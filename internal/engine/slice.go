package engine

import (
	"math"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// An arm is drawn for a slice of time, about as long as a connection of the path: then
// most of those that share it at one time have the same arm, and what an arm wins is
// won from the path, not from the others (docs/design/0007-switchback.md).

const (
	leastSlice   = 26 // 2^26 ns, 67 ms: a few round trips of most paths
	longestSlice = 33 // 8.6 s: a trial of a bad arm must end
	firstSlice   = 30 // 1.07 s, where nothing is known

	lifeMemory = 32 // connections over which their length is averaged
	lifeLeast  = 4  // connections that a length rests on
	// lifeSlack is how far, in powers of two, the length must be from the slice for the
	// slice to change: half a power is where it would be rounded.
	lifeSlack = 0.75

	// crowdFrom is the number of connections at a time from which they are likely to fill
	// what they share, so that one arm's gain is another's loss. Fewer than crowdLeft end
	// it. Slices are 1 << crowdShift lives long then.
	crowdFrom  = 8
	crowdLeft  = 4
	crowdShift = 2
)

// life is how long connections of a path last, and how many there are at a time.
type life struct {
	log   float32 // binary logarithm of nanoseconds, mean
	gap   float32 // milliseconds between the ends of two, mean
	ended uint32  // Unix milliseconds modulo 2^32, of the latest
	n     uint8   // connections, up to lifeMemory
	shift uint8   // of the slice that this asks for; 0 is unknown
	crowd bool    // there are many at a time
}

// lived notes how long a connection of n lasted, for n and what is around it.
func (n *node) lived(s *tcp.Sample) {
	if s.Kind != tcp.KindClose || s.Duration <= 0 {
		return
	}
	log := float32(math.Log2(float64(s.Duration)))
	for ; n != nil; n = n.parent {
		n.life.add(log, uint32(s.At/int64(time.Millisecond)), !n.isRoot())
	}
}

// add notes a connection that ended. shared: what lasts at the same time shares a path.
func (l *life) add(log float32, ended uint32, shared bool) {
	if l.n = min(l.n+1, lifeMemory); l.n > 1 {
		l.gap += (float32(max(0, int32(ended-l.ended))) - l.gap) / float32(l.n-1)
	}
	l.ended = ended
	l.log += (log - l.log) / float32(l.n)
	if l.n < lifeLeast {
		return
	}
	at := float64(l.log)
	if l.crowd = shared && l.crowded(); l.crowd {
		at += crowdShift
	}
	at = min(max(at, leastSlice), longestSlice)
	if l.shift == 0 || math.Abs(at-float64(l.shift)) > lifeSlack {
		l.shift = uint8(math.Round(at))
	}
}

// crowded reports whether there are many connections at a time, by Little's law: as many
// as end in the time that one lasts.
func (l *life) crowded() bool {
	if l.n < lifeMemory {
		return false
	}
	many := crowdFrom
	if l.crowd {
		many = crowdLeft
	}
	return math.Exp2(float64(l.log)) >= float64(many)*float64(l.gap)*float64(time.Millisecond)
}

// amongOthers reports whether a connection of n shared the path with those of a slice
// before or after, though slices are long enough for most not to: it began in the first
// quarter of a slice or in the last.
func (n *node) amongOthers(s *tcp.Sample) bool {
	if !n.life.crowd || s.Kind != tcp.KindClose {
		return false
	}
	const parts = 1 << crowdShift
	part := began(s) >> (n.sliceShift() - crowdShift) & (parts - 1)
	return part == 0 || part == parts-1
}

func began(s *tcp.Sample) int64 { return s.At - int64(s.Duration) }

// sliceOf is the slice that a sample tells of: that in which it came. Of a crowd, it is that
// in which the connection began.
func (n *node) sliceOf(s *tcp.Sample) int64 {
	at := s.At
	if n.life.crowd && s.Kind == tcp.KindClose {
		at = began(s)
	}
	return at >> n.sliceShift()
}

// sliceShift is path.Policy's Slice for a path, or for what is around it as long as
// nothing is known of the path itself.
func (n *node) sliceShift() uint8 {
	for ; n != nil; n = n.parent {
		if n.life.shift != 0 {
			return n.life.shift
		}
	}
	return firstSlice
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
	list := &e.held[n.policy.slice-leastSlice]
	*list = append(*list, n)
}

// release has those decided on whose slice has ended, or all of them.
func (e *Engine) release(now int64, all bool) {
	for i := range e.held {
		if shift := leastSlice + i; len(e.held[i]) == 0 || !all && now>>shift == e.heldAt>>shift {
			continue
		}
		for _, n := range e.held[i] {
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
		clear(e.held[i])
		e.held[i] = e.held[i][:0]
	}
	e.heldAt = now
}
