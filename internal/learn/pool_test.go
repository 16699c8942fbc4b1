package learn

import (
	"math"
	"testing"
)

func TestParentLearnsFromDifferencesNotFromSpeeds(t *testing.T) {
	// Fast paths use cubic, slow ones bbr, and bbr is better on either.
	l, rng, root, arms := DefaultThompson(), seeded(1), &Belief{}, ccs("cubic", "bbr")
	for p := range 40 {
		level, favourite := 15.0, 0
		if p%2 == 1 {
			level, favourite = 8, 1
		}
		child := &Belief{}
		for i := range 8 {
			k := favourite
			if i == 3 {
				k = 1 - favourite
			}
			o := outcome(int64(p*8+i), level+float64(k)+0.3*rng.NormFloat64())
			l.Observe(child, arms[k], o)
			ObserveParent(l, child, root, arms[k], o)
		}
	}
	w, best := shares(t, []string{"cubic", "bbr"}, nil, root, root.Last)
	if best != 1 || w[1] < 0.8 {
		t.Errorf("a new path gets best %d of %v", best, w)
	}
	if d := root.arm(arms[1]).Mean - root.arm(arms[0]).Mean; math.Abs(d-1) > 0.35 {
		t.Errorf("bbr is believed to be worth exp(%v) times cubic", d)
	}
	if !root.Pooled || root.Changes != 0 {
		t.Errorf("pooled %v, changes %d: other paths are not a change of this one", root.Pooled, root.Changes)
	}
}

func TestPrefixLearnsFromHostsThatConnectOnce(t *testing.T) {
	l, rng, root, arms := DefaultThompson(), seeded(2), &Belief{}, ccs(trio...)
	used := 0
	for i := range 200 {
		w, _ := shares(t, trio, root, nil, start+int64(i)*second)
		k := draw(w, rng)
		if i >= 100 && k == 1 {
			used++
		}
		o := outcome(int64(i), rng.NormFloat64()+[]float64{10, 11.5, 10}[k])
		child := &Belief{}
		l.Observe(child, arms[k], o)
		ObserveParent(l, child, root, arms[k], o)
	}
	if used < 70 {
		t.Errorf("the best arm was used %d times of the last 100", used)
	}
}

func TestABusyChildDoesNotDominateItsParent(t *testing.T) {
	l, root, arms := DefaultThompson(), &Belief{}, ccs("cubic", "bbr")
	child := &Belief{}
	for i := range 2000 {
		o := outcome(int64(i), float64(10+2*(i%2)))
		l.Observe(child, arms[i%2], o)
		ObserveParent(l, child, root, arms[i%2], o)
	}
	if n := root.arm(arms[1]).Weight; n > 25 {
		t.Errorf("2000 connections of one path weigh %v at its parent", n)
	}
}

func TestParentLearnsNothingFromASingleArm(t *testing.T) {
	l, root, child, cc := DefaultThompson(), &Belief{}, &Belief{}, ccs("cubic")[0]
	for i := range 50 {
		o := outcome(int64(i), 10)
		l.Observe(child, cc, o)
		ObserveParent(l, child, root, cc, o)
	}
	if len(root.Arms) != 0 {
		t.Errorf("the parent holds %+v", root.Arms)
	}
}

// A host that is alone in its prefix must not count its own outcomes a second time as
// those of its prefix.
func TestOwnOutcomesAreNotCountedTwice(t *testing.T) {
	l, b, parent, arms := DefaultThompson(), &Belief{}, &Belief{}, ccs(trio...)
	for i := range 30 {
		o := outcome(int64(i), 10+float64(i%3))
		l.Observe(b, arms[i%3], o)
		ObserveParent(l, b, parent, arms[i%3], o)
		alone, _ := shares(t, trio, b, nil, o.At)
		told, _ := shares(t, trio, b, parent, o.At)
		for k := range alone {
			if math.Abs(alone[k]-told[k]) > 1e-9 {
				t.Fatalf("after %d outcomes: alone %v, with its parent %v", i+1, alone, told)
			}
		}
	}
	if w, best := shares(t, trio, nil, parent, b.Last); best != 2 || w[2] < 0.8 {
		t.Errorf("a sibling inherits best %d of %v", best, w)
	}
}

func TestParentCountsForAFewOutcomesAtMost(t *testing.T) {
	root := &Belief{Pooled: true}
	now := feed(root, seeded(3), 0, 40, 0.1, map[string]float64{"cubic": 0, "bbr": 3, "reno": 0})
	if w, best := shares(t, trio, nil, root, now); best != 1 || w[1] < 0.95 {
		t.Errorf("inherited: best %d of %v", best, w)
	}
	b := &Belief{}
	now = feed(b, seeded(4), 40, 8, 0.3, map[string]float64{"cubic": 11, "bbr": 10, "reno": 10})
	if w, best := shares(t, trio, b, root, now); best != 0 || w[0] < 0.8 {
		t.Errorf("own experience: best %d of %v", best, w)
	}
}

func TestTheParentsBeliefIsVerified(t *testing.T) {
	root := &Belief{Pooled: true}
	now := feed(root, seeded(5), 0, 40, 0.1, map[string]float64{"cubic": -3, "bbr": 1, "reno": -3})
	b := &Belief{}
	early, _ := shares(t, trio, b, root, now)
	now = feed(b, seeded(6), 41, 6, 0.3, map[string]float64{"bbr": 10})
	late, _ := shares(t, trio, b, root, now)
	if early[0]+early[2] > 0.01 || late[0]+late[2] < 0.05 {
		t.Errorf("at first %v, after 6 connections %v", early, late)
	}
}

func TestEpsilonGreedyParentsGetOutcomesAsTheyAre(t *testing.T) {
	a, b, cc := &Belief{}, &Belief{}, ccs("cubic")[0]
	o := outcome(0, 10)
	published().Observe(a, cc, o)
	ObserveParent(published(), &Belief{}, b, cc, o)
	if a.Arms[0] != b.Arms[0] || b.Pooled {
		t.Errorf("direct %+v, as parent %+v", a, b)
	}
}
