package learn

import (
	"math"
	"math/rand/v2"
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
			var treated, holdOut Comparison
			slice := int64(0)
			fold := func(s float64, slow bool) {
				slice++
				of := map[bool]Assignment{true: Treated, false: HoldOutSlice}
				o := Outcome{Reward: -math.Log(s), Weight: 1, Slice: slice}
				treated.Add(o, of[slow])
				holdOut.Add(o, of[!slow])
			}
			for i, s := range c.times {
				fold(alike[i%len(alike)], false)
				fold(s, true)
			}
			if g := treated.Gain(); g.Worse() != c.known {
				t.Errorf("treated slices were slow: %+v", g)
			}
			if g := holdOut.Gain(); g.Better() != c.known {
				t.Errorf("slices held out were slow: %+v", g)
			}
		})
	}
}

// If tcpilot changes nothing that users notice, the comparison must not find a difference,
// however often it is checked and however few connections are slow.
func TestTheComparisonSeldomErrs(t *testing.T) {
	// 8 of 100 are possible by chance at a true rate of 5 %.
	const paths, observations, most = 100, 5000, 8
	seldomSlow := func(r *rand.Rand) float64 {
		if r.IntN(6) == 0 {
			return math.Log(2.3) + 0.1*r.NormFloat64()
		}
		return 0.1 * r.NormFloat64()
	}
	// As slow as that in the mean of the cubes, and always the same.
	steady := func(r *rand.Rand) float64 { return math.Log((5+2.3*2.3*2.3)/6)/3 + 0.1*r.NormFloat64() }
	scattered := func(r *rand.Rand) float64 { return 0.4 * r.NormFloat64() }
	oneInAHundred := func(r *rand.Rand) float64 {
		if r.IntN(100) == 0 {
			return math.Log(10)
		}
		return 0.05 * r.NormFloat64()
	}
	for _, c := range []struct {
		name             string
		treated, holdOut func(*rand.Rand) float64 // the logarithm of a time
	}{
		{"one in six is slow", seldomSlow, seldomSlow},
		{"one in a hundred is slow", oneInAHundred, oneInAHundred},
		{"scattered", scattered, scattered},
		{"the default alone has slow ones", steady, seldomSlow},
		{"the default alone has none", seldomSlow, steady},
	} {
		for _, share := range []float64{0.02, 0.1, 0.95} {
			worse, better := 0, 0
			for seed := range uint64(paths) {
				rng := rand.New(rand.NewPCG(seed, 3))
				var cmp Comparison
				isWorse, isBetter := false, false
				for i := range int64(observations) {
					o := Outcome{Weight: 1, Slice: (i + 1) * second}
					if rng.Float64() < share {
						o.Reward = -c.holdOut(rng)
						cmp.Add(o, HoldOutSlice)
					} else {
						o.Reward = -c.treated(rng)
						cmp.Add(o, Treated)
					}
					g := cmp.Gain()
					isWorse, isBetter = isWorse || g.Worse(), isBetter || g.Better()
				}
				if isWorse {
					worse++
				}
				if isBetter {
					better++
				}
			}
			if worse > most || better > most {
				t.Errorf("%s, %g held out: of %d paths %d look worse and %d better", c.name, share, paths, worse, better)
			}
		}
	}
}

// A treatment that is worse is detected.
func TestTheComparisonFinds(t *testing.T) {
	for _, c := range []struct {
		slower, scatter float64
		within          int // observations, a tenth of them held out
	}{
		{math.Ln2, 0.1, 120}, {math.Ln2, 0.3, 220}, {0.2, 0.1, 400}, {0.2, 0.3, 1200}, {0.1, 0.1, 1000},
	} {
		sum := 0
		const paths = 50
		for seed := range uint64(paths) {
			rng := rand.New(rand.NewPCG(seed, 3))
			var cmp Comparison
			for i := range int64(10 * c.within) {
				o := Outcome{Weight: 1, Slice: (i + 1) * second, Reward: c.scatter * rng.NormFloat64()}
				if rng.Float64() < 0.1 {
					cmp.Add(o, HoldOutSlice)
				} else {
					o.Reward -= c.slower
					cmp.Add(o, Treated)
				}
				if sum++; cmp.Gain().Worse() {
					break
				}
			}
		}
		if sum > c.within*paths {
			t.Errorf("slower by %g, scattered by %g: found after %d observations, want %d", c.slower, c.scatter, sum/paths, c.within)
		}
	}
}

// A guard acts on single connections of the hold-out only if they did not share their path with
// treated ones. Slices count in both cases.
func TestHarmBySingleConnectionsNeedsThemAlone(t *testing.T) {
	for _, c := range []struct {
		atOnce float64
		by     Assignment
		want   bool
	}{
		{1, HoldOutConnection, true}, {0, HoldOutConnection, true}, {20, HoldOutConnection, false}, {20, HoldOutSlice, true},
	} {
		var cmp Comparison
		for i := range int64(100) {
			o := Outcome{Weight: 1, Slice: (i + 1) * second, AtOnce: c.atOnce, Reward: 0.1 * float64(i%3)}
			if i%4 != 0 {
				o.Reward -= math.Ln2
				cmp.Add(o, Treated)
			} else {
				cmp.Add(o, c.by)
			}
		}
		if g, worse := cmp.Harm(); worse != c.want || !g.Worse() || bool(g.BySlice) != (c.by == HoldOutSlice) {
			t.Errorf("%g at a time, held out as %d: harm %t, %+v", c.atOnce, c.by, worse, g)
		}
	}
}

// If connections overlap, the many single ones that are held out do not count, and do not make the
// comparison forget the few slices that do.
func TestSingleConnectionsDoNotAgeSlices(t *testing.T) {
	var c Comparison
	out := func(slice int64, fast float64) Outcome {
		return Outcome{Weight: 1, Reward: fast, Slice: slice, AtOnce: 20}
	}
	for slice := int64(1); slice <= 2000; slice++ {
		held := slice%100 == 0
		for i := range 10 {
			by, fast := Treated, 1.0
			if held {
				by, fast = HoldOutSlice, 2
			}
			if i == 0 && !held && slice%2 == 0 {
				c.Add(out(0, 2), HoldOutConnection)
			}
			c.Add(out(slice*1e9, fast), by)
		}
	}
	g, worse := c.Harm()
	if !bool(g.BySlice) || g.HeldOut < 19 || !worse {
		t.Errorf("after 20 of 2000 slices were held out: %+v, worse %t", g, worse)
	}
}
