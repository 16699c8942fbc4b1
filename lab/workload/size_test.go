package workload

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestSizeMeanOfSeed(t *testing.T) {
	// The sizes of the flow completion experiments: shape 0.8, averages of about
	// five times the scale.
	for _, scale := range []float64{2e2, 2e3, 2e4, 2e5, 2e6} {
		if got := (Size{Alpha: 0.8, Scale: scale, Max: 52 * scale}).Mean(); math.Abs(got/scale-5) > 0.05 {
			t.Errorf("mean of scale %.0f is %.0f, want five times that", scale, got)
		}
	}
}

func TestSizeMeanIsThatOfDraws(t *testing.T) {
	for _, s := range []Size{
		{Fixed: 1000},
		{Alpha: 0.8, Scale: 2000, Max: 104_000},
		{Alpha: 1, Scale: 100, Max: 10_000},
		{Alpha: 1.5, Scale: 1000, Max: 1_000_000},
		{Alpha: 3, Scale: 5000, Max: 6000},
	} {
		r := rand.New(rand.NewPCG(1, 2))
		const n = 200_000
		var sum float64
		for range n {
			x := s.draw(r)
			if s.Fixed == 0 && (float64(x) < s.Scale || float64(x) > s.Max) {
				t.Fatalf("%+v gave %d", s, x)
			}
			sum += float64(x)
		}
		// The standard error of the widest of these is 0.6 %.
		if got := sum / n; math.Abs(got/s.Mean()-1) > 0.03 {
			t.Errorf("mean of %d from %+v is %.0f, want %.0f", n, s, got, s.Mean())
		}
	}
}

// Half of a Pareto is below scale * 2^(1/alpha), if the bound is far.
func TestSizeMedian(t *testing.T) {
	s := Size{Alpha: 2, Scale: 10_000, Max: 1e9}
	r := rand.New(rand.NewPCG(3, 4))
	sizes := make([]uint32, 100_000)
	for i := range sizes {
		sizes[i] = s.draw(r)
	}
	slices.Sort(sizes)
	if got, want := float64(sizes[len(sizes)/2]), 10_000*math.Sqrt2; math.Abs(got/want-1) > 0.02 {
		t.Errorf("median %.0f, want %.0f", got, want)
	}
}

func TestFlowsAreTheSameForEverySubject(t *testing.T) {
	s := Spec{Kind: Flows, Count: 1000, Seed: 5, Rate: 100, Size: Size{Alpha: 0.8, Scale: 2000, Max: 104_000}}
	if !slices.Equal(s.flows(0), s.flows(0)) {
		t.Error("the same part has other flows the second time")
	}
	if slices.Equal(s.flows(0), s.flows(1)) {
		t.Error("two pairs of hosts have the same flows")
	}
	other := s
	other.Seed = 6
	if slices.Equal(s.flows(0), other.flows(0)) {
		t.Error("two seeds have the same flows")
	}
	closed := s
	closed.Rate, closed.Concurrency = 0, 5
	for i, f := range closed.flows(0) {
		if f.At != 0 || f.Size != s.flows(0)[i].Size {
			t.Fatalf("flow %d of a closed loop is %+v, of an open one %+v", i, f, s.flows(0)[i])
		}
	}
}

func TestPoissonArrivals(t *testing.T) {
	const n, rate = 50_000, 1000.0
	flows := Spec{Kind: Flows, Count: n, Seed: 9, Rate: rate, Size: Size{Fixed: 1}}.flows(0)
	var gaps []float64
	for i, f := range flows[1:] {
		gaps = append(gaps, (f.At-flows[i].At).Seconds()*rate)
	}
	var sum, squares float64
	for _, g := range gaps {
		if g < 0 {
			t.Fatal("time goes back")
		}
		sum += g
		squares += g * g
	}
	mean := sum / float64(len(gaps))
	deviation := math.Sqrt(squares/float64(len(gaps)) - mean*mean)
	if math.Abs(mean-1) > 0.03 || math.Abs(deviation-1) > 0.05 {
		t.Errorf("gaps have mean %.3f and deviation %.3f, exponential ones 1 and 1", mean, deviation)
	}
}

func TestPoissonEndsWithDuration(t *testing.T) {
	s := Spec{Kind: Flows, Duration: time.Second, Rate: 500, Size: Size{Fixed: 1}}
	flows := s.flows(0)
	if n := len(flows); n < 400 || n > 600 || flows[n-1].At >= time.Second {
		t.Errorf("%d flows in 1 s at 500 a second, the last at %s", n, flows[n-1].At)
	}
	s.Count = 10
	if n := len(s.flows(0)); n != 10 {
		t.Errorf("%d flows, want 10", n)
	}
}
