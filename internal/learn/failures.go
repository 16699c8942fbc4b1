package learn

import "math"

// Failures compares how many connections fail: those that tcpilot treats, and those of the
// hold-out. Comparison does not see them, because a connection that fails has no speed.
//
// Failures come together: a peer that is down fails all connections of that time. So the
// connections of one slice of time are one observation, and what is compared are ratios of
// sums over slices, with the variance between slices (W. Cochran, "Sampling Techniques",
// 3rd ed. 1977, section 9A.1). A failure that is the peer's meets both groups alike, because
// slices are drawn at random.
//
// The share of the hold-out differs from path to path, and falls with time. Each connection
// therefore counts in inverse proportion to the probability of its group (D. Horvitz and
// D. Thompson, J. Am. Stat. Assoc. 47, 1952). Otherwise the group with more connections to
// a bad peer would look worse.
type Failures struct {
	treated, slices, connections failureGroup
	shared                       float64 // observations of connections whose path had overlapping connections
}

// failureGroup has sums over the observations of one group. Those of an observation are the
// weight of its connections, and of the ones that failed.
type failureGroup struct {
	n                     float64 // observations
	all, failed           float64
	allAll, failFail, mix float64 // sums of squares, and of products
	each                  float64 // sum of the squared weights of connections

	// The open slice of time.
	slice             int64
	openAll, openFail float64
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
// Outcome.Slice and Outcome.AtOnce.
func (f *Failures) Add(failed bool, by Assignment, weight float64, slice int64, atOnce float64) {
	if !(weight > 0) || math.IsInf(weight, 0) {
		return
	}
	switch by {
	case HoldOutSlice:
		f.slices.add(failed, weight, slice)
	case HoldOutConnection:
		n := f.connections.n
		if f.connections.add(failed, weight, slice); atOnce >= Overlapping {
			f.shared += f.connections.n - n
		}
	default:
		f.treated.add(failed, weight, slice)
	}
	if holdOut := max(f.slices.n, f.connections.n); min(f.treated.n, holdOut) > failureMemory || f.treated.n+holdOut > mostFailures {
		for _, g := range []*failureGroup{&f.treated, &f.slices, &f.connections} {
			g.halve()
		}
		f.shared /= 2
	}
}

// Harm is how many connections fail, and whether it is significantly more than in the
// hold-out, with an error of at most 5 % at any time.
func (f *Failures) Harm() (FailureShares, bool) {
	treated, slices, conns := f.treated.closed(), f.slices.closed(), f.connections.closed()
	if s := sharesOf(&treated, &slices); moreFail(&treated, &slices) {
		s.BySlice = true
		return s, true
	}
	s := sharesOf(&treated, &conns)
	shared := f.shared > mostShared*conns.n
	return s, moreFail(&treated, &conns) && (!shared || s.TreatedShare-s.HeldOutShare >= beyondSharing)
}

func sharesOf(treated, holdOut *failureGroup) FailureShares {
	return FailureShares{TreatedShare: treated.share(), HeldOutShare: holdOut.share(), Treated: treated.n, HeldOut: holdOut.n}
}

// moreFail reports whether significantly more connections fail in the first group. A group
// without a failure looks certain, and is not: each has at least the variance between the
// observations of both together, and that of as many independent connections.
func moreFail(treated, holdOut *failureGroup) bool {
	if treated.n < leastCompared || holdOut.n < leastCompared || treated.share() <= holdOut.share() {
		return false
	}
	nt, nh := treated.effective(), holdOut.effective()
	p := (treated.share()*nt + holdOut.share()*nh + 0.5) / (nt + nh + 1)
	pooled := (treated.variance(p)*nt + holdOut.variance(p)*nh) / (nt + nh)
	square := func(g *failureGroup) float64 { // of the standard error of the group's share
		return max(max(pooled, g.variance(g.share()))/g.effective(), p*(1-p)*g.each/(g.all*g.all))
	}
	off := boundary(1/(1/nt+1/nh), alpha/2) * math.Sqrt(square(treated)+square(holdOut)) // half of alpha for each of two tests
	return treated.share()-holdOut.share() > off
}

// add adds a connection. One of an earlier slice counts in the open one, so that a
// slice with slow connections is not counted in pieces.
func (g *failureGroup) add(failed bool, weight float64, slice int64) {
	if slice == 0 || slice > g.slice {
		g.close()
		g.slice = slice
	}
	g.openAll += weight
	g.each += weight * weight
	if failed {
		g.openFail += weight
	}
}

func (g *failureGroup) close() {
	if g.openAll > 0 {
		g.n++
		g.all += g.openAll
		g.failed += g.openFail
		g.allAll += g.openAll * g.openAll
		g.failFail += g.openFail * g.openFail
		g.mix += g.openAll * g.openFail
	}
	g.openAll, g.openFail = 0, 0
}

// closed is the group with its open slice as an observation.
func (g failureGroup) closed() failureGroup {
	g.close()
	return g
}

func (g *failureGroup) halve() {
	for _, v := range []*float64{&g.n, &g.all, &g.failed, &g.allAll, &g.failFail, &g.mix, &g.each} {
		*v /= 2
	}
}

// share of the connections that failed.
func (g *failureGroup) share() float64 {
	if g.all == 0 {
		return 0
	}
	return g.failed / g.all
}

// effective is the number of observations of equal weight that would say as much (Kish).
func (g *failureGroup) effective() float64 { return g.all * g.all / g.allAll }

// variance of one such observation around a share.
func (g *failureGroup) variance(share float64) float64 {
	squares := g.failFail - 2*share*g.mix + share*share*g.allAll
	return max(0, squares) / (g.all * g.all) * g.effective()
}
