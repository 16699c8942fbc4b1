package learn

import (
	"math"
	"slices"

	"github.com/tcpilot/tcpilot/internal/path"
)

// posterior is the belief in an arm's mean reward: Student's t, in natural log.
type posterior struct {
	mean, sd float64
	dof      float64 // degrees of freedom, 3 or more
}

// cdf returns the probability that the mean is at most x. Wallace's transformation of
// t to a Normal deviate (Bounds on normal approximations to Student's and the
// chi-square distributions, Ann. Math. Stat. 30, 1959) is within 0.002 for 3 or more
// degrees of freedom, at a fraction of the cost of the incomplete beta function.
func (p posterior) cdf(x float64) float64 {
	t := (x - p.mean) / p.sd
	z := (8*p.dof + 1) / (8*p.dof + 3) * math.Sqrt(p.dof*math.Log(1+t*t/p.dof))
	if t > 0 {
		return 1 - upper(z)
	}
	return upper(z)
}

const (
	upperStep = 1. / 64
	upperEnd  = 8. // beyond it a Normal tail is below 1e-15
)

// upperTable holds the upper tail of the Normal distribution. Shares are computed
// for every path in use at every tick, and math.Erfc was most of the cost. The error
// of linear interpolation at this step is below 1e-5.
var upperTable = func() (t [upperEnd/upperStep + 2]float64) {
	for i := range t {
		t[i] = 0.5 * math.Erfc(float64(i)*upperStep/math.Sqrt2)
	}
	return t
}()

// upper is the probability that a Normal deviate exceeds z, 0 or more.
func upper(z float64) float64 {
	if z >= upperEnd {
		return 0
	}
	x := z * (1 / upperStep)
	i := int(x)
	return upperTable[i] + (upperTable[i+1]-upperTable[i])*(x-float64(i))
}

// normal is the distribution function of the standard Normal.
func normal(z float64) float64 {
	if z < 0 {
		return upper(-z)
	}
	return 1 - upper(z)
}

// nodes at which the quadrature samples every posterior, in standard deviations.
// They are scaled by each arm, so that the narrow posterior of one arm does not fall
// between two points of a wide one.
var nodes = [...]float64{-4, -2.6, -1.8, -1.2, -0.7, -0.25, 0.25, 0.7, 1.2, 1.8, 2.6, 4, 7}

// tailSDs bounds the plausible values of an arm. An arm whose plausible values are all
// below those of another cannot be the best, and is left out of the quadrature.
const tailSDs = 7

// finest is the least distance between two points of the quadrature, in standard
// deviations of the most certain arm: many similar arms need no more points than one.
const finest = 0.3

// bestShares writes to share[i] the probability that arm i has the greatest mean:
// the integral over x of dF_i(x) prod_{j != i} F_j(x), by the trapezoid rule on the
// union of all arms' nodes. It is deterministic, and independent of the order of
// the arms except for rounding.
func bestShares(share []float64, post []posterior) {
	var lbuf [path.MaxArms]posterior
	var ibuf [path.MaxArms]int
	lo := math.Inf(-1)
	for _, p := range post {
		lo = max(lo, p.mean-tailSDs*p.sd)
	}
	live, index := lbuf[:0], ibuf[:0]
	for i, p := range post {
		share[i] = 0
		if p.mean+tailSDs*p.sd > lo {
			live, index = append(live, p), append(index, i)
		}
	}
	var sbuf [path.MaxArms]float64
	got := append(sbuf[:0], share[:len(live)]...)
	clear(got)
	var xbuf [path.MaxArms * len(nodes)]float64
	integrate(got, live, points(xbuf[:0], live, lo))
	total := 0.0
	for _, s := range got {
		total += s
	}
	for k, i := range index {
		share[i] = got[k] / total
	}
}

// points appends the points of the quadrature to xs, in order, none below lo.
func points(xs []float64, post []posterior, lo float64) []float64 {
	least := math.Inf(1)
	for _, p := range post {
		least = min(least, p.sd)
		for _, z := range nodes {
			if x := p.mean + z*p.sd; x > lo {
				xs = append(xs, x)
			}
		}
	}
	slices.Sort(xs)
	n := 1
	for _, x := range xs[1:] {
		if x-xs[n-1] >= finest*least {
			xs[n] = x
			n++
		}
	}
	return xs[:n]
}

// integrate adds to share the cells between the points xs, and those before the first
// and after the last.
func integrate(share []float64, post []posterior, xs []float64) {
	var a, c, d [path.MaxArms]float64
	was, mid, step := append(a[:0], share...), append(c[:0], share...), append(d[:0], share...)
	for k := 0; k <= len(xs); k++ {
		for i := range post {
			now := 1.0
			if k < len(xs) {
				now = post[i].cdf(xs[k])
			}
			step[i], mid[i], was[i] = now-was[i], (now+was[i])/2, now
		}
		// Product of all others: those before, going up, times those after, going down.
		prod := 1.0
		for i := range step {
			step[i] *= prod
			prod *= mid[i]
		}
		prod = 1
		for i := len(step) - 1; i >= 0; i-- {
			share[i] += step[i] * prod
			prod *= mid[i]
		}
	}
}
