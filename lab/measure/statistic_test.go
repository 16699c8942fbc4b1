package measure

import (
	"math"
	"math/rand/v2"
	"slices"
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
		if have := quantile(values, c.p); math.Abs(have-c.want) > 1e-12 {
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
		t.Error("no values have a median")
	}
}

func TestJain(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{[]float64{5, 5, 5, 5}, 1}, {[]float64{0, 0, 0, 9}, 0.25}, {[]float64{1, 2, 3}, 36. / 42}} {
		if have, ok := jain(c.values); !ok || math.Abs(have-c.want) > 1e-12 {
			t.Errorf("%v: %v %v, want %v", c.values, have, ok, c.want)
		}
	}
	if v, ok := jain([]float64{0, 0}); ok {
		t.Errorf("fairness of nothing is %v", v)
	}
}

func TestMedianCI(t *testing.T) {
	if ci, ok := MedianCI([]float64{1, 2, 3, 4}); ok {
		t.Errorf("an interval of four values: %v", ci)
	}
	// The levels are those of the binomial distribution: 1 - 2/32, 1 - 2/64,
	// 1 - 2/128, 1 - 2/256, 1 - 2(1+9)/512.
	values := []float64{8, 3, 5, 6, 4}
	for _, c := range []struct {
		more []float64
		want Interval
	}{
		{nil, Interval{3, 8, 0.9375}},
		{[]float64{30}, Interval{3, 30, 0.96875}},
		{[]float64{30, 1}, Interval{1, 30, 0.984375}},
		{[]float64{30, 1, 7}, Interval{1, 30, 0.9921875}},
		{[]float64{30, 1, 7, 9}, Interval{3, 9, 0.9609375}},
	} {
		all := append(slices.Clone(values), c.more...)
		ci, ok := MedianCI(all)
		if !ok || ci.Low != c.want.Low || ci.High != c.want.High || math.Abs(ci.Level-c.want.Level) > 1e-9 {
			t.Errorf("of %v: %+v %v, want %+v", all, ci, ok, c.want)
		}
	}
	if ci, _ := MedianCI(make([]float64, 5000)); ci.Level < confidence || ci.Level > confidence+0.01 {
		t.Errorf("of 5000 values the level is %v", ci.Level)
	}
}

// The interval contains the true median as often as its level says, whatever the
// distribution. Intervals of two runs of the same distribution nearly always overlap.
func TestCoverage(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	draw := func(n int) Interval {
		values := make([]float64, n)
		for i := range values {
			values[i] = math.Exp(2 * random.NormFloat64())
		}
		ci, _ := MedianCI(values)
		return ci
	}
	const runs = 2000
	for _, n := range []int{5, 6, 7, 9, 10, 15, 30} {
		contains, overlaps, level := 0, 0, 0.0
		for range runs {
			a, b := draw(n), draw(n)
			if level = a.Level; a.contains(1) {
				contains++
			}
			if a.Overlaps(b) {
				overlaps++
			}
		}
		// Three standard deviations of a share in that many runs.
		if have, noise := float64(contains)/runs, 3*math.Sqrt(level*(1-level)/runs); math.Abs(have-level) > noise {
			t.Errorf("%d values: %.3f of the intervals hold the median, want %.3f", n, have, level)
		}
		if have := float64(overlaps) / runs; have < 0.97 {
			t.Errorf("%d values: %.2f of the pairs overlap", n, have)
		}
	}
}

// A machine that slows down and recovers affects both of a pair: only pairing shows that
// the subject is 10 % better.
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

func TestUnpairedCoverage(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	draw := func(n int) []float64 {
		values := make([]float64, n)
		for i := range values {
			values[i] = math.Exp(0.5 * random.NormFloat64())
		}
		return values
	}
	const runs = 400
	for _, n := range []int{5, 7, 15} {
		contains := 0
		for range runs {
			if r, _ := UnpairedRatio(draw(n), draw(n)); !r.Distinct() {
				contains++
			}
		}
		// With 400 intervals of 95 %, a share below 0.92 occurs once in 200 times.
		if have := float64(contains) / runs; have < 0.92 {
			t.Errorf("%d values: %.3f of the intervals hold the ratio", n, have)
		}
	}
}

// Samples of the same size are resampled independently: otherwise equal samples would
// always give the ratio 1.
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
