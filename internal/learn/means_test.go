package learn

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestMeanGain(t *testing.T) {
	same := func(n int, v float64) (out []float64) {
		for range n {
			out = append(out, v)
		}
		return out
	}
	for name, c := range map[string]struct {
		treated, heldOut []float64
		known            bool
		worse, better    bool
	}{
		"too few of one":     {same(100, 3), same(4, 1), false, false, false},
		"too few of another": {same(4, 3), same(100, 1), false, false, false},
		"half as fast":       {same(16, 1), same(5, 1+math.Ln2), true, true, false},
		"twice as fast":      {same(5, 1+math.Ln2), same(16, 1), true, false, true},
		"a little slower":    {same(16, 1), same(5, 1.3), true, false, false},
		"scattered":          {[]float64{1, 3, 1, 3, 1, 3}, []float64{2, 5, 2, 5, 2, 5}, true, false, false},
	} {
		g := MeanGain(c.treated, c.heldOut)
		if g.Known() != c.known || g.Worse() != c.worse || g.Better() != c.better || bool(g.BySlice) {
			t.Errorf("%s: %+v", name, g)
		}
		if int(g.Treated) != len(c.treated) || int(g.HeldOut) != len(c.heldOut) || g.Known() && !(g.Low < g.Ratio && g.Ratio < g.High) {
			t.Errorf("%s: %+v", name, g)
		}
	}
	if g := MeanGain(same(8, 2), same(8, 1)); math.Abs(g.Ratio-math.E) > 1e-9 {
		t.Errorf("ratio %v", g.Ratio)
	}
}

// Groups that do not differ are seldom told apart, however often that is tried.
func TestMeanGainErrs(t *testing.T) {
	const runs, most = 2000, 0.05
	rng, errs := rand.New(rand.NewPCG(1, 1)), 0
	for range runs {
		var a, b []float64
		for range 200 {
			a, b = append(a, 0.6*rng.NormFloat64()), append(b, 0.6*rng.NormFloat64())
			if g := MeanGain(a, b); g.Worse() || g.Better() {
				errs++
				break
			}
		}
	}
	if share := float64(errs) / runs; share > most {
		t.Errorf("%.3f of the runs find a difference", share)
	}
}
