package learn

import (
	"math"
	"testing"
)

func published() Learner { return NewEpsilonGreedy(PublishedEpsilon, PublishedRate) }

func TestEpsilonGreedySharesTiesAmongTheUnexplored(t *testing.T) {
	arms, w := ccs("cubic", "bbr", "htcp", "dctcp"), make([]float64, 4)
	if best := published().Weights(w, arms, -1, nil, nil, 0); best != -1 {
		t.Errorf("best of nothing is %d", best)
	}
	for _, share := range w {
		if math.Abs(share-0.25) > 1e-12 {
			t.Errorf("shares %v", w)
		}
	}
	if best := published().Weights(nil, nil, -1, nil, nil, 0); best != -1 {
		t.Errorf("best of no arms is %d", best)
	}
}

func TestEpsilonGreedyFollowsThePublishedCost(t *testing.T) {
	l, b, arms := published(), &Belief{}, ccs("cubic", "bbr")
	see := func(i int, rtt uint32, rate uint64) {
		l.Observe(b, arms[i], Outcome{At: start, Weight: 1, MinRTT: rtt, Rate: rate})
	}
	mean := func(i int, want float64) {
		t.Helper()
		if got := b.arm(arms[i]).Mean; math.Abs(got-want) > 1e-12 {
			t.Errorf("mean of %v is %v, want %v", arms[i], got, want)
		}
	}
	see(0, 100, 1000) // lowest and highest ever: cost 0
	mean(0, 0)
	see(1, 150, 4000) // 50 % above the lowest, highest ever
	mean(1, -0.5)
	see(0, 100, 800) // highest ever of cubic is 1000, of any 4000
	mean(0, -0.75)
	see(0, 120, 3000) // 0.2 + 0.25 = 0.45; a quarter of the way from 0.75
	mean(0, -(0.75 - 0.25*0.3))
	if b.MinRTT != 100 || b.Rate != 4000 || b.Arms[0].MinRTT != 100 || b.Arms[0].Rate != 3000 {
		t.Errorf("belief %+v", b)
	}
	w := make([]float64, 2)
	if best := l.Weights(w, arms, -1, b, nil, 0); best != 1 || math.Abs(w[1]-0.975) > 1e-12 || math.Abs(w[0]-0.025) > 1e-12 {
		t.Errorf("best %d of shares %v", best, w)
	}
}

func TestEpsilonGreedyGoesForTheUnexplored(t *testing.T) {
	l, b, arms := published(), &Belief{}, ccs("cubic", "bbr", "reno")
	l.Observe(b, arms[1], Outcome{At: start, Weight: 1, MinRTT: 100, Rate: 2000})
	l.Observe(b, arms[0], Outcome{At: start, Weight: 1, MinRTT: 110, Rate: 1000, Greedy: true})
	w := make([]float64, 3)
	l.Weights(w, arms, -1, b, nil, 0)
	if w[0] > 0.02 || w[2] < 0.4 {
		t.Errorf("shares %v", w)
	}
	if a := b.arm(arms[0]); a.Count != 1 || a.Greedy != 1 || l.StdDev(a, 0) != 0 || b.Count != 2 {
		t.Errorf("arm %+v", a)
	}
}

func TestEpsilonGreedyValuesNeverAge(t *testing.T) {
	// As published: the reference keeps this fault on purpose.
	l, b, arms := published(), &Belief{}, ccs("cubic", "bbr")
	l.Observe(b, arms[0], Outcome{At: start, Weight: 1, MinRTT: 100, Rate: 1e9})
	for i := range 50 {
		l.Observe(b, arms[0], Outcome{At: start + int64(i)*second, Weight: 1, MinRTT: 100, Rate: 1e6})
		l.Observe(b, arms[1], Outcome{At: start + int64(i)*second, Weight: 1, MinRTT: 100, Rate: 5e8})
	}
	w := make([]float64, 2)
	if best := l.Weights(w, arms, -1, b, nil, start+1e18); best != 0 {
		t.Errorf("best %d of %v", best, w)
	}
}

func TestEpsilonGreedyMeasuresHoldOuts(t *testing.T) {
	l, b := published(), &Belief{}
	for i := range 4 {
		l.ObserveHoldOut(b, outcome(int64(i), float64(i)))
	}
	if b.HoldOut.Count != 4 || b.HoldOut.Mean != 1.5 || b.Count != 0 {
		t.Errorf("hold-out %+v", b.HoldOut)
	}
}
