package learn

import "github.com/tcpilot/tcpilot/internal/tcp"

// slice is the latest observation of an arm, which may be incomplete: its outcomes of one
// slice of time. These connections shared the path and its other traffic, and competed with
// each other. So their mean is one observation of the arm (switchback experiments: B. Spang
// et al., "Unbiased Experiments in Congested Networks", IMC 2021).
type slice struct {
	id     int64
	n      int32
	known  bool    // ArmBelief.known when it began
	sum    float64 // of weighted rewards
	total  float64 // of weights
	m2     float64 // weighted, around their mean
	before evidence
}

// evidence is the part of an arm's belief that an open observation changes.
type evidence struct {
	mean, weight, m2, trials float64
	scatter, within, beyond  float32
}

// next begins a new observation.
func (a *ArmBelief) next(id int64, known bool) {
	a.open = slice{id: id, known: known, before: evidence{a.Mean, a.Weight, a.M2, a.Trials, a.Scatter, a.Within, a.Beyond}}
}

// restore removes what the open observation has added so far.
func (a *ArmBelief) restore() {
	e := &a.open.before
	a.Mean, a.Weight, a.M2, a.Trials, a.Scatter = e.mean, e.weight, e.m2, e.trials, e.scatter
	a.Within, a.Beyond = e.within, e.beyond
}

// holds reports whether o belongs to s.
func (s *slice) holds(o Outcome) bool { return SameSlice(s.id, o.Slice) }

// FirstTrial reports whether o, which is not yet observed, belongs to the first two
// observations of cc (up to six, of small connections): the unavoidable cost of exploring it.
func (b *Belief) FirstTrial(cc tcp.CC, o Outcome) bool {
	a := b.find(cc)
	return a == nil || !a.open.known && (a.Trials < settled || a.open.holds(o))
}

// known reports whether a was tried twice since the process began. Changes of the path, and
// surprises, do not take that back.
func (a *ArmBelief) known() bool { return a.open.known || a.Trials >= settled }

// late is how long after the beginning of its slice a connection may end and still count
// for the observation that is open then, nanoseconds: twice the longest slice.
const late = 140e9

// Later returns the later of two times in Unix nanoseconds: of what was noted, and of an outcome. It is that of the outcome
// if that is so much earlier that the clock was set back since.
func Later(was, at int64) int64 {
	if was-at > late {
		return at
	}
	return max(was, at)
}

// SameSlice reports whether an outcome of the slice id counts for the open observation; 0 is
// none. It may be of an earlier slice: a slow connection can end after the first one of the
// next slice. Otherwise it would be an observation of its own, and cut the open one in two.
func SameSlice(open, id int64) bool {
	return open != 0 && id != 0 && id <= open && open-id <= late
}

func (s *slice) add(o Outcome) {
	if s.n++; s.n > 1 {
		d := o.Reward - s.mean()
		s.m2 += d * d * o.Weight * s.total / (s.total + o.Weight)
	}
	s.total += o.Weight
	s.sum += o.Weight * o.Reward
}

func (s *slice) mean() float64 { return s.sum / s.total }

// weight is the evidence of the observation: at most that of one outcome.
func (s *slice) weight() float64 { return min(1, s.total) }

// UsesSlices reports whether l counts the outcomes of a slice as one observation. If not,
// an arm is drawn for each connection.
func UsesSlices(l Learner) bool {
	_, ok := l.(thompson)
	return ok
}

// SliceWeight is the weight of the n-th outcome of a slice, from 1 on, beside those before it:
// 2/(n(n+1)), so that n of them are worth 2n/(n+1), always less than two. That is Kish's
// design effect at a correlation of one half.
func SliceWeight(n int32) float64 { return 2 / (float64(n) * float64(n+1)) }
