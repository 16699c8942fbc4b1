package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// length is how long a bulk connection of a test lasts: a second if TCPILOT_FULL=1, else
// just long enough to distinguish the arms.
func length() time.Duration {
	if full() {
		return time.Second
	}
	return 250 * time.Millisecond
}

// TestRootLossyPathGetsItsBestArm: on a new lossy path on which one arm is much better,
// after some time new connections start with that arm.
func TestRootLossyPathGetsItsBestArm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "far")
	w.setLoss(t, w.remotes[0], 0.10)
	newSeries(t, startTcpilot(t, w, settings{}), w.remotes[0], length()).until(t, w, "bbr")
}

// TestRootPathThatTurnsLossyIsFollowed: the same on a path that was clean before.
func TestRootPathThatTurnsLossyIsFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "far")
	s := newSeries(t, startTcpilot(t, w, settings{}), w.remotes[0], length())
	s.many(t, w, 15)
	w.setLoss(t, w.remotes[0], 0.05)
	s.until(t, w, "bbr")
}

// TestMeasureLossyPath measures the claim: of 40 connections on a new path 18 of the last
// 20 start with the best arm, and have 0.9 of the goodput of that arm alone.
func TestMeasureLossyPath(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		for _, loss := range []float64{0.02, 0.10} {
			w := newWorld(t, "far")
			w.setLoss(t, w.remotes[0], loss)
			s := newSeries(t, startTcpilot(t, w, settings{}), w.remotes[0], time.Second)
			s.run(t, w, 40)
			t.Log(s)
			best, alone := s.best()
			testenv.AtLeast(m, fmt.Sprintf("loss %g: goodput of the last 20, of the best arm's", loss), goodput(s.last(20))/alone, 0.9)
			testenv.AtLeast(m, fmt.Sprintf("loss %g: of the last 20 with the best arm", loss), starts(s.last(20), best), 18)
		}
	})
}

// TestMeasureCleanPath: learning must not cost goodput if no arm is better.
func TestMeasureCleanPath(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		w := newWorld(t, "far")
		s := newSeries(t, startTcpilot(t, w, settings{}), w.remotes[0], time.Second)
		s.run(t, w, 30)
		t.Log(s)
		_, alone := s.best()
		testenv.AtLeast(m, "goodput, of the best arm's", mean(goodputs(s.learned))/alone, 0.98)
	})
}

// TestMeasurePathThatFlips: clean, lossy, clean; the best arm within 15 connections of
// each change.
func TestMeasurePathThatFlips(t *testing.T) {
	const within, judged = 15, 10
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		w := newWorld(t, "far")
		p := startTcpilot(t, w, settings{})
		for i, loss := range []float64{0, 0.05, 0} {
			w.setLoss(t, w.remotes[0], loss)
			s := newSeries(t, p, w.remotes[0], length())
			s.many(t, w, within)
			s.run(t, w, judged)
			t.Logf("phase %d, loss %g: %s", i, loss, s)
			best, alone := s.best()
			last := s.since(within)
			testenv.AtLeast(m, fmt.Sprintf("phase %d, loss %g: goodput, of the best arm's", i, loss), goodput(last)/alone, 0.8)
			if loss > 0 {
				testenv.AtLeast(m, fmt.Sprintf("phase %d: of %d with the best arm", i, judged), starts(last, best), len(last)-2)
			}
		}
	})
}

// TestMeasureTurnToLoss: a path that was clean loses 5 %; of the next 20 connections at
// most 4 begin with an arm that is five times worse than the best.
func TestMeasureTurnToLoss(t *testing.T) {
	const clean, judged = 30, 20
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		w := newWorld(t, "far")
		p := startTcpilot(t, w, settings{})
		newSeries(t, p, w.remotes[0], time.Second).many(t, w, clean)
		w.setLoss(t, w.remotes[0], 0.05)
		s := newSeries(t, p, w.remotes[0], time.Second)
		s.run(t, w, judged)
		t.Log(s)
		_, most := s.best()
		bad := 0
		for _, arm := range arms {
			if mean(s.alone[arm]) < most/5 {
				bad += starts(s.since(0), arm) // connections in the hold-out are not choices
			}
		}
		testenv.AtMost(m, fmt.Sprintf("of %d, with an arm five times worse", judged), bad, 4)
	})
}
