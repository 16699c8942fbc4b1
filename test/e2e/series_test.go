package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/lab/load"
)

var arms = []string{"cubic", "bbr", "reno"}

// series is consecutive bulk connections to one remote that tcpilot tunes, interleaved
// with connections that tcpilot does not see and whose application chose an arm: these
// show the goodput of each arm alone, at the same time.
type series struct {
	tcpilot  *tcpilot
	to       string
	duration time.Duration
	pause    time.Duration // after each connection
	tail     *tail
	learned  []load.BulkResult
	alone    map[string][]float64 // goodput by arm
}

func newSeries(t testing.TB, p *tcpilot, r *remote, d time.Duration) *series {
	return &series{tcpilot: p, to: at(r.Addr4), duration: d, tail: p.follow(t), alone: map[string][]float64{}}
}

// run makes n connections that tcpilot tunes and, alternating, as many with the arms alone.
func (s *series) run(t testing.TB, w *world, n int) {
	t.Helper()
	for i := range n {
		s.one(t, w)
		s.oneAlone(t, w, arms[i%len(arms)])
	}
}

// many makes n connections that tcpilot tunes, and none with the arms alone.
func (s *series) many(t testing.TB, w *world, n int) {
	t.Helper()
	for range n {
		s.one(t, w)
	}
}

// until makes connections that tcpilot tunes until 8 of the last 10 start with an arm. It
// fails after a hundred; a TestMeasure test measures how many are needed.
func (s *series) until(t testing.TB, w *world, arm string) {
	t.Helper()
	for s.many(t, w, 10); starts(s.last(10), arm) < 8; s.one(t, w) {
		if len(s.learned) >= 100 {
			t.Fatalf("after %d connections they do not start with %s\n%s\npaths: %s", len(s.learned), arm, s, s.known(t))
		}
	}
	t.Logf("after %d connections they start with %s", len(s.learned), arm)
}

func (s *series) one(t testing.TB, w *world) {
	t.Helper()
	s.learned = append(s.learned, bulk(t, w.client, load.BulkSpec{To: s.to, Duration: s.duration}))
	time.Sleep(s.pause)
}

func (s *series) oneAlone(t testing.TB, w *world, arm string) {
	t.Helper()
	r := bulk(t, w.beside, load.BulkSpec{To: s.to, Duration: s.duration, CC: arm})
	s.alone[arm] = append(s.alone[arm], r.Goodput)
}

// known is what tcpilot has learned, for the test's log.
func (s *series) known(t testing.TB) []byte {
	t.Helper()
	out, err := s.tcpilot.run(t, "paths", "--json")
	must(t, err)
	return out
}

// best returns the arm with the highest mean goodput alone, and that goodput.
func (s *series) best() (arm string, goodput float64) {
	for _, a := range arms {
		if m := mean(s.alone[a]); arm == "" || m > goodput {
			arm, goodput = a, m
		}
	}
	return arm, goodput
}

// since returns the connections from the nth on that were not in the hold-out.
func (s *series) since(n int) (out []load.BulkResult) {
	for _, r := range s.learned[n:] {
		if !s.tail.holdOut(r) {
			out = append(out, r)
		}
	}
	return out
}

// last returns the latest n connections that were not in the hold-out.
func (s *series) last(n int) []load.BulkResult {
	all := s.since(0)
	return all[max(0, len(all)-n):]
}

// String lists the measured goodputs, for the test's log.
func (s *series) String() string {
	var b strings.Builder
	for _, a := range arms {
		fmt.Fprintf(&b, "%s alone %.1f Mbit/s; ", a, mean(s.alone[a])/1e6)
	}
	fmt.Fprintf(&b, "tcpilot:")
	for _, r := range s.learned {
		fmt.Fprintf(&b, " %s %.1f", r.CCStart, r.Goodput/1e6)
		if s.tail.holdOut(r) {
			fmt.Fprintf(&b, " (hold-out)")
		}
		b.WriteByte(',')
	}
	return strings.TrimSuffix(b.String(), ",")
}

func starts(rs []load.BulkResult, arm string) (n int) {
	for _, r := range rs {
		if r.CCStart == arm {
			n++
		}
	}
	return n
}

func goodput(rs []load.BulkResult) float64 { return mean(goodputs(rs)) }

func goodputs(rs []load.BulkResult) (g []float64) {
	for _, r := range rs {
		g = append(g, r.Goodput)
	}
	return g
}

func mean(x []float64) (m float64) {
	for _, v := range x {
		m += v / float64(len(x))
	}
	return m
}
