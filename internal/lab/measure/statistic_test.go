package measure

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		values []float64
		p      float64
		want   float64
	}{
		{[]float64{7}, 0.99, 7},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 1, 3, 2}, 0.5, 2.5},
		{[]float64{1, 2, 3, 4}, 0, 1},
		{[]float64{1, 2, 3, 4}, 1, 4},
		{[]float64{10, 20, 30, 40, 50}, 0.9, 46}, // as R's quantile(x, 0.9)
	} {
		values := append([]float64(nil), c.values...)
		if have := Quantile(values, c.p); math.Abs(have-c.want) > 1e-12 {
			t.Errorf("%v at %v: %v, want %v", c.values, c.p, have, c.want)
		}
		for i := range values {
			if values[i] != c.values[i] {
				t.Errorf("%v was changed to %v", c.values, values)
			}
		}
	}
	if first, third := Quartiles([]float64{5, 1, 4, 2, 3}); first != 2 || third != 4 {
		t.Errorf("quartiles %v and %v, want 2 and 4", first, third)
	}
	if !math.IsNaN(Median(nil)) {
		t.Error("nothing has a median")
	}
}

func TestJain(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{[]float64{5, 5, 5, 5}, 1}, {[]float64{0, 0, 0, 9}, 0.25}, {[]float64{1, 2, 3}, 36. / 42}} {
		if have, ok := Jain(c.values); !ok || math.Abs(have-c.want) > 1e-12 {
			t.Errorf("%v: %v %v, want %v", c.values, have, ok, c.want)
		}
	}
	if v, ok := Jain([]float64{0, 0}); ok {
		t.Errorf("fairness of nothing is %v", v)
	}
}

func TestMedianCI(t *testing.T) {
	if ci, ok := MedianCI([]float64{1, 2, 3, 4}); ok {
		t.Errorf("an interval of four values: %v", ci)
	}
	if ci, ok := MedianCI([]float64{8, 3, 5, 6, 4}); !ok || ci != (Interval{3, 8}) {
		t.Errorf("of five values: %v %v, want the least and the greatest", ci, ok)
	}
	values := []float64{9.1, 10.2, 9.7, 10.9, 10.1, 9.9, 10.4, 9.5, 30}
	a, _ := MedianCI(values)
	b, _ := MedianCI(values)
	if a != b {
		t.Errorf("%v and then %v of the same values", a, b)
	}
	if !a.Contains(10.1) || a.Low < 9.1 || a.High > 11 {
		t.Errorf("%v: one outlier moved it", a)
	}
}

// The interval holds the true median about as often as it says, from 5 values
// on; those of two runs of the same overlap nearly always.
func TestCoverage(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	draw := func(n int) Interval {
		values := make([]float64, n)
		for i := range values {
			values[i] = random.NormFloat64()
		}
		ci, _ := MedianCI(values)
		return ci
	}
	const runs = 300
	for _, c := range []struct {
		n                 int
		atLeast, overlaps float64
	}{{5, 0.85, 0.95}, {7, 0.8, 0.93}, {10, 0.88, 0.95}} {
		contains, overlaps := 0, 0
		for range runs {
			a, b := draw(c.n), draw(c.n)
			if a.Contains(0) {
				contains++
			}
			if a.Overlaps(b) {
				overlaps++
			}
		}
		if have := float64(contains) / runs; have < c.atLeast {
			t.Errorf("%d values: %.2f of the intervals hold the median, want %.2f", c.n, have, c.atLeast)
		}
		if have := float64(overlaps) / runs; have < c.overlaps {
			t.Errorf("%d values: %.2f of the pairs overlap, want %.2f", c.n, have, c.overlaps)
		}
	}
}

// A machine that slows down and recovers strikes both of a pair: only pairing
// sees that the subject is 10 % better.
func TestPairedRatioRemovesDrift(t *testing.T) {
	baseline := []float64{100, 60, 30, 80, 110, 45, 95}
	subject := make([]float64, len(baseline))
	for i, b := range baseline {
		subject[i] = b * (1.1 + 0.005*float64(i%3-1))
	}
	paired, ok := PairedRatio(subject, baseline)
	if !ok || math.Abs(paired.Ratio-1.1) > 0.01 || !paired.Distinct() || paired.N != 7 {
		t.Errorf("paired: %+v", paired)
	}
	unpaired, ok := UnpairedRatio(subject, baseline)
	if !ok || unpaired.Distinct() {
		t.Errorf("unpaired: %+v, want an interval that includes 1", unpaired)
	}
	if math.Abs(unpaired.Ratio-1.1) > 0.01 {
		t.Errorf("unpaired ratio %v", unpaired.Ratio)
	}
}

func TestRatiosWithoutAnswer(t *testing.T) {
	if r, ok := PairedRatio([]float64{1, 2}, []float64{0, 0}); ok {
		t.Errorf("ratio to 0: %+v", r)
	}
	if r, ok := PairedRatio([]float64{1, 2, 3}, []float64{0, 4}); !ok || r.Ratio != 0.5 || r.N != 1 || r.CI != nil || r.Distinct() {
		t.Errorf("one pair: %+v %v", r, ok)
	}
	for _, c := range [][2][]float64{{nil, {1}}, {{1}, nil}, {{1}, {0}}} {
		if r, ok := UnpairedRatio(c[0], c[1]); ok {
			t.Errorf("%v to %v: %+v", c[0], c[1], r)
		}
	}
	// Half of the resampled baselines have a median of 0: there is no upper end.
	if r, ok := UnpairedRatio([]float64{1, 1, 1}, []float64{0, 1, 1}); !ok || r.CI != nil {
		t.Errorf("a baseline near 0: %+v %v", r, ok)
	}
}

// Samples of the same size are resampled apart: else equal samples would always
// give the ratio 1.
func TestUnpairedResamplesApart(t *testing.T) {
	values := []float64{1, 2, 3, 4, 5, 6, 7}
	r, ok := UnpairedRatio(values, values)
	if !ok || r.CI == nil || r.CI.High-r.CI.Low < 0.5 {
		t.Errorf("%+v %v, want a wide interval", r, ok)
	}
}

func TestRegret(t *testing.T) {
	have := Regret([]float64{10, 5, 0, 12, 10}, 10)
	want := []float64{0, 0.5, 1.5, 1.3, 1.3}
	for i := range want {
		if math.Abs(have[i]-want[i]) > 1e-12 {
			t.Fatalf("%v, want %v", have, want)
		}
	}
	if r := Regret([]float64{1}, 0); r != nil {
		t.Errorf("regret without an oracle: %v", r)
	}
}

func BenchmarkMedianCI(b *testing.B) {
	values := []float64{9.1, 10.2, 9.7, 10.9, 10.1, 9.9, 10.4, 9.5, 30, 11}
	for b.Loop() {
		MedianCI(values)
	}
}
