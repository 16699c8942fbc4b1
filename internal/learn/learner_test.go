package learn

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

const (
	start  = int64(1_700_000_000_000_000_000) // any time will do; beliefs know no epoch
	second = int64(1e9)
)

var names = []string{"cubic", "bbr", "reno", "htcp", "dctcp", "vegas", "westwood", "illinois"}

func ccs(names ...string) []tcp.CC {
	out := make([]tcp.CC, len(names))
	for i, n := range names {
		out[i], _ = tcp.ParseCC(n)
	}
	return out
}

// outcome of a whole connection, at seconds after start.
func outcome(at int64, reward float64) Outcome {
	return Outcome{At: start + at*second, Reward: reward, Weight: 1, MinRTT: 1000, Rate: 1e6}
}

func TestParseObjectiveReadsWhatStringWrites(t *testing.T) {
	for o := Throughput; o <= Realtime; o++ {
		if got, err := ParseObjective(o.String()); err != nil || got != o {
			t.Errorf("ParseObjective(%q) = %v, %v", o.String(), got, err)
		}
	}
	if _, err := ParseObjective("speed"); err == nil {
		t.Error("an unknown objective was taken")
	}
}

func TestObserveLeavesOutWhatCannotBeStored(t *testing.T) {
	cc := ccs("cubic")[0]
	for _, l := range []Learner{DefaultThompson(), NewEpsilonGreedy(0.05, 0.25)} {
		b := &Belief{}
		for _, o := range []Outcome{
			{At: start, Reward: math.NaN(), Weight: 1},
			{At: start, Reward: math.Inf(-1), Weight: 1},
			{At: start, Reward: 1, Weight: 0},
			{At: start, Reward: 1, Weight: -1},
			{At: start, Reward: 1, Weight: math.NaN()},
			{At: start, Reward: 1, Weight: math.Inf(1)},
		} {
			l.Observe(b, cc, o)
			l.ObserveHoldOut(b, o)
			ObserveParent(l, b, b, cc, o)
		}
		if len(b.Arms) != 0 || b.HoldOut != nil {
			t.Errorf("%s: observed %+v", l.Name(), b)
		}
	}
}

func TestBeliefSurvivesTheStore(t *testing.T) {
	arms := ccs("cubic", "bbr", "reno")
	l, b, parent := DefaultThompson(), &Belief{}, &Belief{}
	for i := range 60 {
		o := outcome(int64(i), float64(i%3)-float64(i/40)*3)
		o.Loss = float64(i%5) / 100
		l.Observe(b, arms[i%3], o)
		l.ObserveHoldOut(b, o)
		ObserveParent(l, b, parent, arms[i%3], o)
	}
	for _, was := range []*Belief{b, parent} {
		text, err := json.Marshal(was)
		if err != nil {
			t.Fatal(err)
		}
		var now Belief
		if err := json.Unmarshal(text, &now); err != nil {
			t.Fatal(err)
		}
		w, v := make([]float64, 3), make([]float64, 3)
		l.Weights(w, arms, -1, was, nil, was.Last)
		l.Weights(v, arms, -1, &now, nil, was.Last)
		for i := range w {
			if w[i] != v[i] {
				t.Errorf("shares before %v, after %v", w, v)
			}
		}
	}
}

func TestObserveDoesNotAllocateOnceAnArmIsKnown(t *testing.T) {
	arms := ccs("cubic", "bbr", "reno")
	for _, l := range []Learner{DefaultThompson(), NewEpsilonGreedy(0.05, 0.25)} {
		b, parent, w := &Belief{}, &Belief{}, make([]float64, 3)
		i := 0
		step := func() {
			o := outcome(int64(i), float64(i%7))
			l.Observe(b, arms[i%3], o)
			ObserveParent(l, b, parent, arms[i%3], o)
			l.ObserveHoldOut(b, o)
			l.Weights(w, arms, -1, b, parent, o.At)
			i++
		}
		for range 12 {
			step()
		}
		if n := testing.AllocsPerRun(100, step); n != 0 {
			t.Errorf("%s: %v allocations", l.Name(), n)
		}
	}
}

// A copy of a belief shares nothing with it: what is stored must not change while it is written.
func TestClone(t *testing.T) {
	l := DefaultThompson()
	var b Belief
	out := Outcome{At: second, Weight: 1, Reward: 1}
	l.Observe(&b, cubic, out)
	l.ObserveHoldOut(&b, out)
	c := b.Clone()
	before, _ := json.Marshal(c)
	out.At, out.Reward = 2*second, 2
	l.Observe(&b, cubic, out)
	l.ObserveHoldOut(&b, out)
	if after, _ := json.Marshal(c); !bytes.Equal(before, after) || b.HoldOut.Count != 2 {
		t.Errorf("before %s, after %s, of %+v", before, after, b)
	}
}
