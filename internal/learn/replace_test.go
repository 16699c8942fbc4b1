package learn

import (
	"testing"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestReplaced(t *testing.T) {
	l := DefaultThompson()
	arms := []tcp.CC{tcp.CCOf("cubic"), tcp.CCOf("tcpilot_bbr3"), tcp.CCOf("reno"), tcp.CCOf("tcpilot_cubic")}
	now := int64(1e18)
	observe := func(b *Belief, arm int, n int, reward float64) {
		for range n {
			now += 1e9
			l.Observe(b, arms[arm], Outcome{At: now, Reward: reward, Weight: 1, Slice: now})
		}
	}
	// Connections met a slow beginning of the path; then it turned lossy, and a better arm was tried twice.
	turnedLossy := func(b *Belief) {
		for _, reward := range []float64{0.9, 1.8, 1.9, 2} {
			observe(b, 0, 1, reward)
		}
		observe(b, 3, 20, 2)
		for b.Changes == 0 {
			observe(b, 3, 1, 0.2)
		}
		observe(b, 1, 2, 2.1)
	}
	for _, c := range []struct {
		name    string
		observe func(b *Belief)
		want    uint8
	}{
		{"cubic at a third of the speed", func(b *Belief) { observe(b, 0, 10, 1); observe(b, 1, 10, 2.1) }, 1 << 0},
		{"both others", func(b *Belief) { observe(b, 0, 10, 1); observe(b, 2, 10, 0.8); observe(b, 1, 10, 2.1) }, 1<<0 | 1<<2},
		{"cubic a quarter slower", func(b *Belief) { observe(b, 0, 10, 1.8); observe(b, 1, 10, 2.1) }, 0},
		{"the better arm was tried once", func(b *Belief) { observe(b, 0, 10, 1); observe(b, 1, 1, 2.1) }, 0},
		{"cubic was not tried since the path changed", func(b *Belief) {
			observe(b, 0, 10, 2)
			observe(b, 3, 10, 2)
			for b.Changes == 0 {
				observe(b, 3, 1, 0.5)
			}
			observe(b, 1, 10, 2.1)
			if n := b.arm(arms[0]).Trials; n != 0 {
				t.Errorf("cubic was tried %g times", n)
			}
		}, 1<<0 | 1<<3},
		{"a path turned lossy", turnedLossy, 1<<0 | 1<<3},
		{"a path turned lossy, and cubic was tried once", func(b *Belief) { turnedLossy(b); observe(b, 0, 1, 0.3) }, 1<<0 | 1<<3},
		{"one in ten connections of the better arm was slow", func(b *Belief) {
			observe(b, 0, 10, 1)
			observe(b, 1, 9, 2.3)
			observe(b, 1, 1, 0.9)
		}, 1 << 0},
		{"cubic was never tried", func(b *Belief) { observe(b, 1, 10, 2.1) }, 0},
		{"nothing is known", func(*Belief) {}, 0},
	} {
		var b Belief
		c.observe(&b)
		if got := Replaced(l, arms, 0, 1, &b, now); got != c.want {
			t.Errorf("%s: %b, want %b", c.name, got, c.want)
		}
		b.Pooled = true
		if got := Replaced(l, arms, 0, 1, &b, now); got != 0 {
			t.Errorf("%s, of many paths: %b", c.name, got)
		}
	}
	var b Belief
	observe(&b, 0, 10, 1)
	observe(&b, 2, 10, 1)
	observe(&b, 3, 10, 2.1)
	if got := Replaced(l, arms, 0, 3, &b, now); got != 1<<2 {
		t.Errorf("by a variant of cubic: %b, want only reno", got)
	}
	if got := Replaced(NewEpsilonGreedy(0.1, 0.1), arms, 0, 1, &Belief{}, now); got != 0 {
		t.Errorf("another learner: %b", got)
	}
}
