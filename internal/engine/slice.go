package engine

import (
	"cmp"
	"math"
	"time"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// An arm is drawn for a slice of time, about as long as a connection of the path. So most
// connections that share the path at one time have the same arm, and an arm cannot gain at
// the expense of connections with other arms. If many connections overlap, they probably
// fill their bottleneck, and one arm's gain is another's loss: then a slice is eight times
// as long, and connections that begin near its edges are not scored
// (docs/design/0007-switchback.md).
//
// A partial rollout of a rule that learns nothing is drawn in slices of time as well. Such a rule
// has no paths, so connections count as overlapping if any connections of the rule do. It compares
// two groups for a long time, and not a default with a few trials. So its slices are twice as long:
// then fewer connections affect those of the next slice.

const (
	leastSlice   = 26 // 2^26 ns, 67 ms: a few round trips of most paths
	longestSlice = 33 // 8.6 s: bounds the trial of a bad arm
	firstSlice   = 30 // 1.07 s, if nothing is known

	lifeMemory = 32 // connections over which the length is averaged
	lifeLeast  = 4  // least connections from which a length is computed
	// lifeLate is how late, in milliseconds, the sample of an end may come after those of later ends.
	lifeLate = 60_000
	// lifeSlack is how far, in binary logarithms, the length of connections must be from that of
	// the slice for the slice to change. Rounding alone would change it at 0.5.
	lifeSlack = 0.75

	// From manyFrom concurrent connections on, a path counts as one with many, until there
	// are less than manyLeft (hysteresis). Its slices are 1 << manyShift times as long.
	manyFrom  = 8
	manyLeft  = 4
	manyShift = 3
	// fixedShift is manyShift for rules that learn nothing.
	fixedShift = manyShift + 1

	// edgeShift: the first and the last 2^-edgeShift of a long slice are its edges.
	edgeShift = 3
)

// overlap says when slices are long: from how many concurrent connections on, and until there are fewer
// than how many (hysteresis). They are 1<<shift times as long. The zero overlap is for nodes whose
// connections do not share a path: their slices are never long.
type overlap struct {
	from, until float64
	shift       int
}

var (
	ofPath  = overlap{manyFrom, manyLeft, manyShift}
	ofFixed = overlap{learn.Overlapping, 1.2, fixedShift}
)

// overlap is that of the node's connections.
func (n *node) overlap() overlap {
	switch {
	case n.fixed():
		return ofFixed
	case n.isRoot():
		return overlap{}
	}
	return ofPath
}

// lifetimes says how long connections of a path last, and how many there are at a time.
type lifetimes struct {
	log   float32 // binary logarithm of nanoseconds, mean
	ms    float32 // milliseconds, mean
	gap   float32 // milliseconds between two ends, mean; at most as long as the later one lasted
	ended uint32  // end of the latest, Unix milliseconds modulo 2^32
	n     uint8   // connections, up to lifeMemory
	shift uint8   // slice length that follows, as path.Policy.Slice; 0 is unknown
	many  bool    // many connections overlap
}

// noteLifetime notes how long a connection of n lasted, for n and its ancestors.
func (n *node) noteLifetime(s *tcp.Sample) {
	if !s.Whole() || s.Duration <= 0 {
		return
	}
	for ; n != nil; n = n.parent {
		n.lifetimes.add(s.Duration, uint32(s.At/int64(time.Millisecond)), max(1, s.StandsFor), n.overlap())
	}
}

// add notes a connection that ended, and standsFor-1 others like it.
func (l *lifetimes) add(lasted time.Duration, ended, standsFor uint32, o overlap) {
	shared := o != overlap{}
	ms := float32(lasted.Seconds() * 1e3)
	since := int32(ended - l.ended)
	if since < -lifeLate { // the clock was set back, or nothing ended for so long that the difference does not fit
		since = math.MaxInt32
	}
	if l.n = min(l.n+1, lifeMemory); shared && l.n > 1 {
		l.gap += (min(float32(max(0, since))/float32(standsFor), ms) - l.gap) / float32(l.n-1)
	}
	l.ms += (ms - l.ms) / float32(l.n)
	if l.n == 1 || since > 0 {
		l.ended = ended
	}
	l.log += (float32(math.Log2(float64(lasted))) - l.log) / float32(l.n)
	if l.n < lifeLeast {
		return
	}
	at, longest := float64(l.log), longestSlice
	if l.many = shared && l.areMany(o); l.many {
		at += float64(o.shift)
		longest += o.shift
	}
	at = min(max(at, leastSlice), float64(longest))
	if l.shift == 0 || math.Abs(at-float64(l.shift)) > lifeSlack {
		l.shift = uint8(math.Round(at))
	}
}

// atOnce is the mean number of concurrent connections by Little's law: the number that end
// in the time that one lasts. Pauses without connections are left out, so that sequential
// connections count as 1, whatever their lengths. 0 is unknown.
func (l *lifetimes) atOnce() float64 {
	if l.n < 2 {
		return 0
	}
	return float64(l.ms / max(l.gap, 1e-3))
}

func (l *lifetimes) areMany(o overlap) bool {
	from := o.from
	if l.many {
		from = o.until
	}
	return l.n >= lifeMemory && l.atOnce() >= from
}

// sliceLifetimes returns the lifetimes that n's slices follow: those of the network, because
// one draw holds for all its hosts.
func (n *node) sliceLifetimes() *lifetimes {
	if n.parent != nil && n.parent.hosts {
		return &n.parent.lifetimes
	}
	return &n.lifetimes
}

// sliceShift is path.Policy.Slice for a path: by its own lifetimes, or by those of its
// nearest ancestor with any.
func (n *node) sliceShift() uint8 {
	if n.fixed() && n.lifetimes.n < lifeMemory { // not known yet whether connections overlap
		return cmp.Or(n.lifetimes.shift, firstSlice) + uint8(ofFixed.shift)
	}
	for ; n != nil; n = n.parent {
		if shift := n.sliceLifetimes().shift; shift != 0 {
			return shift
		}
	}
	return firstSlice
}

// longSlices reports whether slices are several times as long as a connection lasts.
func (n *node) longSlices() bool {
	l := n.sliceLifetimes()
	return l.many || n.fixed() && l.n < lifeMemory
}

// sliceOf returns the slice to which a sample belongs, as the time at which the slice
// began. It is the slice in which the sample arrived or, if slices are long, the
// slice in which the connection began. In the second case edge reports whether it began in
// the first or the last eighth of the slice, the length of one connection or two: then it
// probably shared the path with connections of the neighbouring slice, which may have
// another arm.
func (n *node) sliceOf(s *tcp.Sample) (id int64, edge bool) {
	at, shift := s.At, n.drawnFor()
	if n.longSlices() && s.Whole() {
		const parts = 1 << edgeShift
		at -= int64(s.Duration)
		part := at >> (shift - edgeShift) & (parts - 1)
		edge = part == 0 || part == parts-1
	}
	return at >> shift << shift, edge
}

// midSlice reports whether a connection began in the third quarter of a long slice, where the fewest
// connections of other slices are beside it: a default that takes four times as much from a queue as the
// arm in use leaves some of that arm's connections far into a slice that is held out.
func (n *node) midSlice(s *tcp.Sample) bool {
	quarter := (s.At - int64(s.Duration)) >> (n.drawnFor() - 2) & 3
	return s.Whole() && quarter == 2
}

// drawnFor is the slice length by which the kernel draws for n now. It may differ from
// sliceShift, because a new length is written when a slice ends.
func (n *node) drawnFor() uint8 {
	if shift := n.policyNode().policy.slice; shift != 0 {
		return shift
	}
	return n.sliceShift()
}

// sliceLength is for how long one draw of an arm lasts; 0 if arms are not drawn by slice.
func (w *written) sliceLength() time.Duration {
	if w.slice == 0 {
		return 0
	}
	return 1 << w.slice
}
