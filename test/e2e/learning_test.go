package e2e

import (
	"fmt"
	"testing"
	"time"
)

// length is how long a bulk connection lasts: a second where the claims are
// made, else as short as tells the arms apart.
func length() time.Duration {
	if full() {
		return time.Second
	}
	return 250 * time.Millisecond
}

// TestRootLossyPathGetsItsBestArm is the claim: of 40 connections on a new path
// 18 of the last 20 start with the best arm, at 0.9 of its goodput alone.
func TestRootLossyPathGetsItsBestArm(t *testing.T) {
	for _, loss := range []float64{0.02, 0.10} {
		t.Run(fmt.Sprintf("loss %g", loss), func(t *testing.T) {
			w := newWorld(t, "far")
			r := w.remotes[0]
			w.setLoss(t, r, loss)
			s := newSeries(t, startTcpilot(t, w, settings{}), r, length())
			s.run(t, w, 40)
			t.Log(s)
			best, alone := s.best()
			last := s.last(20)
			if n := starts(last, best); n < 18 {
				t.Errorf("%d of the last 20 connections start with %s, want 18", n, best)
			}
			if got := goodput(last); got < 0.9*alone {
				t.Errorf("mean goodput of the last 20 is %.1f Mbit/s, %.2f of %s alone (%.1f), want 0.9",
					got/1e6, got/alone, best, alone/1e6)
			}
		})
	}
}

// TestRootCleanPathLosesNothing: learning must not cost where there is nothing
// to win.
func TestRootCleanPathLosesNothing(t *testing.T) {
	w := newWorld(t, "far")
	s := newSeries(t, startTcpilot(t, w, settings{}), w.remotes[0], length())
	s.run(t, w, 30)
	t.Log(s)
	best, alone := s.best()
	// Means of connections as short as CI's scatter by 2 % themselves.
	want := 0.98
	if !full() {
		want = 0.95
	}
	if got := goodput(s.learned); got < want*alone {
		t.Errorf("mean goodput is %.1f Mbit/s, %.3f of %s alone (%.1f), want %.2f",
			got/1e6, got/alone, best, alone/1e6, want)
	}
}

// TestRootPathThatFlipsIsFollowed: clean, lossy, clean; the best arm within 15
// connections of each change.
func TestRootPathThatFlipsIsFollowed(t *testing.T) {
	const within, judged = 15, 10
	w := newWorld(t, "far")
	r := w.remotes[0]
	p := startTcpilot(t, w, settings{})
	for i, loss := range []float64{0, 0.05, 0} {
		w.setLoss(t, r, loss)
		s := newSeries(t, p, r, length())
		for range within {
			s.one(t, w)
		}
		s.run(t, w, judged)
		t.Logf("phase %d, loss %g: %s", i, loss, s)
		best, alone := s.best()
		last := s.since(within)
		if got := goodput(last); got < 0.8*alone {
			t.Errorf("phase %d, loss %g: after %d connections goodput is %.1f Mbit/s, %.2f of %s alone (%.1f)",
				i, loss, within, got/1e6, got/alone, best, alone/1e6)
		}
		if n := starts(last, best); loss > 0 && n < len(last)-2 {
			t.Errorf("phase %d, loss %g: %d of %d connections start with %s", i, loss, n, len(last), best)
		}
	}
}
