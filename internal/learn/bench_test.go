package learn

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func BenchmarkObserve(b *testing.B) {
	for _, l := range []Learner{DefaultThompson(), NewEpsilonGreedy(PublishedEpsilon, PublishedRate)} {
		b.Run(l.Name(), func(b *testing.B) {
			belief, arms := &Belief{}, ccs("cubic", "bbr", "reno")
			rng := rand.New(rand.NewPCG(1, 1))
			outs := make([]Outcome, 1024)
			for i := range outs {
				outs[i] = outcome(0, 10+0.4*rng.NormFloat64())
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				o := &outs[i%len(outs)]
				o.At = start + int64(i)*second
				l.Observe(belief, arms[i%16/15], *o)
			}
		})
	}
}

func BenchmarkObserveParent(b *testing.B) {
	l, child, parent, arms := DefaultThompson(), &Belief{}, &Belief{}, ccs("cubic", "bbr", "reno")
	for i, cc := range arms {
		l.Observe(child, cc, outcome(int64(i), float64(i)))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		ObserveParent(l, child, parent, arms[i%3], outcome(int64(i), float64(i%7)))
	}
}

// BenchmarkWeights has beliefs in which every arm might be best: the worst case.
func BenchmarkWeights(b *testing.B) {
	for _, n := range []int{3, 8} {
		for _, gap := range []float64{0.02, 1} {
			b.Run(fmt.Sprintf("arms=%d/gap=%g", n, gap), func(b *testing.B) {
				l, belief, parent, arms := DefaultThompson(), &Belief{}, &Belief{}, ccs(names...)[:n]
				rng := rand.New(rand.NewPCG(1, 1))
				for i := range 20 * n {
					o := outcome(int64(i), gap*float64(i%n)+0.4*rng.NormFloat64())
					l.Observe(belief, arms[i%n], o)
					ObserveParent(l, belief, parent, arms[i%n], o)
				}
				w := make([]float64, n)
				b.ReportAllocs()
				for b.Loop() {
					l.Weights(w, arms, 0, belief, parent, belief.Last)
				}
			})
		}
	}
}
