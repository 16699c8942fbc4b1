package measure

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// The statistics of a pool are those of its values, each round repeated by its weight.
func TestPoolStatistics(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	for range 50 {
		var rounds [][]float64
		var weights []int
		var all []float64
		for range 1 + random.IntN(5) {
			values := make([]float64, 1+random.IntN(30))
			for i := range values {
				values[i] = math.Round(random.ExpFloat64()*10) + 1 // with ties
			}
			w := random.IntN(4)
			rounds, weights = append(rounds, values), append(weights, w)
			for range w {
				all = append(all, values...)
			}
		}
		if len(all) == 0 {
			continue
		}
		p := newPool(rounds)
		for metric, want := range map[string]float64{
			"fct_mean": mean(all), "web/later/fct_p50": quantile(all, 0.5), "fct_p75": quantile(all, 0.75), "fct_p90": quantile(all, 0.9), "fct_p95": quantile(all, 0.95), "fct_p99": quantile(all, 0.99),
		} {
			s, ok := Completions(metric)
			if got := p.statistic(s, weights); !ok || math.Abs(got-want) > 1e-9*want {
				t.Errorf("%s of %v, %v times: %v, want %v", metric, rounds, weights, got, want)
			}
		}
	}
	if _, ok := Completions("goodput"); ok {
		t.Error("goodput counts as a statistic of completion times")
	}
}

// If a subject is slow in one round of five, the median of the rounds' ratios does not
// show it; the pool does.
func TestPooledRatioSeesFewSlowRounds(t *testing.T) {
	const n = 5
	var subject, baseline [][]float64
	var a, b []float64 // 95th percentiles by round
	for round := range n {
		base := make([]float64, 100)
		for i := range base {
			base[i] = 1 + float64(i)/1000
		}
		own := slices.Clone(base)
		if round == 2 {
			for i := range own[:60] {
				own[i] = 3
			}
		}
		subject, baseline = append(subject, own), append(baseline, base)
		a, b = append(a, quantile(own, 0.95)), append(b, quantile(base, 0.95))
	}
	byRound, ok := PairedRatio(a, b)
	if !ok || byRound.Ratio != 1 {
		t.Errorf("by rounds %+v, want 1", byRound)
	}
	pooled, ok := PooledRatio(subject, baseline, 0.95)
	if !ok || pooled.N != n || pooled.Ratio < 2.5 {
		t.Fatalf("pooled %+v, want about 2.7", pooled)
	}
	if pooled.CI == nil || pooled.CI.Low > 1 || pooled.CI.High < 2.5 {
		t.Errorf("its interval is %+v: resamples without the slow round are at 1", pooled.CI)
	}
	if r, ok := PooledRatio(subject[:4], baseline[:4], 0.95); !ok || r.CI != nil {
		t.Errorf("of four pairs %+v, want no interval", r)
	}
	if r, ok := PooledRatio(nil, nil, 0.95); ok {
		t.Errorf("without values %+v", r)
	}
}
