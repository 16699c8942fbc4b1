package learn

import "math"

// Failures compares how many connections fail: those that tcpilot treats, and those of the
// hold-out. Comparison does not see them, because a connection that fails has no speed.
//
// Failures come together: a peer that is down fails all connections of that time. So the
// connections of one slice of time are one observation, and what is compared are ratios of
// sums over slices, with the variance between slices (W. Cochran, "Sampling Techniques",
// 3rd ed. 1977, section 9A.1). A failure of the peer affects both groups alike, because slices
// are drawn at random.
//
// The share of the hold-out differs from path to path, and falls with time. Each connection
// therefore counts in inverse proportion to the probability of its group (D. Horvitz and
// D. Thompson, J. Am. Stat. Assoc. 47, 1952). Otherwise the group with more connections to
// a bad peer would look worse.
type Failures struct {
	Treated     FailureGroup `json:"treated,omitzero"`
	Slices      FailureGroup `json:"slices,omitzero"`      // held out whole
	Connections FailureGroup `json:"connections,omitzero"` // held out one by one
	// Shared is the part of Connections whose path had overlapping connections.
	Shared float64 `json:"shared,omitempty"` // observations
}

// FailureGroup has sums over the observations of one group. Those of an observation are the
// weight of its connections, and of the ones that failed.
type FailureGroup struct {
	N        float64 `json:"n,omitempty"` // observations
	All      float64 `json:"all,omitempty"`
	Failed   float64 `json:"failed,omitempty"`
	AllAll   float64 `json:"all_squared,omitempty"` // sums of squares ...
	FailFail float64 `json:"failed_squared,omitempty"`
	Mix      float64 `json:"all_failed,omitempty"`   // ... and of products
	Each     float64 `json:"each_squared,omitempty"` // sum of the squared weights of connections

	// The open slice of time.
	Slice    int64   `json:"slice_ns,omitempty"`
	OpenAll  float64 `json:"open_all,omitempty"`
	OpenFail float64 `json:"open_failed,omitempty"`
}

const (
	// Beyond failureMemory observations of the smaller group, or mostFailures of both, all
	// groups are halved. More than mostCompared, because failures are rare.
	failureMemory = 1000
	mostFailures  = 40_000
	// beyondSharing is the difference of the shares that fail which cannot come from connections
	// that share a path: from there on, single connections of the hold-out count.
	beyondSharing = 0.5
)

// FailureShares is how many connections fail.
type FailureShares struct {
	TreatedShare, HeldOutShare float64 // 0 to 1
	Treated, HeldOut           float64 // observations
	BySlice                    BySlice // as Gain.BySlice
}

// Add adds a connection that ended. weight is the inverse probability of its assignment,
// multiplied by the number of connections that it stands for; slice and atOnce are as
// Outcome.Slice and Outcome.AtOnce, and at is when it ended (Unix nanoseconds).
func (f *Failures) Add(failed bool, by Assignment, weight float64, slice, at int64, atOnce float64) {
	if !(weight > 0) || math.IsInf(weight, 0) {
		return
	}
	switch by {
	case HoldOutSlice:
		f.Slices.add(failed, weight, slice, at)
	case HoldOutConnection:
		n := f.Connections.N
		if f.Connections.add(failed, weight, slice, at); atOnce >= Overlapping {
			f.Shared += f.Connections.N - n
		}
	default:
		f.Treated.add(failed, weight, slice, at)
	}
	if holdOut := max(f.Slices.N, f.Connections.N); min(f.Treated.N, holdOut) > failureMemory || f.Treated.N+holdOut > mostFailures {
		for _, g := range []*FailureGroup{&f.Treated, &f.Slices, &f.Connections} {
			g.halve()
		}
		f.Shared /= 2
	}
}

// Harm is how many connections fail, and whether it is significantly more than in the
// hold-out, with an error of at most 5 % at any time.
func (f *Failures) Harm() (FailureShares, bool) {
	treated, slices, conns := f.Treated.closed(), f.Slices.closed(), f.Connections.closed()
	if s := sharesOf(&treated, &slices); moreFail(&treated, &slices) {
		s.BySlice = true
		return s, true
	}
	s := sharesOf(&treated, &conns)
	shared := f.Shared > mostShared*conns.N
	return s, moreFail(&treated, &conns) && (!shared || s.TreatedShare-s.HeldOutShare >= beyondSharing)
}

func sharesOf(treated, holdOut *FailureGroup) FailureShares {
	return FailureShares{TreatedShare: treated.share(), HeldOutShare: holdOut.share(), Treated: treated.N, HeldOut: holdOut.N}
}

// moreFail reports whether significantly more connections fail in the first group. A group
// without a failure looks certain, and is not: each has at least the variance between the
// observations of both together, and that of as many independent connections.
func moreFail(treated, holdOut *FailureGroup) bool {
	if treated.N < leastCompared || holdOut.N < leastCompared || treated.share() <= holdOut.share() {
		return false
	}
	nt, nh := treated.effective(), holdOut.effective()
	p := (treated.share()*nt + holdOut.share()*nh + 0.5) / (nt + nh + 1)
	pooled := (treated.variance(p)*nt + holdOut.variance(p)*nh) / (nt + nh)
	square := func(g *FailureGroup) float64 { // of the standard error of the group's share
		return max(max(pooled, g.variance(g.share()))/g.effective(), p*(1-p)*g.Each/(g.All*g.All))
	}
	off := boundary(1/(1/nt+1/nh), alpha/2) * math.Sqrt(square(treated)+square(holdOut)) // half of alpha for each of two tests
	return treated.share()-holdOut.share() > off
}

// add adds a connection. One of an earlier slice counts in the open one, so that a
// slice with slow connections is not counted in pieces. If the open one is later than at, the clock was set back.
func (g *FailureGroup) add(failed bool, weight float64, slice, at int64) {
	if slice == 0 || slice > g.Slice || g.Slice-at > late {
		g.close()
		g.Slice = slice
	}
	g.OpenAll += weight
	g.Each += weight * weight
	if failed {
		g.OpenFail += weight
	}
}

func (g *FailureGroup) close() {
	if g.OpenAll > 0 {
		g.N++
		g.All += g.OpenAll
		g.Failed += g.OpenFail
		g.AllAll += g.OpenAll * g.OpenAll
		g.FailFail += g.OpenFail * g.OpenFail
		g.Mix += g.OpenAll * g.OpenFail
	}
	g.OpenAll, g.OpenFail = 0, 0
}

// closed is the group with its open slice as an observation.
func (g FailureGroup) closed() FailureGroup {
	g.close()
	return g
}

func (g *FailureGroup) halve() {
	for _, v := range []*float64{&g.N, &g.All, &g.Failed, &g.AllAll, &g.FailFail, &g.Mix, &g.Each} {
		*v /= 2
	}
}

// share of the connections that failed.
func (g *FailureGroup) share() float64 {
	if g.All == 0 {
		return 0
	}
	return g.Failed / g.All
}

// effective is the number of observations of equal weight that would say as much (Kish).
func (g *FailureGroup) effective() float64 { return g.All * g.All / g.AllAll }

// variance of one such observation around a share.
func (g *FailureGroup) variance(share float64) float64 {
	squares := g.FailFail - 2*share*g.Mix + share*share*g.AllAll
	return max(0, squares) / (g.All * g.All) * g.effective()
}
