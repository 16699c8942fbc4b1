package learn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// beside returns the shares of the default learner for arms of which the first is the
// default.
func beside(t *testing.T, names []string, b *Belief) []float64 {
	t.Helper()
	w := make([]float64, len(names))
	DefaultThompson().Weights(w, ccs(names...), 0, b, nil, b.Last)
	sum := 0.0
	for _, s := range w {
		sum += s
	}
	if math.Abs(sum-1) > 1e-9 || slices.Min(w) < 0 {
		t.Fatalf("shares %v", w)
	}
	return w
}

// feedSlices feeds slices of n connections that scatter by 3 %, each slice of one arm.
func feedSlices(b *Belief, name string, slices, n int, reward float64, set func(*Outcome)) {
	rng := rand.New(rand.NewPCG(7, uint64(b.Last)))
	for range slices {
		at := (b.Last/second + 1) * second
		for range n {
			o := Outcome{At: at, Reward: reward + 0.03*rng.NormFloat64(), Weight: 1, Sent: 70, Slice: at, AtOnce: float64(n)}
			if set != nil {
				set(&o)
			}
			DefaultThompson().Observe(b, ccs(name)[0], o)
		}
	}
}

// A trial affects all connections that begin in a slice. So an unknown arm is tried soon if
// connections come one at a time, and seldom if many overlap.
func TestUnknownArmsAreLimitedIfManyOverlap(t *testing.T) {
	arms := []string{"bbr", "tcpilot_bbr3", "cubic", "reno"}
	for _, c := range []struct {
		n, slices   int
		least, most float64
	}{{1, 4, 0.1, 0.53}, {5, 4, 0, 0}, {5, trialsFrom - 1, 0, 0}, {5, trialsFrom, 0.001, 0.0101}, {20, trialsFrom - 1, 0, 0}, {20, trialsFrom, 0.001, 0.0026}} {
		b := &Belief{Last: start}
		feedSlices(b, "bbr", c.slices, c.n, 10, nil)
		if w := beside(t, arms, b); 1-w[0] < c.least || 1-w[0] > c.most {
			t.Errorf("%d at a time, after %d slices: %v, want %g to %g for arms that were not tried", c.n, c.slices, w, c.least, c.most)
		}
	}
	if w := beside(t, arms, &Belief{}); w[0] != 1 {
		t.Errorf("before the first outcome: %v", w)
	}
}

// An arm that looks better, but is not shown to be, puts all connections of its slices at
// risk.
func TestUnprovenArmsWhereConnectionsOverlap(t *testing.T) {
	for _, c := range []struct {
		n           int
		least, most float64
	}{{1, 0.3, mostUnproven}, {5, 0.05, mostOverlapping}} {
		b := &Belief{Last: start}
		for range 3 {
			feedSlices(b, "bbr", 2, c.n, 10, func(o *Outcome) { o.Reward += 0.15 * float64(o.Slice/second%3-1) })
			feedSlices(b, "tcpilot_cubic", 1, c.n, 10.08, nil)
		}
		if w := beside(t, []string{"bbr", "tcpilot_cubic"}, b); w[1] < c.least || w[1] > c.most+1e-9 {
			t.Errorf("%d at a time: shares %v, want %g to %g", c.n, w, c.least, c.most)
		}
	}
}

// A variant of the default is expected to be as good as the default, and is tried at once.
// Not if many connections overlap: what it gains, other connections lose.
func TestVariantIsTried(t *testing.T) {
	arms := []string{"cubic", "bbr", "tcpilot_cubic", "reno"}
	b := &Belief{Last: start}
	feedSlices(b, "cubic", trialsFrom, 20, 10, nil)
	if w := beside(t, arms, b); 1-w[0] > mostUnknownMany+1e-9 || w[2] == 0 {
		t.Errorf("20 at a time: shares %v", w)
	}
	scatter := func(o *Outcome) { o.Reward += 0.1 * float64(o.Slice/second%3-1) }
	feedSlices(b, "cubic", 6, 20, 10, scatter)
	feedSlices(b, "tcpilot_cubic", 6, 20, 10.02, scatter)
	if w := beside(t, arms, b); w[2] > mostOverlapping+1e-9 {
		t.Errorf("20 at a time, and about as good: shares %v", w)
	}
	b = &Belief{Last: start}
	feedSlices(b, "cubic", 4, 5, 10, nil)
	if w := beside(t, arms, b); w[2] < 0.2 || w[2] > mostUnproven || w[1]+w[3] > mostUnknown+1e-9 {
		t.Errorf("shares %v", w)
	}
	// It is tried before other arms are.
	for n, want := range []float64{1: 0, 2: mostUnproven} {
		young := &Belief{Last: start}
		if n > 0 {
			feedSlices(young, "cubic", n, 5, 10, nil)
		}
		if w := beside(t, arms, young); w[2] != want || w[0]+w[2] != 1 {
			t.Errorf("after %d observations: shares %v", n, w)
		}
	}
	// It gets nearly everything as soon as it looks better, before that is shown.
	lead := &Belief{Last: start}
	feedSlices(lead, "cubic", 4, 5, 10, func(o *Outcome) { o.Reward += 0.2 * float64(o.Slice/second%3-1) })
	feedSlices(lead, "tcpilot_cubic", 3, 5, 10.1, nil)
	if w := beside(t, arms, lead); w[2] < 0.9 || w[0] == 0 {
		t.Errorf("it looks better, and the shares are %v", w)
	}
	// Not if it is measured to be slower.
	feedSlices(b, "tcpilot_cubic", 6, 5, 9.5, nil)
	feedSlices(b, "cubic", 2, 5, 10, nil)
	if w := beside(t, arms, b); w[2] > 0.05 {
		t.Errorf("it is 40 %% slower, and the shares are %v", w)
	}
}

// If the connections of a slice are alike, slices will be alike too: an arm that is 5 %
// slower is soon given up.
func TestAlikeConnectionsMakeBeliefsSure(t *testing.T) {
	arms := []string{"bbr", "tcpilot_bbr3", "reno"}
	b := &Belief{Last: start}
	for range 2 {
		feedSlices(b, "bbr", 4, 20, 10, nil)
		feedSlices(b, "tcpilot_bbr3", 1, 20, 9.95, nil)
		feedSlices(b, "reno", 1, 20, 9.93, nil)
	}
	if w := beside(t, arms, b); w[0] < 0.9 {
		t.Errorf("shares %v", w)
	}
	l := DefaultThompson().(thompson)
	if v := l.pooledNoise(b); v > 0.15*0.15 {
		t.Errorf("observations are expected to scatter by %.2f", math.Sqrt(v))
	}
}

// On a path with random loss, an arm that takes loss for congestion counts as worse without
// a trial. Not if the losses come from a queue that overflows.
func TestRandomLossExcludesArmsThatTakeItForCongestion(t *testing.T) {
	arms := []string{"bbr", "cubic", "reno", "tcpilot_bbr3"}
	for _, c := range []struct {
		stretch float64
		lossy   bool
	}{{0.05, true}, {0.13, true}, {0.6, false}} {
		t.Run(fmt.Sprint(c.stretch), func(t *testing.T) {
			b := &Belief{Last: start}
			feedSlices(b, "bbr", 12, 1, 10, func(o *Outcome) { o.Again, o.Queue = 1, c.stretch })
			w := beside(t, arms, b)
			if others := w[1] + w[2]; (others <= 2*mostWorse+1e-9) != c.lossy {
				t.Errorf("shares %v", w)
			}
		})
	}
	// If the default takes loss for congestion, the search tries arms that do not.
	b := &Belief{Last: start}
	feedSlices(b, "cubic", 12, 5, 10, func(o *Outcome) { o.Again, o.Queue = 1, 0.05 })
	if w := beside(t, []string{"cubic", "bbr", "reno", "tcpilot_cubic"}, b); w[1] < 0.3 || w[2] > mostWorse+1e-9 {
		t.Errorf("with cubic as the default: %v", w)
	}
}

// The queue of bbr hides afterwards that losses are random, but the default has shown it:
// the search still tries only arms that do not take loss for congestion.
func TestSearchExcludesArmsThatTakeLossForCongestion(t *testing.T) {
	b := &Belief{Last: start}
	feedSlices(b, "cubic", 4, 1, 10, func(o *Outcome) { o.Sent, o.Again, o.Queue = 700, 35, 0.05 })
	feedSlices(b, "bbr", 2, 1, 11, func(o *Outcome) { o.Sent, o.Again, o.Queue = 700, 35, 0.6 })
	if w := beside(t, []string{"cubic", "bbr", "reno"}, b); w[2] > mostWorse+1e-9 {
		t.Errorf("shares %v", w)
	}
}

// On a busy host the queue of bbr, and even that of the default, hides that losses are
// random. An arm that is far better shows from its first trial on which arms to try.
func TestAFarBetterArmShowsWhatToTry(t *testing.T) {
	arms := []string{"cubic", "bbr", "reno", "tcpilot_bbr3"}
	for bbr, want := range map[float64]bool{12: true, 9.5: false} {
		b := &Belief{Last: start}
		lossy := func(o *Outcome) { o.Sent, o.Again, o.Loss, o.Queue = 700, 35, 0.05, 0.5 }
		feedSlices(b, "cubic", 12, 1, 12, func(o *Outcome) { o.Sent, o.Queue = 700, 0.5 })
		for b.Changes == 0 && b.Count < 20 {
			feedSlices(b, "cubic", 1, 1, 9, lossy)
		}
		feedSlices(b, "bbr", 1, 1, bbr, lossy)
		w := beside(t, arms, b)
		if b.Fall == 0 || (w[2] <= mostWorse) != want {
			t.Errorf("cubic fell by %.1f to 9, bbr had %g: shares %v", b.Fall, bbr, w)
		}
		if want && w[1]+w[3] < 0.9 {
			t.Errorf("bbr had %g: shares %v", bbr, w)
		}
	}
}

// If connections overlap, the first two slices of a path do not open a search yet: how many
// connections there are is known only after some have ended.
func TestFirstSlicesOpenNoSearch(t *testing.T) {
	arms := []string{"cubic", "tcpilot_bbr3", "reno"}
	b := &Belief{Last: start}
	for i, n := range []int{2, 5, 5, 5} {
		w := beside(t, arms, b)
		if i > 0 && i < newPath && w[1] > 0 {
			t.Errorf("after %d slices: shares %v", i, w)
		}
		feedSlices(b, "cubic", 1, n, 10, func(o *Outcome) { o.Sent, o.Again, o.Queue = 700, 7, 0.02 })
	}
	if w := beside(t, arms, b); w[1] < 0.1 {
		t.Errorf("later: shares %v", w)
	}
}

// Delayed ACKs and jitter are no queue: where the losses are random, the round trips of connections
// scatter, and where a queue overflows they are all long. The connections were recorded with
// cubic, two at a time: on a path of 10 ms with 3 % loss, and beside two others that fill a queue.
func TestShortPathLosesAtRandom(t *testing.T) {
	arms := []string{"cubic", "tcpilot_bbr3", "reno"}
	type connection struct{ minRTT, srtt, rttvar, packets, resent uint32 }
	for name, c := range map[string]struct {
		recorded []connection
		random   bool
	}{
		"random loss": {[]connection{{9874, 13058, 4319, 275, 7}, {9896, 11965, 2421, 725, 18}, {9833, 12028, 2483, 424, 11},
			{9874, 12865, 4264, 512, 14}, {9897, 12146, 2975, 317, 6}, {9799, 15681, 10233, 392, 15},
			{9795, 10120, 25, 571, 18}, {9936, 11200, 1796, 212, 8}}, true},
		"full queue": {[]connection{{20058, 33826, 109, 562, 52}, {20177, 33691, 264, 382, 11}, {20031, 34733, 591, 296, 2},
			{20207, 34877, 885, 546, 1}, {20524, 36855, 1067, 513, 5}, {20077, 37068, 2522, 448, 2},
			{20005, 33022, 605, 417, 10}, {20070, 34832, 125, 389, 11}}, false},
	} {
		b := &Belief{Last: start}
		for i, r := range c.recorded {
			o := outcomeOf(&tcp.Sample{MinRTT: r.minRTT, SRTT: r.srtt, RTTVar: r.rttvar, DataSegsOut: r.packets, Retrans: r.resent}, float64(r.packets))
			o.At = start + int64(i/2+1)*second
			o.Slice, o.AtOnce, o.Reward, o.Weight = o.At, 2, 10, 1
			DefaultThompson().Observe(b, ccs("cubic")[0], o)
		}
		if w := beside(t, arms, b); (w[1] > 0.9) != c.random {
			t.Errorf("%s: shares %v", name, w)
		}
	}
}

// Losses of a few connections that overflow a queue in slow start do not count as random
// loss, although the queue is empty again when they end.
func TestBurstsAreNoRandomLoss(t *testing.T) {
	arms := []string{"cubic", "bbr", "reno"}
	for _, c := range []struct {
		every int // connection has loss
		again float64
		lossy bool
	}{{1, 3, true}, {6, 18, false}} {
		b, n := &Belief{Last: start}, 0
		feedSlices(b, "cubic", 12, 5, 10, func(o *Outcome) {
			if n++; n%c.every == 0 {
				o.Again = c.again
			}
			o.Sent, o.Queue = 700, 0.05
		})
		if w := beside(t, arms, b); (w[1] > 0.3) != c.lossy {
			t.Errorf("one connection of %d retransmits %g packets of 700: shares %v", c.every, c.again, w)
		}
	}
}

// If more losses open a search, the same losses show that they are random: an arm that takes
// them for congestion is not tried first.
func TestSearchKnowsWhatOpenedIt(t *testing.T) {
	b := &Belief{Last: start}
	feedSlices(b, "cubic", 12, 1, 10, func(o *Outcome) { o.Sent, o.Again, o.Loss, o.Queue = 700, 0, 0, 0.4 })
	for n := 0; b.Changes == 0; n++ {
		if n == 8 {
			t.Fatalf("%d lossy connections are not detected as a change", n)
		}
		feedSlices(b, "cubic", 1, 1, 8, func(o *Outcome) { o.Sent, o.Again, o.Loss, o.Queue = 250, 12, 0.05, 0.05 })
	}
	if a := b.arm(tcp.CCOf("cubic")); a.Sent < leastSent || a.Again < 0.045*a.Sent {
		t.Errorf("of the losses that showed the change %v is known", a.Losses)
	}
	if w := beside(t, []string{"cubic", "bbr", "reno"}, b); w[1] < 0.5 || w[2] > mostWorse+1e-9 {
		t.Errorf("shares %v", w)
	}
}

// Losses without a queue open no search if many connections overlap: the search would put
// all connections of a slice at risk.
func TestNoSearchForRandomLossIfManyOverlap(t *testing.T) {
	arms := []string{"cubic", "bbr", "reno"}
	for n, want := range map[int]bool{5: true, 20: false} {
		b := &Belief{Last: start}
		feedSlices(b, "cubic", 12, n, 10, func(o *Outcome) { o.Sent, o.Again, o.Queue = 700, 7, 0.02 })
		if w := beside(t, arms, b); (w[1] > 0.3) != want || !want && 1-w[0] > mostUnknownMany+1e-9 {
			t.Errorf("%d at a time: shares %v", n, w)
		}
	}
}

// A search after a fall of rewards puts whole slices at risk: if connections overlap, only a
// great fall opens one.
func TestSearchNeedsAGreatFallWhereConnectionsOverlap(t *testing.T) {
	arms := []string{"bbr", "reno", "tcpilot_bbr3"}
	for _, c := range []struct {
		n    int
		fall float64
		want bool
	}{{1, 0.5, true}, {20, 0.5, false}, {20, 1.2, true}} {
		b := &Belief{Last: start}
		feedSlices(b, "bbr", 12, c.n, 10, nil)
		for n := 0; b.Changes == 0; n++ {
			if n == 20 {
				t.Fatalf("%d slices that are slower by %g are not detected as a change", n, c.fall)
			}
			feedSlices(b, "bbr", 1, c.n, 10-c.fall, nil)
		}
		if b.Fall < 0.6*c.fall || b.Fall > 1.1*c.fall {
			t.Errorf("%d at a time: the fall is %.2f, want about %g", c.n, b.Fall, c.fall)
		}
		if w := beside(t, arms, b); (1-w[0] > 2*mostUnknown) != c.want {
			t.Errorf("%d at a time, slower by %g: shares %v", c.n, c.fall, w)
		}
	}
}

// tcpilot_cubic is expected to be about as good as cubic: as long as slices scatter too much to
// decide, neither gets nearly everything.
func TestVariantIsExpectedToBeAsGood(t *testing.T) {
	b := &Belief{Last: start}
	scatter := func(o *Outcome) { o.Reward += 0.4 * float64(o.Slice/second%3-1) }
	feedSlices(b, "cubic", 3, 3, 10, scatter)
	feedSlices(b, "tcpilot_cubic", 3, 3, 10, scatter)
	if w := beside(t, []string{"cubic", "tcpilot_cubic"}, b); min(w[0], w[1]) < 0.4 {
		t.Errorf("shares %v", w)
	}
}

// An arm that is shown to be better than the default is used, whether or not a variant of
// the default leads the default.
func TestVariantDoesNotReplaceABetterArm(t *testing.T) {
	for _, n := range []int{1, 3} {
		b := &Belief{Last: start}
		scatter := func(o *Outcome) { o.Reward += 0.2 * float64(o.Slice/second%3-1) }
		for range 4 {
			feedSlices(b, "cubic", 3, n, 10, scatter)
			feedSlices(b, "tcpilot_cubic", 3, n, 10.1, scatter)
			feedSlices(b, "bbr", 3, n, 12, scatter)
		}
		if w := beside(t, []string{"cubic", "bbr", "tcpilot_cubic"}, b); w[1] < 0.9 || w[2] > 0.05 {
			t.Errorf("%d at a time: shares %v", n, w)
		}
	}
}

// On a path with random loss, a variant of a default that takes loss for congestion does the
// same: a search does not try it.
func TestVariantDoesNotDelayASearch(t *testing.T) {
	for _, n := range []int{1, 3} {
		b := &Belief{Last: start}
		feedSlices(b, "cubic", 4, n, 10, func(o *Outcome) {
			o.Sent, o.Again, o.Loss, o.Queue = 300, 9, 0.03, 0.05
			o.Reward += 0.2 * float64(o.Slice/second%3-1)
		})
		with := beside(t, []string{"cubic", "bbr", "tcpilot_cubic"}, b)
		without := beside(t, []string{"cubic", "bbr"}, b)
		if with[1] < 0.9*without[1] || with[1] < 0.5 || with[2] > mostWorse {
			t.Errorf("%d at a time: shares %v, without a variant %v", n, with, without)
		}
	}
}

// Two slices with low rewards by chance do not rule out a variant of the default.
func TestTwoBadSlicesDoNotRuleOutAVariant(t *testing.T) {
	b := &Belief{Last: start}
	feedSlices(b, "tcpilot_cubic", 2, 3, 9.6, nil)
	feedSlices(b, "cubic", 6, 4, 10, func(o *Outcome) { o.Reward += 0.4 * float64(o.Slice/second%3-1) })
	if w := beside(t, []string{"cubic", "tcpilot_cubic", "reno"}, b); w[1] < 0.1 {
		t.Errorf("shares %v", w)
	}
	// It is used as soon as it is believed to be better: sooner than an unrelated arm.
	in := func(name string) (n int) {
		b := &Belief{Last: start}
		for n = 2; n < 100; n += 2 {
			feedSlices(b, "cubic", 2, 1, 10, func(o *Outcome) { o.Reward += 0.15 * float64(o.Slice/second%3-1) })
			feedSlices(b, name, 2, 1, 10.12, nil)
			if w := beside(t, []string{"cubic", name}, b); w[1] > 0.9 {
				break
			}
		}
		return n
	}
	if variant, unrelated := in("tcpilot_cubic"), in("reno"); unrelated == 100 || variant > unrelated*2/3 {
		t.Errorf("in use after %d observations, an unrelated arm after %d", variant, unrelated)
	}
}

// Losses without a fall of the rewards do not end the use of an arm that was shown to be
// better.
func TestOverflowsAreNotAChangeOfThePath(t *testing.T) {
	arms := []string{"cubic", "bbr"}
	b := &Belief{Last: start}
	for range 8 {
		feedSlices(b, "cubic", 2, 4, 10, func(o *Outcome) { o.Sent, o.Queue = 700, 0.2 })
		feedSlices(b, "bbr", 2, 4, 10.3, func(o *Outcome) { o.Sent, o.Queue = 700, 0.2 })
	}
	if w := beside(t, arms, b); w[1] < 0.9 {
		t.Fatalf("bbr is not in use: shares %v", w)
	}
	for n := 0; b.Changes == 0; n++ {
		if n == 20 {
			t.Fatal("the losses are not noticed")
		}
		feedSlices(b, "bbr", 1, 4, 10.3, func(o *Outcome) { o.Sent, o.Again, o.Loss, o.Queue = 700, 14, 0.02, 0.2 })
	}
	if w := beside(t, arms, b); w[1] < 0.9 || b.Fall != 0 {
		t.Errorf("shares %v, a fall of %.2f", w, b.Fall)
	}
}

// A slow connection may end after the first connection of the next slice. It does not count
// as an observation, and does not split the observation of the next slice.
func TestLateOutcomesAreNotObservations(t *testing.T) {
	b, at := &Belief{Last: start}, int64(start/second*second)
	const slice = 8 * second
	for k := range int64(20) {
		id := at + k*slice
		for n := range int64(10) {
			o := Outcome{At: id + n*second/2, Reward: 10, Weight: 1, Slice: id, AtOnce: 10}
			if k > 0 && n == 5 {
				o.Slice, o.Reward = id-slice, 8
			}
			DefaultThompson().Observe(b, tcp.CCOf("cubic"), o)
		}
	}
	if a := b.arm(tcp.CCOf("cubic")); b.Count != 20 || a.Weight > 20 || b.Changes != 0 {
		t.Errorf("%d observations of 20 slices, evidence %.1f, %d changes", b.Count, a.Weight, b.Changes)
	}
	var c Comparison
	for k := range int64(20) {
		id := at + k*slice
		c.Add(Outcome{At: id, Reward: 10, Weight: 1, Slice: id}, Treated)
		c.Add(Outcome{At: id, Reward: 8, Weight: 1, Slice: id - slice}, Treated)
		c.Add(Outcome{At: id, Reward: 10, Weight: 1, Slice: id}, Treated)
	}
	if n := c.Treated.closed().N; n > 20 {
		t.Errorf("the comparison counts %.0f observations of 20 slices", n)
	}
}

// A path with random loss still counts as one when its rewards fall without more losses: arms
// that slow down for each loss are not tried.
func TestRandomLossIsRememberedWhenRewardsFall(t *testing.T) {
	b := &Belief{Last: start}
	loses := func(n float64) func(*Outcome) {
		return func(o *Outcome) { o.Sent, o.Again, o.Loss, o.Queue = 700, n, n/700, 0.1 }
	}
	feedSlices(b, "bbr", 12, 5, 10, loses(7))
	for n := 0; b.Changes == 0; n++ {
		if n == 20 {
			t.Fatal("20 slices that are slower by 1 are not detected as a change")
		}
		feedSlices(b, "bbr", 1, 1, 9, loses(6))
	}
	w := beside(t, []string{"bbr", "cubic", "reno"}, b)
	if b.Fall == 0 || w[1]+w[2] > mostWorse+1e-9 {
		t.Errorf("fall %v, shares %v", b.Fall, w)
	}
}
