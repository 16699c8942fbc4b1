package e2e

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
)

// settled is how long after connections have begun or ended the sum is at the limit again:
// an interval of the division, and some round trips.
const settled = 500 * time.Millisecond

// limitPhase is a time in which the same connections run.
type limitPhase struct {
	conns int
	sum   float64 // bit/s
	usual float64 // bit/s, as usualRate says: without the times in which the machine stalled
	least float64 // rate of the slowest, as a part of the fair share
}

// newLimitWorld has a path of 10 ms and no limit but the CPU.
func newLimitWorld(t *testing.T) *world {
	t.Helper()
	w := newPlainWorld(t, "far")
	r := w.remotes[0]
	r.way = shape(t, r.Near, r.Far, link.Spec{Delay: 10 * time.Millisecond})
	return w
}

// limitRun makes n connections begin together under a limit. After 2 s half as many begin, and end
// after 2 s more.
func limitRun(t *testing.T, w *world, n int) (phases [3]limitPhase) {
	t.Helper()
	const phase = 2 * time.Second
	more := (n + 1) / 2
	results := make([]load.BulkResult, n+more)
	var wg sync.WaitGroup
	begin := time.Now()
	for i := range results {
		wg.Go(func() {
			spec := load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: 3 * phase, Sample: 20 * time.Millisecond}
			if i >= n {
				time.Sleep(time.Until(begin.Add(phase)))
				spec.Duration, spec.Abort = phase, true // what a closed connection has in its buffer would still be sent
			}
			var err error
			if results[i], err = w.client.Bulk(t.Context(), spec); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	start := results[0].Begin
	for i := range phases {
		p := &phases[i]
		from, to := start+load.Time(time.Duration(i)*phase+settled), start+load.Time(time.Duration(i+1)*phase-100*time.Millisecond)
		p.least = math.Inf(1)
		running := results[:n]
		if i == 1 {
			running = results
		}
		for j := range running {
			rate := rateOf(running[j:j+1], from, to)
			p.conns, p.sum, p.least = p.conns+1, p.sum+rate, min(p.least, rate)
		}
		p.least /= p.sum / float64(p.conns)
		p.usual = usualRate(running, from, to)
	}
	return phases
}

// rateOf is the rate in which bytes of connections were acknowledged between two times, bit/s.
func rateOf(conns []load.BulkResult, from, to load.Time) (rate float64) {
	for _, c := range conns {
		rate += 8 * (ackedAt(c.Points, to) - ackedAt(c.Points, from)) / to.Sub(from).Seconds()
	}
	return rate
}

// usualRate is the median of the rate over slices of 100 ms, bit/s; NaN: there are fewer than five. A slice does not
// count if the sender did not run for half of it: connections have no more than what waits in their buffers then.
func usualRate(conns []load.BulkResult, from, to load.Time) float64 {
	const slice, least = load.Time(100 * time.Millisecond), 5
	var rates []float64
	for ; from+slice <= to; from += slice {
		if ran(conns, from, from+slice) {
			rates = append(rates, rateOf(conns, from, from+slice))
		}
	}
	if len(rates) < least {
		return math.NaN()
	}
	return median(rates)
}

// ran reports whether no two samples of a connection in this time are further apart than half of it.
func ran(conns []load.BulkResult, from, to load.Time) bool {
	for _, c := range conns {
		for i := 1; i < len(c.Points); i++ {
			if a, b := c.Points[i-1].At, c.Points[i].At; b > from && a < to && b-a > (to-from)/2 {
				return false
			}
		}
	}
	return true
}

// ackedAt is how many bytes of a connection were acknowledged at a time.
func ackedAt(points []load.Point, at load.Time) float64 {
	for i := 1; i < len(points); i++ {
		a, b := points[i-1], points[i]
		if b.At >= at {
			part := max(0, float64(at-a.At)/float64(b.At-a.At))
			return float64(a.BytesAcked) + part*float64(b.BytesAcked-a.BytesAcked)
		}
	}
	if len(points) == 0 {
		return 0
	}
	return float64(points[len(points)-1].BytesAcked)
}

func limitRules(mbits int) string {
	return fmt.Sprintf("  - {name: lab, match: {remote: [10.77.0.0/16]}, rate_limit: {total: %dMbit/s}}\n", mbits)
}

// Connections that come and go do not exceed the limit together, and none of them starves. Without a
// division, their sum would be from 0.5 to 2 times the limit. TestMeasureRateLimit has the narrow bounds.
func TestRootRateLimit(t *testing.T) {
	t.Parallel()
	w := newLimitWorld(t)
	startTcpilot(t, w, settings{rules: limitRules(50)})
	for _, n := range []int{1, 5} {
		phases := limitRun(t, w, n)
		for tries := 1; slices.ContainsFunc(phases[:], func(p limitPhase) bool { return math.IsNaN(p.usual) }); tries++ {
			if tries == 5 {
				t.Fatalf("%d connections: five times the sender stood still for most of a phase: this machine is too busy", n)
			}
			phases = limitRun(t, w, n)
		}
		for i, p := range phases {
			t.Logf("%d connections, phase %d: %+v", n, i+1, p)
			if p.usual < 0.7*50e6 || p.usual > 1.3*50e6 || p.least < 0.25 {
				t.Errorf("%d connections, phase %d: %.1f Mbit/s, and the slowest had %.2f of its fair share", n, i+1, p.usual/1e6, p.least)
			}
		}
	}
}

// A limit that is added, changed and removed by a reload is in force at once for running connections,
// and is undone when the daemon is stopped.
func TestRootRateLimitOfRunningConnections(t *testing.T) {
	t.Parallel()
	w := newLimitWorld(t)
	// So that little is in flight when a limit begins: at several Gbit/s, a busy host delivers it for seconds.
	reshape(t, w.remotes[0].way, func(s *link.Spec) { s.Rate, s.Queue = 300e6, link.Queue{Bytes: 400_000} })
	p := startTcpilot(t, w, settings{rules: "  - {name: lab, match: {remote: [10.77.0.0/16]}, set: {nodelay: true}}\n"})
	conns := make([]load.BulkResult, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var err error
		if conns[0], err = w.client.Bulk(t.Context(), load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: 30 * time.Second, Sample: 20 * time.Millisecond, Abort: true}); err != nil {
			t.Error(err)
		}
	}()
	const settle, long = 500 * time.Millisecond, 2 * time.Second // after a change, and how long the rate is measured then
	time.Sleep(time.Second)                                      // without a limit
	reload := func(rules string) (done load.Time) {
		p.configure(t, settings{rules: rules})
		_, err := p.run(t, "reload")
		must(t, err)
		return load.Now()
	}
	limited := reload(limitRules(50))
	time.Sleep(settle + long)
	eventually(t, 10*time.Second, "the limit as status and explain show it", func() error { // they show the last interval
		if l := p.status(t).Counters.Limits; len(l) != 1 || l[0].Total != 50e6/8 || l[0].Connections != 1 || l[0].Active != 1 || l[0].Measured > 1.1*50e6/8 || l[0].Measured < 0.5*50e6/8 {
			return fmt.Errorf("the limit is %+v", l)
		}
		if e := ask[api.Explanation](t, p, "explain", w.remotes[0].Addr4.String()); e.RateLimit == nil || e.RateLimit.New < 50e6/8/2-1 || e.RateLimit.New > 50e6/8/2+1 {
			return fmt.Errorf("one more connection would get %+v, want half of the limit", e.RateLimit)
		}
		return nil
	})
	raised := reload(limitRules(100))
	time.Sleep(settle + long)
	p.stop(t)
	stopped := load.Now()
	<-done
	rate := func(change load.Time) float64 {
		from := change + load.Time(settle)
		rate := usualRate(conns, from, from+load.Time(long))
		if math.IsNaN(rate) {
			t.Fatal("the sender stood still for most of the time: this machine is too busy")
		}
		return rate
	}
	points := conns[0].Points
	if end := points[len(points)-1].At; end < stopped+load.Time(settle+long) {
		t.Fatalf("the connection ended %v after tcpilot was stopped: this machine is too slow", time.Duration(end-stopped))
	}
	t.Logf("%.0f, %.0f and %.0f Mbit/s", rate(limited)/1e6, rate(raised)/1e6, rate(stopped)/1e6)
	if r := rate(limited); r > 1.05*50e6 {
		t.Errorf("%.0f Mbit/s, want at most 50", r/1e6)
	}
	if r := rate(raised); r > 1.05*100e6 || r < 55e6 {
		t.Errorf("%.0f Mbit/s, want up to 100", r/1e6)
	}
	if r := rate(stopped); r < 110e6 {
		t.Errorf("%.0f Mbit/s once tcpilot is stopped: the limit is still in force", r/1e6)
	}
}

// TestMeasureRateLimit measures the documented claim: the sum is within 5 % of the limit half a second after
// connections have begun or ended, and nobody has less than half of the fair share.
func TestMeasureRateLimit(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		for _, mbits := range []int{50, 500} {
			w := newLimitWorld(t)
			startTcpilot(t, w, settings{rules: limitRules(mbits)})
			for _, n := range []int{1, 5, 20, 50} {
				for i, p := range limitRun(t, w, n) {
					what := fmt.Sprintf("%d Mbit/s, %d connections", mbits, p.conns)
					if i == 2 {
						what += " after others ended"
					}
					part := p.sum / 1e6 / float64(mbits)
					m.Holds(what+": sum, of the limit", "0.95 to 1.05", part >= 0.95 && part <= 1.05, fmt.Sprintf("%.3f", part))
					testenv.AtLeast(m, what+": the slowest, of the fair share", p.least, 0.5)
				}
			}
		}
	})
}
