package learn

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestRunsAreQuietOnAStillPath(t *testing.T) {
	rng, alarms := seeded(1), 0
	var up, down Run
	for range 100_000 {
		if watch(&up, &down, rng.NormFloat64(), 0, 1, 1) {
			alarms++
			up, down = Run{}, Run{}
		}
	}
	if alarms > 15 { // two sides, one in about 40000 each
		t.Errorf("%d false alarms in 100000 outcomes", alarms)
	}
}

func TestNoTwoOutcomesAloneRaiseAnAlarm(t *testing.T) {
	var up, down Run
	for range 2 {
		if watch(&up, &down, 1e9, 0, 1, 1) {
			t.Error("two outliers raised an alarm")
		}
	}
	if !watch(&up, &down, 1e9, 0, 1, 1) {
		t.Error("three did not")
	}
}

// change plays 40 outcomes of one kind and then others to the arm in use; it
// returns how many of the latter it took to detect the change, -1 if it was not detected.
func change(seed uint64, before, after, lossBefore, lossAfter float64, b *Belief) int {
	rng, l := seeded(seed), DefaultThompson()
	feed(b, rng, 0, 2, 0.3, map[string]float64{"cubic": before - 1, "reno": before - 1})
	for i := range 80 {
		mu, loss := before, lossBefore
		if i >= 40 {
			mu, loss = after, lossAfter
		}
		o := outcome(int64(2+i), mu+0.3*rng.NormFloat64())
		o.Loss = max(0, loss*(1+0.3*rng.NormFloat64()))
		was := b.Changes
		l.Observe(b, ccs("bbr")[0], o)
		if b.Changes > was {
			return i - 40
		}
	}
	return -1
}

func TestChangesAreNoticed(t *testing.T) {
	for _, c := range []struct {
		name                       string
		after, lossBefore, lossNow float64
		within                     int
	}{
		{"fall to a fifth", 10 - math.Log(5), 0, 0, 4},
		{"rise to the fivefold", 10 + math.Log(5), 0, 0, 4},
		{"rise to the double", 10 + math.Ln2, 0, 0, 15}, // what is asked of any change
		{"loss begins, goodput stays", 10, 0, 0.02, 5},
		{"loss ends, goodput stays", 10, 0.02, 0, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			late := 0
			for seed := range uint64(100) {
				if n := change(seed, 10, c.after, c.lossBefore, c.lossNow, &Belief{}); n < 0 || n >= c.within {
					late++
				}
			}
			if late > 10 {
				t.Errorf("%d of 100 not noticed within %d connections", late, c.within)
			}
		})
	}
}

func TestStillPathsAreLeftAlone(t *testing.T) {
	false_ := 0
	for seed := range uint64(500) {
		if change(seed, 10, 10, 0.01, 0.01, &Belief{}) != -1 {
			false_++
		}
	}
	if false_ > 10 {
		t.Errorf("%d of 500 still paths were seen to change within 80 connections", false_)
	}
}

func TestAChangeOpensAllArms(t *testing.T) {
	b, l := &Belief{}, DefaultThompson().(thompson)
	if l.Changed(b, start) || l.Changed(nil, start) {
		t.Error("changed without a change")
	}
	if n := change(3, 10, 7, 0, 0, b); n < 0 {
		t.Fatal("not noticed")
	}
	if !l.Changed(b, b.Last) || l.Changed(b, b.Last+1e18) {
		t.Error("the change is not reported while it is recent, or is reported for ever")
	}
	in := b.arm(ccs("bbr")[0])
	if math.Abs(in.Mean-7) > 0.75 {
		t.Errorf("the arm in use is believed to be at %v, not at 7", in.Mean)
	}
	for _, name := range []string{"cubic", "reno"} {
		if a := b.arm(ccs(name)[0]); a.Trials != 0 || a.Weight > reopened {
			t.Errorf("%s: trials %v, weight %v", name, a.Trials, a.Weight)
		}
	}
	w, _ := shares(t, trio, b, nil, b.Last)
	if w[0]+w[2] < 0.9 {
		t.Errorf("shares %v: no other arm is tried", w)
	}
	now := feed(b, seeded(4), 100, 3, 0.3, map[string]float64{"cubic": 5, "bbr": 7, "reno": 9})
	if l.Changed(b, now) {
		t.Error("still changed after every arm was tried")
	}
	if w, best := shares(t, trio, b, nil, now); best != 2 || w[2] < 0.8 {
		t.Errorf("best %d of %v", best, w)
	}
}

func TestAnArmThatBecameBetterUnseenIsBelieved(t *testing.T) {
	b, l := &Belief{}, DefaultThompson()
	feed(b, seeded(5), 0, 3, 0.3, map[string]float64{"cubic": 10, "bbr": 9, "reno": 9.5})
	feed(b, seeded(6), 3, 60, 0.3, map[string]float64{"cubic": 10})
	l.Observe(b, ccs("bbr")[0], outcome(64, 11.5))
	if a := b.arm(ccs("bbr")[0]); math.Abs(a.Mean-11.5) > 0.01 {
		t.Errorf("believed to be at %v", a.Mean)
	}
	if w, _ := shares(t, trio, b, nil, b.Last); w[1] < 0.9 {
		t.Errorf("shares %v", w)
	}
}

// alarms plays outcomes to an arm, and returns the numbers of those that made an alarm; only the first if once.
func alarms(n int, weight float64, once bool, reward func(i int) float64) (at []int) {
	l, b := DefaultThompson(), &Belief{}
	for i := range n {
		o := outcome(int64(i), reward(i))
		o.Weight, o.Slice = weight, int64(i+1)*second
		was := b.Changes
		l.Observe(b, ccs("cubic")[0], o)
		if b.Changes > was {
			at = append(at, i)
			if once {
				return at
			}
		}
	}
	return at
}

// A fall to less than a quarter is noticed also if little was seen before it, and if connections are short. It must not make
// itself look usual.
func TestChangesAreNoticedAfterFewOutcomes(t *testing.T) {
	for _, c := range []struct {
		before        int
		weight, noise float64
		least, within int // of 100 paths, outcomes
	}{
		{5, 1, 0.4, 90, 8},
		{10, 1, 0.4, 95, 8},
		{10, 1, 0.6, 85, 8},
		{10, 0.5, 0.4, 85, 10},
		{20, 0.5, 0.4, 95, 10},
		{20, 0.25, 0.2, 95, 8},
	} {
		noticed := 0
		for seed := range uint64(100) {
			rng := seeded(seed)
			at := alarms(c.before+c.within, c.weight, true, func(i int) float64 {
				mean := 15.3
				if i >= c.before {
					mean -= 1.5
				}
				return mean + c.noise*rng.NormFloat64()
			})
			if len(at) == 1 && at[0] >= c.before {
				noticed++
			}
		}
		if noticed < c.least {
			t.Errorf("after %d outcomes of weight %g, noise %g: %d of 100 noticed within %d, want %d", c.before, c.weight, c.noise, noticed, c.within, c.least)
		}
	}
}

// Alarms are rare on paths that stay as they are, also if some outcomes are far slower than the others.
func TestFalseAlarmsAreRare(t *testing.T) {
	for name, c := range map[string]struct {
		noise func(*rand.Rand) float64
		most  int // of 60,000 outcomes on 200 paths
	}{
		"normal":      {func(r *rand.Rand) float64 { return 0.4 * r.NormFloat64() }, 10},
		"exponential": {func(r *rand.Rand) float64 { return -0.5 * r.ExpFloat64() }, 45},
		"one in six left slow start early": {func(r *rand.Rand) float64 {
			x := 0.1 * r.NormFloat64()
			if r.Float64() < 1./6 {
				x -= 0.85
			}
			return x
		}, 60},
	} {
		n := 0
		for seed := range uint64(200) {
			rng := seeded(seed)
			n += len(alarms(300, 1, false, func(int) float64 { return 15.3 + c.noise(rng) }))
		}
		if n > c.most {
			t.Errorf("%s: %d false alarms, want at most %d", name, n, c.most)
		}
		t.Logf("%s: %d false alarms", name, n)
	}
}

// Evidence ages after the clock was set back, also of arms and of a hold-out that have no outcomes since.
func TestEvidenceAgesAfterTheClockWasSetBack(t *testing.T) {
	const day = 24 * 3600 * 1e9
	l := DefaultThompson()
	b := &Belief{}
	at := int64(1_700_000_000e9)
	used, idle := ccs("cubic")[0], ccs("bbr")[0]
	for range 40 {
		at += 10e9
		l.Observe(b, used, Outcome{At: at, Reward: 16, Weight: 1})
		l.Observe(b, idle, Outcome{At: at, Reward: 15, Weight: 1})
		l.ObserveHoldOut(b, Outcome{At: at, Reward: 16, Weight: 1})
	}
	at -= 30 * day
	l.Observe(b, used, Outcome{At: at, Reward: 16, Weight: 1})
	for name, a := range map[string]*ArmBelief{"arm": b.find(idle), "hold-out": b.HoldOut} {
		if fresh, old := l.StdDev(a, at), l.StdDev(a, at+20*day); old < 2*fresh {
			t.Errorf("%s: standard deviation %.3g, and %.3g after 20 days", name, fresh, old)
		}
	}
}
