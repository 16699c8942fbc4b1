package workload

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/tcpilot/tcpilot/lab/load"
)

// Mean is the mean of the distribution in bytes. For a bounded Pareto distribution it is
//
//	L^a / (1 - (L/H)^a) * a/(a-1) * (1/L^(a-1) - 1/H^(a-1))
//
// with minimum L, maximum H and shape a, which is the integral of x times its
// density a L^a x^(-a-1) / (1 - (L/H)^a); for a = 1 it is L H/(H-L) ln(H/L).
// (Harchol-Balter, Performance Modeling and Design of Computer Systems, chapter
// 20.) With a = 0.8 and H = 52 L it is 5.03 L.
func (s Size) Mean() float64 {
	if s.Fixed > 0 || s.Alpha == 0 {
		return float64(s.Fixed)
	}
	l, h, a := s.Scale, s.Max, s.Alpha
	if a == 1 {
		return l * h / (h - l) * math.Log(h/l)
	}
	return math.Pow(l, a) / (1 - math.Pow(l/h, a)) * a / (a - 1) * (math.Pow(l, 1-a) - math.Pow(h, 1-a))
}

// draw draws a size by inverting the distribution function.
func (s Size) draw(r *rand.Rand) uint32 {
	if s.Fixed > 0 {
		return uint32(s.Fixed)
	}
	u := r.Float64() // below 1
	least := math.Pow(s.Scale/s.Max, s.Alpha)
	x := s.Scale * math.Pow(1-u*(1-least), -1/s.Alpha)
	return uint32(min(math.Round(x), s.Max))
}

// sizes draws n sizes. A part of the traffic has the same sizes with every subject; each
// pair of hosts has its own.
func (s Spec) sizes(pair, n int) []uint32 {
	r := rand.New(rand.NewPCG(uint64(s.Seed), uint64(2*pair)))
	sizes := make([]uint32, n)
	for i := range sizes {
		sizes[i] = s.Size.draw(r)
	}
	return sizes
}

// cycle is how many sizes are drawn if it is not known how many are needed. After the last
// one, the first is used again. It is large enough that the mean of a heavy-tailed
// distribution is nearly that of the whole distribution.
const cycle = 1 << 14

// flows draws the part's flows for a pair of hosts.
func (s Spec) flows(pair int) (flows []load.Flow) {
	if len(s.Trace) > 0 {
		for _, a := range s.Trace {
			flows = append(flows, load.Flow{At: a.At, Size: uint32(a.Size)})
		}
		return flows
	}
	n := s.times(cycle)
	at := make([]time.Duration, n)
	if s.Rate > 0 {
		at = s.poisson(pair, n)
	}
	for i, size := range s.sizes(pair, len(at)) {
		flows = append(flows, load.Flow{At: at[i], Size: size})
	}
	return flows
}

// poisson draws when flows begin: gaps are exponential with mean 1/Rate. Without a count
// there are as many flows as begin within the duration. With a count there may be fewer, if
// the duration ends first.
func (s Spec) poisson(pair, n int) (at []time.Duration) {
	r := rand.New(rand.NewPCG(uint64(s.Seed), uint64(2*pair+1)))
	if s.endless() {
		n = load.MaxFlows
	}
	for t := 0.0; len(at) < n; {
		t += r.ExpFloat64() / s.Rate
		if t >= s.bound().Seconds() {
			break
		}
		at = append(at, time.Duration(t*float64(time.Second)))
	}
	return at
}
