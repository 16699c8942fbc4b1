package learn

import (
	"math"
	"testing"
)

func TestOneSlowSliceShowsNothing(t *testing.T) {
	alike := []float64{1, 1.02, 0.98, 1.01, 0.99, 1, 1}
	for _, c := range []struct {
		name  string
		times []float64 // of the slices that the others are compared with, s
		known bool
	}{
		{"none", alike, false},
		{"one", []float64{1, 1, 1.01, 0.98, 8, 1, 1.02, 1}, false}, // a trial that went wrong
		{"every other", []float64{1, 8, 7, 1, 8, 1, 7, 1, 8, 7, 8, 1, 7}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var treated, held Comparison
			slice := int64(0)
			fold := func(s float64, slow bool) {
				slice++
				of := map[bool]HeldBy{true: NotHeld, false: HeldSlice}
				o := Outcome{Reward: -math.Log(s), Weight: 1, Slice: slice}
				treated.Add(o, of[slow])
				held.Add(o, of[!slow])
			}
			for i, s := range c.times {
				fold(alike[i%len(alike)], false)
				fold(s, true)
			}
			if g := treated.Gain(); g.Worse() != c.known {
				t.Errorf("treated slices were slow: %+v", g)
			}
			if g := held.Gain(); g.Better() != c.known {
				t.Errorf("slices held out were slow: %+v", g)
			}
		})
	}
}
