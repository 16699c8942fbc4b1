package learn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// beside asks the default learner what the arms get whose first is the default.
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

// crowds feeds slices of n connections of an arm each, which scatter by 3 %.
func crowds(b *Belief, name string, slices, n int, reward float64, set func(*Outcome)) {
	rng := rand.New(rand.NewPCG(7, uint64(n)))
	for range slices {
		slice := b.Last/second + 1
		for range n {
			o := Outcome{At: slice * second, Reward: reward + 0.03*rng.NormFloat64(), Weight: 1, Sent: 70, Slice: slice}
			if set != nil {
				set(&o)
			}
			DefaultThompson().Observe(b, ccs(name)[0], o)
		}
	}
}

// A trial is a slice, and all connections that begin in it: an arm that nothing is known
// of is soon tried where they come one at a time, and seldom where they come in crowds.
func TestUnknownArmsAreRationedInCrowds(t *testing.T) {
	arms := []string{"bbr", "tcpilot_bbr3", "cubic", "reno"}
	for _, c := range []struct {
		n           int
		least, most float64
	}{{1, 0.1, 0.53}, {5, 0.001, 0.0101}, {20, 0.001, 0.0101}} {
		b := &Belief{Last: start}
		crowds(b, "bbr", 4, c.n, 10, nil)
		if w := beside(t, arms, b); 1-w[0] < c.least || 1-w[0] > c.most {
			t.Errorf("%d at a time: %v, want %g to %g for arms that were not tried", c.n, w, c.least, c.most)
		}
	}
	if w := beside(t, arms, &Belief{}); w[0] != 1 {
		t.Errorf("before the first outcome: %v", w)
	}
}

// What was made from the default is expected to be as good.
func TestWhatWasMadeFromTheDefaultIsTried(t *testing.T) {
	b := &Belief{Last: start}
	crowds(b, "cubic", 4, 20, 10, nil)
	if w := beside(t, []string{"cubic", "bbr", "tcpilot_cubic", "reno"}, b); w[2] < 0.2 || w[2] > mostUnproven || w[1]+w[3] > mostUnknown+1e-9 {
		t.Errorf("shares %v", w)
	}
	// Unless it turns out otherwise.
	crowds(b, "tcpilot_cubic", 6, 20, 9.5, nil)
	crowds(b, "cubic", 2, 20, 10, nil)
	if w := beside(t, []string{"cubic", "bbr", "tcpilot_cubic", "reno"}, b); w[2] > 0.05 {
		t.Errorf("it is 40 %% slower, and the shares are %v", w)
	}
}

// Connections of a slice that are alike say that slices will be: what is 5 % slower there
// is soon left alone.
func TestAlikeConnectionsMakeBeliefsSure(t *testing.T) {
	arms := []string{"bbr", "tcpilot_bbr3", "reno"}
	b := &Belief{Last: start}
	for range 2 {
		crowds(b, "bbr", 4, 20, 10, nil)
		crowds(b, "tcpilot_bbr3", 1, 20, 9.95, nil)
		crowds(b, "reno", 1, 20, 9.93, nil)
	}
	if w := beside(t, arms, b); w[0] < 0.9 {
		t.Errorf("shares %v", w)
	}
	l := DefaultThompson().(thompson)
	if v := l.pooledNoise(b); v > 0.15*0.15 {
		t.Errorf("observations are expected to scatter by %.2f", math.Sqrt(v))
	}
}

// On a path that loses at random, what takes loss for congestion is worse, and need not be
// tried to be known for it. A queue that overflows is another matter.
func TestRandomLossIsNothingForWhatTakesItForCongestion(t *testing.T) {
	arms := []string{"bbr", "cubic", "reno", "tcpilot_bbr3"}
	for _, c := range []struct {
		stretch float64
		lossy   bool
	}{{0.05, true}, {0.6, false}} {
		t.Run(fmt.Sprint(c.stretch), func(t *testing.T) {
			b := &Belief{Last: start}
			crowds(b, "bbr", 12, 1, 10, func(o *Outcome) { o.Again, o.Stretch = 1, c.stretch })
			w := beside(t, arms, b)
			if others := w[1] + w[2]; (others <= 2*mostWorse+1e-9) != c.lossy {
				t.Errorf("shares %v", w)
			}
		})
	}
	// With a default that does, the search is for what does not.
	b := &Belief{Last: start}
	crowds(b, "cubic", 12, 5, 10, func(o *Outcome) { o.Again, o.Stretch = 1, 0.05 })
	if w := beside(t, []string{"cubic", "bbr", "reno", "tcpilot_cubic"}, b); w[1] < 0.3 || w[2] > mostWorse+1e-9 {
		t.Errorf("with cubic for the default: %v", w)
	}
}

// What bbr's own queue hides afterwards, the default has met: the search stays one for what
// does not take loss for congestion.
func TestSearchIsNotForWhatTakesLossForCongestion(t *testing.T) {
	b := &Belief{Last: start}
	crowds(b, "cubic", 4, 1, 10, func(o *Outcome) { o.Sent, o.Again, o.Stretch = 700, 35, 0.05 })
	crowds(b, "bbr", 2, 1, 11, func(o *Outcome) { o.Sent, o.Again, o.Stretch = 700, 35, 0.6 })
	if w := beside(t, []string{"cubic", "bbr", "reno"}, b); w[2] > mostWorse+1e-9 {
		t.Errorf("shares %v", w)
	}
}

// A few connections that overflow a queue in slow start are no random loss, though the
// queue is empty again when they end.
func TestBurstsAreNoRandomLoss(t *testing.T) {
	arms := []string{"cubic", "bbr", "reno"}
	for _, c := range []struct {
		every int // connection has loss
		again float64
		lossy bool
	}{{1, 3, true}, {6, 18, false}} {
		b, n := &Belief{Last: start}, 0
		crowds(b, "cubic", 12, 5, 10, func(o *Outcome) {
			if n++; n%c.every == 0 {
				o.Again = c.again
			}
			o.Sent, o.Stretch = 700, 0.05
		})
		if w := beside(t, arms, b); (w[1] > 0.3) != c.lossy {
			t.Errorf("one connection of %d retransmits %g packets of 700: shares %v", c.every, c.again, w)
		}
	}
}

// Once losses have grown and the search opens, those that told of it say that they are
// random: what takes them for congestion is not tried first.
func TestSearchKnowsWhatOpenedIt(t *testing.T) {
	b := &Belief{Last: start}
	crowds(b, "cubic", 12, 1, 10, func(o *Outcome) { o.Sent, o.Again, o.Loss, o.Stretch = 700, 0, 0, 0.4 })
	for n := 0; b.Changes == 0; n++ {
		if n == 8 {
			t.Fatalf("%d lossy connections are no change", n)
		}
		crowds(b, "cubic", 1, 1, 8, func(o *Outcome) { o.Sent, o.Again, o.Loss, o.Stretch = 250, 12, 0.05, 0.05 })
	}
	if a := b.Arm(named("cubic")); a.Sent < leastSent || a.Again < 0.045*a.Sent {
		t.Errorf("of the losses that told of the change %v is known", a.Losses)
	}
	if w := beside(t, []string{"cubic", "bbr", "reno"}, b); w[1] < 0.5 || w[2] > mostWorse+1e-9 {
		t.Errorf("shares %v", w)
	}
}

// Of a crowd, those that end first met less of its queue: they are no proof that a path
// loses packets without one.
func TestFirstOfACrowdAreNoProof(t *testing.T) {
	arms := []string{"cubic", "bbr", "reno"}
	for _, c := range []struct {
		rest float64 // stretch of those that end later
		want bool
	}{{0.02, true}, {0.2, false}} {
		b := &Belief{Last: start}
		for k := range 6 {
			n := 0
			crowds(b, "cubic", 1, 20, 10, func(o *Outcome) {
				o.Sent, o.Again, o.Stretch = 700, 7, 0.02
				if n++; n > 6 {
					o.Stretch = c.rest
				}
			})
			if w := beside(t, arms, b); k < 2 && w[1] > mostUnknown+1e-9 {
				t.Errorf("after %d crowds: shares %v", k+1, w)
			}
		}
		if w := beside(t, arms, b); (w[1] > 0.3) != c.want {
			t.Errorf("with a stretch of %g: shares %v", c.rest, w)
		}
	}
}

// A search that a fall opens puts whole slices at risk: in a crowd only where users wait
// twice as long.
func TestSearchInACrowdNeedsAFall(t *testing.T) {
	arms := []string{"bbr", "reno", "tcpilot_bbr3"}
	for _, c := range []struct {
		n    int
		fall float64
		want bool
	}{{1, 0.5, true}, {20, 0.5, false}, {20, 1.2, true}} {
		b := &Belief{Last: start}
		crowds(b, "bbr", 12, c.n, 10, nil)
		for n := 0; b.Changes == 0; n++ {
			if n == 20 {
				t.Fatalf("%d slices that are slower by %g are no change", n, c.fall)
			}
			crowds(b, "bbr", 1, c.n, 10-c.fall, nil)
		}
		if b.Fall < 0.6*c.fall || b.Fall > 1.1*c.fall {
			t.Errorf("%d at a time: the fall is %.2f, want about %g", c.n, b.Fall, c.fall)
		}
		if w := beside(t, arms, b); (1-w[0] > 2*mostUnknown) != c.want {
			t.Errorf("%d at a time, slower by %g: shares %v", c.n, c.fall, w)
		}
	}
}

// Two slices of bad luck do not condemn what was made from the default.
func TestBadLuckOfWhatWasMadeFromTheDefault(t *testing.T) {
	b := &Belief{Last: start}
	crowds(b, "tcpilot_cubic", 2, 3, 9.6, nil)
	crowds(b, "cubic", 6, 4, 10, func(o *Outcome) { o.Reward += 0.4 * float64(o.Slice%3-1) })
	if w := beside(t, []string{"cubic", "tcpilot_cubic", "reno"}, b); w[1] < 0.1 {
		t.Errorf("shares %v", w)
	}
	// It is in use as soon as that is believed: half as many slices as a stranger needs.
	in := func(name string) (n int) {
		b := &Belief{Last: start}
		for n = 2; n < 100; n += 2 {
			crowds(b, "cubic", 2, 1, 10, func(o *Outcome) { o.Reward += 0.15 * float64(o.Slice%3-1) })
			crowds(b, name, 2, 1, 10.12, nil)
			if w := beside(t, []string{"cubic", name}, b); w[1] > 0.9 {
				break
			}
		}
		return n
	}
	if made, stranger := in("tcpilot_cubic"), in("reno"); made > stranger*2/3 {
		t.Errorf("in use after %d observations, a stranger after %d", made, stranger)
	}
}

// Where only losses come and go, what is known of how fast arms are is still worth something.
func TestOverflowsAreNotAnotherPath(t *testing.T) {
	b := &Belief{Last: start}
	for range 6 {
		crowds(b, "cubic", 2, 4, 10, func(o *Outcome) { o.Sent, o.Stretch = 700, 0.2 })
		crowds(b, "bbr", 2, 4, 10, func(o *Outcome) { o.Sent, o.Stretch = 700, 0.2 })
	}
	for n := 0; b.Changes == 0; n++ {
		if n == 20 {
			t.Fatal("the losses are not noticed")
		}
		crowds(b, "cubic", 1, 4, 10, func(o *Outcome) { o.Sent, o.Again, o.Loss, o.Stretch = 700, 14, 0.02, 0.2 })
	}
	for _, name := range []string{"cubic", "bbr"} {
		if a := b.Arm(named(name)); a.Weight < 3 || a.Trials > settled+1 {
			t.Errorf("%s: evidence %.1f, %.1f trials since", name, a.Weight, a.Trials)
		}
	}
	if b.Fall != 0 {
		t.Errorf("a fall of %.2f", b.Fall)
	}
}
