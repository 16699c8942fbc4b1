package limit

import (
	"math"
	"slices"
)

// slack is how much more than the limit the shares may sum to, as a part of the limit. It is the
// room in which connections that do not use their whole share can grow before the next division,
// and nobody uses it all the time.
const slack = 1. / 8

// need is what one connection wants of a limit.
type need struct {
	rate  float64 // bytes/s; +Inf: as much as it can get
	bound float64 // bytes/s; the most that it may get from elsewhere; +Inf: no bound
}

// divide divides a rate among connections: each gets what it needs, but at most the level, which is
// the same for all (max-min fairness, water-filling: Bertsekas and Gallager, "Data Networks",
// 6.5.2). It writes the shares to out. Their sum is at most (1+slack) times the rate. level is
// +Inf if nobody wants more than it gets.
func divide(rate float64, needs []need, out []float64) (level float64) {
	level = fairLevel(rate, needs)
	var bounded, used float64
	for _, n := range needs {
		if x := min(n.rate, n.bound); x < level {
			bounded++
			used += x
		}
	}
	room := slack * rate
	if math.IsInf(level, 1) {
		room = max(room, rate-used) // nobody else wants it now
	}
	for i, n := range needs {
		x := min(n.rate, n.bound)
		if x >= level {
			out[i] = level
			continue
		}
		// Half of the room in equal parts, so that one that sends little can grow as well.
		grow := room / 2 / bounded
		if used > 0 {
			grow += room / 2 * x / used
		}
		out[i] = min(x+grow, n.bound, max(level, x), rate)
	}
	return level
}

// fairLevel is the greatest level at which what connections get, at most the level each, sums to
// no more than the rate; +Inf if their needs do not exceed the rate.
func fairLevel(rate float64, needs []need) float64 {
	wants := make([]float64, len(needs))
	for i, n := range needs {
		wants[i] = min(n.rate, n.bound)
	}
	slices.Sort(wants)
	left := rate
	for i, w := range wants {
		level := left / float64(len(wants)-i)
		if w > level {
			return level
		}
		left -= w
	}
	return math.Inf(1)
}

// among returns the number of equal shares n that a limit is divided into: the fair share of one more
// connection that wants as much as it can get is rate/(n+1).
func among(rate float64, needs []need) float64 {
	level := fairLevel(rate, append(slices.Clone(needs), need{math.Inf(1), math.Inf(1)}))
	if !(level > 0) {
		return float64(len(needs))
	}
	return rate/level - 1
}
