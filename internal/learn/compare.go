package learn

import (
	"cmp"
	"fmt"
	"math"
)

// boundary is how many standard errors the difference of two means must lie from 0 to be
// significant at level alpha, at any time and however often it is checked:
// Robbins' Normal mixture (H. Robbins, "Statistical Methods Related to the Law of the
// Iterated Logarithm", Ann. Math. Stat. 41, 1970), which holds for means in general as n
// grows (I. Waudby-Smith et al., "Time-uniform central limit theory and asymptotic
// confidence sequences", Ann. Stat. 52, 2024). n is the evidence of the difference, in
// observations: 1/(1/n1 + 1/n2).
func boundary(n, alpha float64) float64 {
	return math.Sqrt((1 + mixture/n) * (2*math.Log(1/alpha) + math.Log(1+n/mixture)))
}

// mixture is the evidence at which the boundary is tightest.
const mixture = 1

// Group is the time that the connections of one group took, as moments of
// (time/reference)^aversion over observations (tail.go says why).
type Group struct {
	N    float64 `json:"n"` // observations
	Mean float64 `json:"mean"`
	M2   float64 `json:"m2"`             // sum of squared deviations from Mean
	Most float64 `json:"most,omitempty"` // the slowest observation ...
	// ... and its weight; 0 is 1.
	MostWeight float64 `json:"most_weight,omitempty"`

	// The open slice of time: its connections are one observation.
	Slice int64   `json:"slice_ns,omitempty"`
	Sum   float64 `json:"sum,omitempty"`
	Count float64 `json:"count,omitempty"`
	// Weight is that of the open slice as an observation: the greatest of its outcomes'. 0 is 1.
	Weight float64 `json:"weight,omitempty"`
}

// Comparison compares the connections that tcpilot treats with the hold-out, which keeps the
// kernel's defaults. Whole slices of the hold-out are the unbiased comparison: a single
// connection in the hold-out shares its queue with treated ones, and gets less or more of
// the path than it would if all connections had the defaults.
//
// All groups age together: see age.
type Comparison struct {
	Treated     Group `json:"treated"`     // an observation is a slice of time
	Slices      Group `json:"slices"`      // held out whole: an observation is a slice
	Connections Group `json:"connections"` // held out one by one
	// Shared is the part of Connections whose path had overlapping connections.
	Shared float64 `json:"shared,omitempty"`
	// Level is the mean of Outcome.LogSpeed of all of them, Seen their number. Moments are
	// relative to Reference.
	Level     float64 `json:"level"`
	Seen      float64 `json:"seen"`
	Reference float64 `json:"reference"`
}

// Assignment is the group that a connection was assigned to.
type Assignment uint8

const (
	Treated Assignment = iota
	HoldOutSlice
	HoldOutConnection
	OnTrial // treated, but not compared: it only counts for the level of the path
)

const (
	// levelMemory is the number of outcomes over which the level is averaged.
	levelMemory = 64
	// comparedClip bounds one outcome: e^3 is 20 times faster or slower.
	comparedClip = 3
	// Beyond comparedMemory observations of the smaller group, or mostCompared of both, all
	// groups are halved, so that they keep covering the same time.
	comparedMemory = 100
	mostCompared   = 4000
	// leastCompared observations of each group make an interval.
	leastCompared = 5
	// mostShared is the share of single connections in the hold-out that may have shared their
	// path for their comparison to count as unbiased.
	mostShared = 0.1
)

// Add adds an outcome. Outcomes of one Slice are one observation; 0: it is an observation by
// itself.
func (c *Comparison) Add(o Outcome, by Assignment) { c.add(o.LogSpeed(), o, by) }

// AddRelative adds an outcome of one of several paths to the comparison of all of them. path
// is the comparison of the one path; its level is subtracted.
func (c *Comparison) AddRelative(path *Comparison, o Outcome, by Assignment) {
	if path.Seen < 2 {
		return // its level is not known yet
	}
	// Slices of different paths are different observations.
	c.add(o.LogSpeed()-path.Level, o, by)
}

func (c *Comparison) add(x float64, o Outcome, by Assignment) {
	if !o.usable() || math.IsNaN(x) {
		return
	}
	if c.Seen == 0 {
		c.Reference = x
	}
	c.Seen = min(c.Seen+1, levelMemory)
	c.Level += (x - c.Level) / c.Seen
	if math.Abs(c.Level-c.Reference) > 1 {
		c.refer(c.Level)
	}
	e := math.Exp(aversion * min(max(c.Reference-x, -comparedClip), comparedClip))
	switch by {
	case HoldOutSlice:
		c.Slices.add(e, o.Slice, 1/max(1, o.Oversampled))
	case HoldOutConnection:
		c.Connections.add(e, 0, 1)
		if o.AtOnce >= Overlapping {
			c.Shared++
		}
	case Treated:
		c.Treated.add(e, o.Slice, 1)
	}
	holdOut := max(c.Slices.N, c.Connections.N)
	if c.biased() { // single connections are many: counted here, they would halve the groups before there are enough slices
		holdOut = c.Slices.N
	}
	if min(c.Treated.N, holdOut) > comparedMemory || c.Treated.N+holdOut > mostCompared {
		c.age()
	}
}

// biased reports whether single connections of the hold-out shared their path with treated ones.
func (c *Comparison) biased() bool { return c.Shared > mostShared*c.Connections.N }

// refer moves the reference. After a jump too great to convert the moments, the comparison
// starts over.
func (c *Comparison) refer(to float64) {
	if math.Abs(to-c.Reference) > 2*comparedClip {
		*c = Comparison{Level: to, Seen: c.Seen, Reference: to}
		return
	}
	f := math.Exp(aversion * (to - c.Reference))
	for _, g := range []*Group{&c.Treated, &c.Slices, &c.Connections} {
		g.Mean *= f
		g.M2 *= f * f
		g.Most *= f
		g.Sum *= f
	}
	c.Reference = to
}

func (c *Comparison) age() {
	for _, g := range []*Group{&c.Treated, &c.Slices, &c.Connections} {
		g.N /= 2
		g.M2 /= 2
		g.Most = 0 // its weight is negligible by now
	}
	c.Shared /= 2
}

func (g *Group) add(e float64, slice int64, weight float64) {
	if slice == 0 {
		g.observe(e, weight)
		return
	}
	if !SameSlice(g.Slice, slice) {
		g.close()
		g.Slice = slice
	}
	g.Sum += weight * e
	g.Count += weight
	g.Weight = max(g.Weight, weight)
}

// close ends the open slice.
func (g *Group) close() {
	if g.Count > 0 {
		g.observe(g.Sum/g.Count, cmp.Or(g.Weight, 1))
	}
	g.Slice, g.Sum, g.Count, g.Weight = 0, 0, 0, 0
}

func (g *Group) observe(e, weight float64) {
	g.N += weight
	d := e - g.Mean
	g.Mean += d * weight / g.N
	g.M2 += weight * d * (e - g.Mean)
	if e > g.Most {
		g.Most, g.MostWeight = e, weight
	}
}

// withoutMost is the group without its slowest observation.
func (g Group) withoutMost() Group {
	if g.Most == 0 || g.N <= 1 {
		return g
	}
	weight := cmp.Or(g.MostWeight, 1)
	mean := (g.N*g.Mean - weight*g.Most) / (g.N - weight)
	g.M2 = max(0, g.M2-weight*(g.Most-g.Mean)*(g.Most-mean))
	g.N, g.Mean, g.Most = g.N-weight, mean, 0
	return g
}

// closed is the group with its open slice as an observation.
func (g Group) closed() Group {
	g.close()
	return g
}

// relativeVariance is the relative variance of one observation. A prior with the spread of a
// Normal deviation of 0.4 counts for expectedN observations, because a few that happen to
// agree prove little: if one connection in six is slow, 16 contain no slow one in one case
// of 20.
func (g *Group) relativeVariance() float64 {
	const expected, expectedN = 0.4 * 0.4 * aversion * aversion, 16
	return (expectedN*expected + g.M2/(g.Mean*g.Mean)) / (expectedN + max(0, g.N-1))
}

// Gain is by what factor treated connections are faster than the hold-out, by the mean of
// the cubed times, which weighs slow connections most (see tail.go): above 1 is better than
// the default.
type Gain struct {
	// Ratio is 0 (absent in JSON), as Low and High, if there are too few observations for an interval.
	Ratio float64 `json:"ratio,omitempty"`
	// Low and High are the bounds of a confidence interval (95 %) of Ratio that is valid at
	// any time.
	Low  float64 `json:"low,omitempty"`
	High float64 `json:"high,omitempty"`
	// BySlice is what of the hold-out was compared: "slices" of time, which is unbiased, or single
	// "connections", which ran among treated ones.
	BySlice BySlice `json:"by"`
	// Treated and HeldOut count the observations.
	Treated float64 `json:"treated"`
	HeldOut float64 `json:"held_out"`
}

// BySlice says what of the hold-out is compared. As text it is slices or connections.
type BySlice bool

func (b BySlice) String() string {
	if b {
		return "slices"
	}
	return "connections"
}

// MarshalText implements encoding.TextMarshaler.
func (b BySlice) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *BySlice) UnmarshalText(text []byte) error {
	for _, v := range []BySlice{true, false} {
		if string(text) == v.String() {
			*b = v
			return nil
		}
	}
	return fmt.Errorf("%q: want slices or connections", text)
}

// Known reports whether there is an interval.
func (g Gain) Known() bool { return g.High > 0 }

// BySingles reports whether there is an interval, found with single connections of the hold-out:
// if connections overlap, it may be wrong.
func (g Gain) BySingles() bool { return g.Known() && !bool(g.BySlice) }

// Better and Worse report whether the gain is significantly above or below 1.
func (g Gain) Better() bool { return g.Known() && g.Low > 1 }
func (g Gain) Worse() bool  { return g.Known() && g.High < 1 }

// Gain compares by slices if the hold-out has enough of them, otherwise by connections.
func (c *Comparison) Gain() Gain {
	treated, slices, conns := c.Treated.closed(), c.Slices.closed(), c.Connections.closed()
	if slices.N >= leastCompared || slices.N >= conns.N {
		g := gainOf(&treated, &slices)
		g.BySlice = true
		return g
	}
	return gainOf(&treated, &conns)
}

// Harm is the gain by which guards act, and whether it is significantly below 1. Single
// connections of the hold-out count only if they did not share their path with treated ones.
// If connections overlap, the gain by single ones is shown but guards do not act on it: a default
// that takes capacity from the treated connections beside it looks better than it is.
func (c *Comparison) Harm() (Gain, bool) {
	g := c.Gain()
	if !bool(g.BySlice) && c.biased() {
		return g, false
	}
	return g, g.Worse()
}

// gainOf compares two groups. One slow observation, such as a bad trial, can dominate the
// mean of a few cubes. So each bound must also hold without the slowest observation of the
// group that the bound counts against.
func gainOf(treated, holdOut *Group) Gain {
	g := Gain{Treated: treated.N, HeldOut: holdOut.N}
	if treated.N <= 0 || holdOut.N <= 0 || treated.Mean <= 0 || holdOut.Mean <= 0 {
		return g
	}
	if treated.N < leastCompared || holdOut.N < leastCompared {
		return g
	}
	g.Ratio = gainRatio(treated, holdOut)
	low, high := bounds(treated, holdOut)
	spared := treated.withoutMost()
	_, otherHigh := bounds(&spared, holdOut)
	spared = holdOut.withoutMost()
	otherLow, _ := bounds(treated, &spared)
	g.Low, g.High = min(low, otherLow), max(high, otherHigh)
	return g
}

func gainRatio(treated, holdOut *Group) float64 {
	return math.Pow(holdOut.Mean/treated.Mean, 1./aversion)
}

// bounds is the interval of the gain. Often most observations are fast and a few are slow.
// A group that happens to contain no slow one underestimates both mean and variance. So each
// group has at least the pooled variance, and the difference of the means is compared, so that
// a small mean does not count as more certain than a great one. A group that happens
// to contain more slow ones than usual overestimates the mean: then the difference of the
// logarithms is more conservative. The wider of the two intervals is used.
func bounds(treated, holdOut *Group) (low, high float64) {
	n := treated.N + holdOut.N
	vt, vh := treated.relativeVariance(), holdOut.relativeVariance()
	pooled := (vt*treated.N + vh*holdOut.N) / n
	off := boundary(1/(1/treated.N+1/holdOut.N), alpha) *
		math.Sqrt(max(vt, pooled)/treated.N+max(vh, pooled)/holdOut.N)
	// least is the factor x, at most 1, by which the true ratio of the means may be smaller than
	// the observed one: the lesser of exp(-off), by the difference of the logarithms, and the x
	// with 1 - x = off (a + b x)/n, by the difference of the means relative to their common mean.
	least := func(a, b float64) float64 {
		x := min(math.Exp(-off), (1-off*a/n)/(1+off*b/n))
		return math.Pow(max(x, math.Exp(-aversion*comparedClip)), 1./aversion)
	}
	ratio := gainRatio(treated, holdOut)
	return ratio * least(holdOut.N, treated.N), ratio / least(treated.N, holdOut.N)
}
