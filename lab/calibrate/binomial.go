package calibrate

import "math"

// tail is the probability, on each side, that the measurement of a link that does what was
// asked is outside of the interval: together 0.1 %.
const tail = 0.0005

// interval contains the share of hits among n trials of probability p with a probability
// of 99.9 %: the exact binomial quantiles.
func interval(n float64, p float64) (low, high float64) {
	n = math.Floor(n)
	if n < 1 {
		return 0, 1
	}
	if p <= 0 || p >= 1 {
		return p, p
	}
	mean, sd := n*p, math.Sqrt(n*p*(1-p))
	// Beyond ten standard deviations and twenty hits the probability is far below tail.
	first, last := math.Max(0, math.Floor(mean-10*sd-20)), math.Min(n, math.Ceil(mean+10*sd+20))
	low, high = first, last
	for k, sum := first, 0.0; k <= last; k++ {
		if sum += chance(n, k, p); sum > tail {
			low = k
			break
		}
	}
	for k, sum := last, 0.0; k >= first; k-- {
		if sum += chance(n, k, p); sum > tail {
			high = k
			break
		}
	}
	return low / n, high / n
}

// chance is the binomial probability of k hits in n trials.
func chance(n, k, p float64) float64 {
	all, _ := math.Lgamma(n + 1)
	hits, _ := math.Lgamma(k + 1)
	misses, _ := math.Lgamma(n - k + 1)
	return math.Exp(all - hits - misses + k*math.Log(p) + (n-k)*math.Log1p(-p))
}
