package learn

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// shares asks the default learner and checks what must hold of any answer.
func shares(t *testing.T, names []string, b, parent *Belief, now int64) ([]float64, int) {
	t.Helper()
	w := make([]float64, len(names))
	for i := range w {
		w[i] = math.NaN() // values of an earlier call must not matter
	}
	best := DefaultThompson().Weights(w, ccs(names...), -1, b, parent, now)
	sum := 0.0
	for _, s := range w {
		if !(s >= 0 && s <= 1) {
			t.Fatalf("shares %v", w)
		}
		sum += s
	}
	if math.Abs(sum-1) > 1e-9 || best < -1 || best >= len(names) {
		t.Fatalf("shares %v sum to %v, best %d", w, sum, best)
	}
	return w, best
}

// feed n outcomes a second apart, the first at second from, to each arm in turn.
func feed(b *Belief, rng *rand.Rand, from, n int, sd float64, means map[string]float64) int64 {
	l, now := DefaultThompson(), int64(0)
	for i := range n {
		for _, name := range names {
			if mu, ok := means[name]; ok {
				o := outcome(int64(from+i), mu+sd*rng.NormFloat64())
				l.Observe(b, ccs(name)[0], o)
				now = o.At
			}
		}
	}
	return now
}

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 42)) }

var trio = names[:3]

func TestNewPathTriesEachArmInOrderOfSafety(t *testing.T) {
	b, l := &Belief{}, DefaultThompson()
	order := []string{"bbr", "dctcp", "cubic", "reno", "vegas"}
	var got []string
	for i := range 5 {
		w, _ := shares(t, order, b, nil, start+int64(i)*second)
		for k, s := range w {
			if s > 0.99 {
				got = append(got, order[k])
				l.Observe(b, ccs(order[k])[0], outcome(int64(i), 10))
			}
		}
	}
	want := []string{"cubic", "reno", "bbr", "vegas", "dctcp"}
	for i := range want {
		if len(got) <= i || got[i] != want[i] {
			t.Fatalf("tried %v, want %v", got, want)
		}
	}
	if _, best := shares(t, order, nil, nil, start); best != -1 {
		t.Errorf("best of nothing is %d", best)
	}
	if best := l.Weights(nil, nil, -1, b, nil, start); best != -1 {
		t.Errorf("best of no arms is %d", best)
	}
}

func TestBusyNewPathTriesWithAShareOnly(t *testing.T) {
	l, b := DefaultThompson(), &Belief{}
	for i := range 50 { // 100 connections a second, all with the first arm
		o := outcome(0, 10)
		o.At += int64(i) * second / 100
		l.Observe(b, ccs("cubic")[0], o)
	}
	w, _ := shares(t, trio, b, nil, b.Last)
	if w[2] > 0.15 || w[2] < 0.05 || w[0] < 0.3 {
		t.Errorf("shares %v", w)
	}
}

func TestSharesHoldForAnyBelief(t *testing.T) {
	rng := seeded(1)
	l := DefaultThompson()
	for range 400 {
		n := 1 + rng.IntN(10) // more arms than a policy holds as well
		list := append(append([]string{}, names...), "x", "y")[:n]
		arms := ccs(list...)
		b, parent := &Belief{}, &Belief{}
		now := start
		for range rng.IntN(120) {
			now += int64(rng.ExpFloat64() * math.Exp(4*rng.NormFloat64()) * 1e9)
			o := Outcome{At: now, Reward: 30 * rng.NormFloat64(), Weight: rng.Float64(), Loss: rng.Float64() - 0.2}
			if rng.IntN(20) == 0 {
				o.Reward = math.Copysign(maxReward, rng.NormFloat64())
			}
			cc := arms[rng.IntN(n)]
			l.Observe(b, cc, o)
			ObserveParent(l, b, parent, cc, o)
		}
		shares(t, list, b, parent, now+rng.Int64N(1e15)) // checks what it returns
		// The order of the arms must not matter.
		perm := rng.Perm(n)
		mixed := make([]string, n)
		for i, p := range perm {
			mixed[i] = list[p]
		}
		for _, up := range []*Belief{nil, parent} {
			w, best := shares(t, list, b, up, now)
			v, other := shares(t, mixed, b, up, now)
			for i, p := range perm {
				if math.Abs(v[i]-w[p]) > 1e-6 {
					t.Fatalf("%v: %v\n%v: %v", list, w, mixed, v)
				}
			}
			if (best < 0) != (other < 0) || best >= 0 && perm[other] != best {
				t.Fatalf("best of %v is %d, of %v %d", list, best, mixed, other)
			}
		}
	}
}

func TestClearWinnerGetsEssentiallyEverything(t *testing.T) {
	b := &Belief{}
	now := feed(b, seeded(2), 0, 10, 0.4, map[string]float64{"cubic": 10, "bbr": 11.1, "reno": 10})
	if w, best := shares(t, trio, b, nil, now); best != 1 || w[1] < 0.98 {
		t.Errorf("best %d of %v", best, w)
	}
}

func TestExplorationOfHarmfulArmsIsBounded(t *testing.T) {
	b := &Belief{}
	feed(b, seeded(3), 0, 4, 0.4, map[string]float64{"cubic": 10, "bbr": 13, "reno": 10})
	now := feed(b, seeded(4), 4, 4000, 0.4, map[string]float64{"bbr": 13})
	w, best := shares(t, trio, b, nil, now)
	if x := w[0] + w[2]; best != 1 || x <= 0 || x > 0.03 {
		t.Errorf("shares %v: arms a factor of 20 worse want a small share, but one", w)
	}
}

// The first outcome of the best arm (bad luck) or of another one (good luck) is an outlier;
// the best arm is three times as good as the others.
func TestOneOutlierDoesNotDecide(t *testing.T) {
	for _, fluke := range []float64{-4, -2.3, -1.5, 2.3, 4} {
		late := 0
		for seed := range uint64(300) {
			if whenBestIsUsed(fluke, seed) > 20 {
				late++
			}
		}
		if late > 30 {
			t.Errorf("after an outlier of %v, %d of 300 paths did not use the best arm within 20 connections", fluke, late)
		}
	}
}

// whenBestIsUsed is the connection from which bbr is used four times in a row.
func whenBestIsUsed(fluke float64, seed uint64) int {
	l, b, rng, w := DefaultThompson(), &Belief{}, seeded(seed), make([]float64, 3)
	victim, met, run := 1, false, 0
	if fluke > 0 {
		victim = 0
	}
	for i := range 100 {
		l.Weights(w, ccs(trio...), -1, b, nil, start+int64(i)*second)
		k := draw(w, rng)
		r := []float64{10, 11.1, 10}[k] + 0.3*rng.NormFloat64()
		if k == victim && !met {
			met = true
			r += fluke
		}
		l.Observe(b, ccs(trio[k])[0], outcome(int64(i), r))
		if run++; k != 1 {
			run = 0
		}
		if run == 4 {
			return i - 3
		}
	}
	return 100
}

func draw(w []float64, rng *rand.Rand) int {
	u := rng.Float64()
	for i, s := range w {
		if u -= s; u < 0 {
			return i
		}
	}
	return len(w) - 1
}

func TestAnOutlierMovesASettledMeanLittle(t *testing.T) {
	b := &Belief{}
	feed(b, seeded(7), 0, 20, 0.3, map[string]float64{"cubic": 10})
	was := b.Arms[0].Mean
	DefaultThompson().Observe(b, ccs("cubic")[0], outcome(20, -20))
	if d := was - b.Arms[0].Mean; d > 0.15 || b.Changes != 0 {
		t.Errorf("one outlier moved the mean by %v, changes %d", d, b.Changes)
	}
}

// bpftune counts an arm that the kernel does not have as chosen, and waits for its score.
func TestFailedArmsAreNeverScored(t *testing.T) {
	s := bulk(1e6)
	s.Flags |= 1 << 3 // FlagArmFailed
	if _, why := Reward(Throughput, &s, 0); why != ArmFailed {
		t.Errorf("scored: %v", why)
	}
	b := &Belief{}
	now := feed(b, seeded(8), 0, 10, 0.3, map[string]float64{"cubic": 10, "htcp": 14, "reno": 9})
	w, best := shares(t, []string{"cubic", "reno"}, b, nil, now)
	if best != 0 || w[0] < 0.9 {
		t.Errorf("without the failed arm: best %d of %v", best, w)
	}
	// An arm without any outcome does not delay the trials of the others for ever.
	b = &Belief{}
	now = feed(b, seeded(9), 0, 5, 0.3, map[string]float64{"cubic": 10, "bbr": 9})
	if w, _ := shares(t, trio, b, nil, now+60*second); w[2] > 0.3 {
		t.Errorf("after a minute without outcomes: %v", w)
	}
}

// In bpftune the lowest and highest values never fade.
func TestBeliefsAge(t *testing.T) {
	b, l := &Belief{}, DefaultThompson()
	now := feed(b, seeded(10), 0, 10, 0.3, map[string]float64{"cubic": 10, "bbr": 11.5, "reno": 10})
	sure, _ := shares(t, trio, b, nil, now)
	far := now + int64(30*24*time.Hour)
	prior, best := shares(t, trio, b, nil, far)
	if sure[1] < 0.95 || best != -1 {
		t.Errorf("now %v, a month later %v (best %d)", sure, prior, best)
	}
	for _, s := range prior {
		if math.Abs(s-1./3) > 0.02 {
			t.Errorf("a month later %v", prior)
			break
		}
	}
	if a := b.arm(ccs("bbr")[0]); l.StdDev(a, now) > 0.2 || l.StdDev(a, far) < 1.4 {
		t.Errorf("standard deviation %v, a month later %v", l.StdDev(a, now), l.StdDev(a, far))
	}
	// A minimum or maximum fades if it is not reached again.
	o := outcome(0, 10)
	o.At, o.MinRTT, o.Rate = far, 5000, 1e5
	for range 1000 {
		l.Observe(b, ccs("cubic")[0], o)
	}
	if b.MinRTT < 4000 || b.Rate > 2e5 {
		t.Errorf("min_rtt %d, rate %d", b.MinRTT, b.Rate)
	}
}

func TestHoldOutIsKeptApart(t *testing.T) {
	b, l := &Belief{}, DefaultThompson()
	for i := range 50 {
		l.ObserveHoldOut(b, outcome(int64(i), 9))
	}
	if len(b.Arms) != 0 || b.HoldOut.Count != 50 || math.Abs(b.HoldOut.Mean-9) > 1e-9 {
		t.Errorf("belief %+v", b)
	}
}

func TestWeakOutcomesCountForLess(t *testing.T) {
	a, b := &Belief{}, &Belief{}
	l, cc := DefaultThompson(), ccs("cubic")[0]
	for i := range 10 {
		o := outcome(int64(i), 10)
		l.Observe(a, cc, o)
		o.Weight = 0.1
		l.Observe(b, cc, o)
	}
	if x, y := l.StdDev(&a.Arms[0], a.Last), l.StdDev(&b.Arms[0], b.Last); x >= y {
		t.Errorf("strong %v, weak %v", x, y)
	}
	if b.Arms[0].Trials < 3 {
		t.Errorf("ten small connections are %v trials: exploration would not end", b.Arms[0].Trials)
	}
}

func TestThompsonOptionsDefaultEachByItself(t *testing.T) {
	got := NewThompson(ThompsonOptions{HalfLife: time.Minute}).(thompson).opt
	want := DefaultThompson().(thompson).opt
	want.HalfLife = time.Minute
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if DefaultThompson().Name() != "thompson" {
		t.Error("name")
	}
}
