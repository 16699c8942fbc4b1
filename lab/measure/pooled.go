package measure

import (
	"math/rand/v2"
	"slices"
)

// Completions returns which statistic of completion times a metric is: fct_mean is the
// mean, fct_p95 a quantile. It returns false for other metrics.
func Completions(metric string) (statistic Completion, ok bool) {
	_, name := Split(metric)
	statistic, ok = map[string]Completion{"fct_mean": meanCompletion, "fct_p50": 0.50, "fct_p75": 0.75, "fct_p90": 0.90, "fct_p95": 0.95, "fct_p99": 0.99}[name]
	return statistic, ok
}

// Completion is a statistic of completion times: a quantile, or meanCompletion.
type Completion float64

const meanCompletion Completion = -1

// PooledRatio compares the completion times of all rounds together: what a user gets who
// comes at a random time. If a subject is slow in only a few rounds, the median of the
// rounds' ratios hides it, and this ratio does not. The i-th rounds of both are a pair.
// The interval is the bootstrap's percentile interval, with pairs of rounds resampled
// (B. Efron and R. Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13). For
// few pairs it is too narrow rather than too wide. N is the number of pairs.
func PooledRatio(subject, baseline [][]float64, statistic Completion) (ratio Ratio, ok bool) {
	n := min(len(subject), len(baseline))
	a, b := newPool(subject[:n]), newPool(baseline[:n])
	weights := make([]int, n)
	for i := range weights {
		weights[i] = 1
	}
	of := func() float64 { return a.statistic(statistic, weights) / b.statistic(statistic, weights) }
	ratio = Ratio{Ratio: of(), N: n}
	if !finite(ratio.Ratio) {
		return Ratio{}, false
	}
	if n < MinSample {
		return ratio, true
	}
	random := rand.New(rand.NewPCG(seed, 3))
	if ci, ok := percentiles(func() float64 {
		clear(weights)
		for range n {
			weights[random.IntN(n)]++
		}
		return of()
	}); ok {
		ratio.CI = &ci
	}
	return ratio, true
}

// pool is values of several rounds, sorted once for all resamples.
type pool struct {
	values []pooled
	sizes  []int // of rounds
	sums   []float64
}

type pooled struct {
	value float64
	round int
}

func newPool(rounds [][]float64) (p pool) {
	for i, values := range rounds {
		sum := 0.0
		for _, v := range values {
			p.values = append(p.values, pooled{v, i})
			sum += v
		}
		p.sizes, p.sums = append(p.sizes, len(values)), append(p.sums, sum)
	}
	slices.SortFunc(p.values, func(a, b pooled) int {
		switch {
		case a.value < b.value:
			return -1
		case a.value > b.value:
			return 1
		}
		return 0
	})
	return p
}

// statistic computes the statistic of the pool in which round i occurs weights[i] times.
func (p pool) statistic(s Completion, weights []int) float64 {
	total, sum := 0, 0.0
	for i, w := range weights {
		total += w * p.sizes[i]
		sum += float64(w) * p.sums[i]
	}
	if s == meanCompletion || total == 0 {
		return sum / float64(total)
	}
	// Like quantile: linear between the two nearest.
	at := float64(s) * float64(total-1)
	below, share := int(at), at-float64(int(at))
	first := p.at(below, weights)
	if share == 0 {
		return first
	}
	return first + share*(p.at(below+1, weights)-first)
}

// at is the i-th of the sorted values, each repeated by its round's weight.
func (p pool) at(i int, weights []int) float64 {
	for _, v := range p.values {
		if i -= weights[v.round]; i < 0 {
			return v.value
		}
	}
	return p.values[len(p.values)-1].value
}
