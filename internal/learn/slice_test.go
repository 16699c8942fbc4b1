package learn

import (
	"math"
	"testing"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

const ms = int64(1e6)

var cubic, bbr = ccs("cubic")[0], ccs("bbr")[0]

func TestSliceIsOneObservation(t *testing.T) {
	l := DefaultThompson()
	var b Belief
	for i := range 8 {
		l.Observe(&b, cubic, Outcome{At: start + int64(i)*ms, Reward: float64(i), Weight: 0.5, Slice: 5})
	}
	a := b.arm(cubic)
	if b.Count != 1 || a.Count != 8 || a.Trials != 1 {
		t.Errorf("%d observations, %d outcomes, %g trials; want 1, 8, 1", b.Count, a.Count, a.Trials)
	}
	if math.Abs(a.Weight-1) > 1e-9 || math.Abs(a.Mean-3.5) > 1e-9 || a.Scatter != 5.25 || a.M2 != 0 {
		t.Errorf("mean %g of weight %g, scatter %g, m2 %g; want 3.5 of 1, 5.25, 0", a.Mean, a.Weight, a.Scatter, a.M2)
	}
	l.Observe(&b, cubic, Outcome{At: start + 9*ms, Reward: 3.5, Weight: 1, Slice: 6})
	if b.Count != 2 || a.Trials != 2 {
		t.Errorf("another slice: %d observations, %g trials; want 2, 2", b.Count, a.Trials)
	}
}

// If connections of two arms end in one slice, it is one observation of each arm, in
// whatever order they end.
func TestSliceOfTwoArms(t *testing.T) {
	l := DefaultThompson()
	var b Belief
	for i := range 40 {
		cc := cubic
		if i%2 == 1 {
			cc = bbr
		}
		l.Observe(&b, cc, Outcome{At: start + int64(i)*ms, Reward: float64(i % 2), Weight: 1, Slice: 5})
	}
	if b.Count != 2 || b.arm(cubic).Weight != 1 || b.arm(bbr).Mean != 1 {
		t.Errorf("%d observations, cubic's weigh %g, bbr's mean is %g; want 2, 1, 1", b.Count, b.arm(cubic).Weight, b.arm(bbr).Mean)
	}
}

// Gap is the time between observations, not between outcomes.
func TestGapIsBetweenObservations(t *testing.T) {
	l := DefaultThompson()
	var b Belief
	for i := range int64(2000) {
		l.Observe(&b, cubic, Outcome{At: start + i*5*ms, Reward: 1, Weight: 1, Slice: 1 + i/200})
	}
	if math.Abs(b.Gap-1) > 0.01 {
		t.Errorf("gap %g s between slices of 1 s", b.Gap)
	}
}

// An outcome without a slice is an observation by itself.
func TestOutcomesWithoutSliceAreObservations(t *testing.T) {
	l := DefaultThompson()
	var b Belief
	for i := range 5 {
		l.Observe(&b, cubic, Outcome{At: start + int64(i)*ms, Reward: 1, Weight: 1})
	}
	if b.Count != 5 || b.arm(cubic).Weight < 4.5 {
		t.Errorf("%d observations of weight %g, want 5 of nearly 5", b.Count, b.arm(cubic).Weight)
	}
}

// A change is detected within two slices, and outcomes after the detection count.
func TestChangeWithinSlice(t *testing.T) {
	l := DefaultThompson()
	var b Belief
	at := start
	feed := func(slice int64, n int, reward float64) {
		for range n {
			at += ms
			l.Observe(&b, cubic, Outcome{At: at, Reward: reward + 0.01*float64(at/ms%7), Weight: 1, Slice: slice})
		}
	}
	for s := range int64(20) {
		feed(1+s, 4, 0)
	}
	if b.Changes != 0 {
		t.Fatalf("%d changes on a steady path", b.Changes)
	}
	feed(100, 20, -2)
	feed(101, 20, -2)
	if b.Changes == 0 || b.arm(cubic).Mean > -1.8 {
		t.Errorf("%d changes, mean %g; want one, and about -2", b.Changes, b.arm(cubic).Mean)
	}
}

// Eight connections at a time are all affected by the same variation of the path. If they
// counted as eight observations, the variation would look like changes.
func TestSlicesAverageOutPathVariation(t *testing.T) {
	alarms := func(slices bool, together, each float64) (n uint64) {
		for seed := range uint64(20) {
			rng := seeded(seed)
			var b Belief
			for s := range int64(200) {
				weather := together * rng.NormFloat64()
				for range 8 {
					o := outcome(3*s, weather+each*rng.NormFloat64())
					if slices {
						o.Slice = s + 1
					}
					DefaultThompson().Observe(&b, cubic, o)
				}
			}
			n += b.Changes
		}
		return n
	}
	with, without := alarms(true, 0.3, 0.1), alarms(false, 0.3, 0.1)
	t.Logf("false alarms in 4000 slices of 8 connections: %d, and %d if each counts", with, without)
	if 10*with > without {
		t.Errorf("%d false alarms with slices, %d without; want a tenth at most", with, without)
	}
	if n := alarms(true, 0, 0.4); n > 4 {
		t.Errorf("%d false alarms if each connection is independent, want next to none", n)
	}
}

// A slice of many outcomes is also little evidence for the enclosing prefix.
func TestSliceIsLittleEvidenceForTheParent(t *testing.T) {
	l := DefaultThompson()
	var child, parent Belief
	for s, cc := range []tcp.CC{cubic, bbr} {
		for i := range 10 {
			o := Outcome{At: start + int64(100*s+i)*ms, Reward: 1, Weight: 1, Slice: int64(s + 1)}
			l.Observe(&child, cc, o)
			ObserveParent(l, &child, &parent, cc, o)
		}
	}
	if w := parent.arm(bbr).Weight; w > 2 || w < 1 {
		t.Errorf("the parent holds evidence %g of a slice of 10, want less than 2", w)
	}
}

// The first two observations of an arm, as a whole, are its first trials. Neither an outlier
// nor a change of the path makes it new again.
func TestFirstTrialsEnd(t *testing.T) {
	b, reno := &Belief{Last: start}, tcp.CCOf("reno")
	l := DefaultThompson()
	at, exempt := int64(start), 0
	observe := func(reward float64) {
		at += second
		for range 3 { // of one slice
			o := Outcome{Reward: reward, Weight: 1, At: at, Slice: at}
			if b.FirstTrial(reno, o) {
				exempt++
			}
			l.Observe(b, reno, o)
		}
	}
	for range 6 {
		observe(10)
	}
	if exempt != 6 {
		t.Errorf("%d outcomes were of first trials, want two slices of 3", exempt)
	}
	for range 2 * staleAfter {
		at += second
		l.Observe(b, tcp.CCOf("cubic"), Outcome{Reward: 10, Weight: 1, At: at, Slice: at})
	}
	observe(7)
	if a := b.arm(reno); exempt != 6 || a.Trials >= settled {
		t.Errorf("%d after an outlier, %v trials", exempt, a.Trials)
	}
	for b.Changes == 0 {
		at += second
		l.Observe(b, tcp.CCOf("cubic"), Outcome{Reward: 8, Weight: 1, At: at, Slice: at})
	}
	if observe(7); exempt != 6 {
		t.Errorf("%d after a change", exempt)
	}
}
