package learn

import (
	"math/rand/v2"
	"testing"
)

// After the clock was set back by hours, slices are observations as before, and harm is found as soon. A connection that
// began long ago still counts in the open slice.
func TestFailuresAfterTheClockWasSetBack(t *testing.T) {
	const base = 1_700_000_000 * int64(second)
	rng := rand.New(rand.NewPCG(1, 2))
	var f Failures
	minute := func(from int64, failing float64) {
		for i := range int64(600) {
			at := base + from + i*int64(second)
			by, fails := Treated, failing
			if rng.Float64() < 0.2 {
				by, fails = HoldOutSlice, 0
			}
			f.Add(rng.Float64() < fails, by, 1, at, at+int64(second), 1)
		}
	}
	minute(0, 0)
	minute(-8*3600*int64(second), 0.2)
	if f.Treated.N < 900 || f.Slices.N < 200 {
		t.Errorf("%.0f and %.0f observations of 1200 slices", f.Treated.N, f.Slices.N)
	}
	if _, worse := f.Harm(); !worse {
		t.Error("harm is not found")
	}
	n, at := f.Treated.N, base-7*3600*int64(second)
	f.Add(true, Treated, 1, at-3600*int64(second), at, 1)
	if f.Treated.N > n+1 {
		t.Errorf("an old connection made an observation of its own: %.0f after %.0f", f.Treated.N, n)
	}
}
