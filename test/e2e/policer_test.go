package e2e

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
)

const (
	// policed is the rate of the policer in bit/s, of whole frames. Its payload is 1448 of 1514
	// bytes.
	policed        = 50e6
	policedPayload = policed * 1448 / 1514
)

const paceRules = "  - {name: lab, match: {remote: [10.77.0.0/16]}, learn: {arms: [cubic], hold_out: 10%}, adapt: [max_pacing_rate]}\n"

// newPolicedPath is a world with a path of 20 ms and 1 Gbit/s, in which a policer with a small
// bucket drops what exceeds its rate, and with other hosts of the given names.
func newPolicedPath(t *testing.T, others ...string) *world {
	t.Helper()
	w := newWorld(t, append([]string{"far"}, others...)...)
	reshape(t, w.remotes[0].way, func(s *link.Spec) {
		*s = link.Spec{Delay: 20*time.Millisecond - delay, Rate: 1e9, Policer: link.Policer{Rate: policed, Burst: 100e3}}
	})
	return w
}

// sums of connections.
type sums struct {
	segments, retrans uint32
	goodputs          []float64 // bit/s
}

func (s *sums) add(r load.BulkResult) {
	s.segments += r.Segments
	s.retrans += r.Retrans
	s.goodputs = append(s.goodputs, r.Goodput)
}

func (s *sums) share() float64 { return float64(s.retrans) / float64(max(1, s.segments)) }

func (s *sums) String() string {
	return fmt.Sprintf("%d connections: %.2f%% of %d segments retransmitted, %.1f Mbit/s", len(s.goodputs), 100*s.share(), s.segments, mean(s.goodputs)/1e6)
}

// rateLimit is the limit that tcpilot found on the path, bytes/s.
func rateLimit(t *testing.T, p *tcpilot) (rate uint64, why string) {
	if s := p.path(t, "10.77.1.0/24"); s != nil {
		return s.RateLimit, s.RateLimitWhy
	}
	return 0, ""
}

// policerRun makes connections through a policer: until the limit is found, and then until so many more
// were paced, each followed by one without tcpilot.
func policerRun(t *testing.T, later int, long time.Duration) (found int, plain, paced sums) {
	t.Helper()
	w := newPolicedPath(t)
	r := w.remotes[0]
	p := startTcpilot(t, w, settings{rules: paceRules})
	samples := p.follow(t)
	one := func() (load.BulkResult, api.Sample) {
		c := bulk(t, w.client, load.BulkSpec{To: at(r.Addr4), Duration: long})
		return c, samples.await(t, of(c))
	}
	for n := 1; n <= 40 && found == 0; n++ {
		c, s := one()
		time.Sleep(200 * time.Millisecond) // for the decision that follows from its sample
		rate, why := rateLimit(t, p)
		t.Logf("%d: %.1f Mbit/s, paced at %.1f, %d of %d retransmitted, %.2f times the least round-trip time then, %v: %s",
			n, c.Goodput/1e6, float64(s.MaxPacingRate)*8/1e6, c.Retrans, c.Segments, float64(s.LossRTT)/float64(max(1, s.MinRTT)), s.Flags, why)
		if rate != 0 {
			found = n
		}
	}
	var heldOut sums
	for n := 0; found > 0 && len(paced.goodputs) < later && n < 10*later; n++ {
		c, s := one()
		time.Sleep(100 * time.Millisecond)
		_, why := rateLimit(t, p)
		t.Logf("later %d: %.1f Mbit/s, paced at %.1f, %d of %d retransmitted: %s", n, c.Goodput/1e6, float64(s.MaxPacingRate)*8/1e6, c.Retrans, c.Segments, why)
		if slices.Contains(s.Flags, "hold-out") {
			if heldOut.add(c); s.MaxPacingRate != 0 {
				t.Errorf("a connection of the hold-out is paced at %d bytes/s", s.MaxPacingRate)
			}
			continue
		}
		paced.add(c)
		plain.add(bulk(t, w.beside, load.BulkSpec{To: at(r.Addr4), Duration: long}))
	}
	if s := p.path(t, "10.77.1.0/24"); found > 0 && s.NetworkType != "policed" {
		t.Errorf("the type of network is %s: %+v", s.NetworkType, s.NetworkWhy)
	}
	t.Logf("found after %d connections; later: %s; hold-out: %s; without tcpilot: %s", found, &paced, &heldOut, &plain)
	t.Logf("%+v", ask[api.Explanation](t, p, "explain", r.Addr4.String()).Fields)
	return found, plain, paced
}

// A policer is found, and connections are paced just under its rate: they lose hardly anything and
// are not slower. Connections that a machine stalls are; TestMeasurePolicer has the narrow bound.
func TestRootPolicerIsFound(t *testing.T) {
	t.Parallel()
	found, plain, paced := policerRun(t, 6, time.Second)
	if found == 0 {
		t.Fatal("the rate limit was not found")
	}
	if len(paced.goodputs) == 0 || paced.share() > plain.share()/2 || median(paced.goodputs) < 0.8*median(plain.goodputs) {
		t.Errorf("later connections: %s, want fewer retransmits and as much goodput as %s", &paced, &plain)
	}
}

// TestMeasurePolicer measures the documented claim: found within 10 connections, 90 % fewer retransmits, 0.9 of
// the limit.
func TestMeasurePolicer(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		found, plain, paced := policerRun(t, 20, 2*time.Second)
		testenv.AtLeast(m, "found", found, 1)
		testenv.AtMost(m, "connections until it was found", found, 10)
		testenv.AtMost(m, "share of retransmits, of that without tcpilot", paced.share()/plain.share(), 0.1)
		testenv.AtLeast(m, "goodput, of the policer's payload", mean(paced.goodputs)/policedPayload, 0.9)
	})
}

// TestMeasurePolicerTogether: connections that begin together do not exceed the limit that was found.
func TestMeasurePolicerTogether(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		w := newPolicedPath(t)
		r := w.remotes[0]
		together := func(a *load.Agent) (s sums) {
			results := make([]load.BulkResult, 5)
			var wg sync.WaitGroup
			for i := range results {
				wg.Go(func() {
					var err error
					if results[i], err = a.Bulk(t.Context(), load.BulkSpec{To: at(r.Addr4), Duration: 4 * time.Second}); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for _, c := range results {
				s.add(c)
			}
			return s
		}
		before := together(w.beside)
		p := startTcpilot(t, w, settings{rules: paceRules})
		found := uint64(0)
		for n := 1; n <= 40 && found == 0; n++ {
			bulk(t, w.client, load.BulkSpec{To: at(r.Addr4), Duration: time.Second})
			time.Sleep(200 * time.Millisecond)
			found, _ = rateLimit(t, p)
		}
		paced := together(w.client)
		t.Logf("limit %.1f Mbit/s; without tcpilot: %s; with: %s", float64(found)*8/1e6, &before, &paced)
		testenv.AtMost(m, "share of retransmits of 5 that begin together, of that without tcpilot", paced.share()/before.share(), 0.25)
		testenv.AtLeast(m, "goodput of 5 that begin together, of the policer's payload", 5*mean(paced.goodputs)/policedPayload, 0.85)
	})
}

// TestRootPolicerIsFoundOnABusyHost: where most connections have no state, those that lose packets show the policer.
func TestRootPolicerIsFoundOnABusyHost(t *testing.T) {
	w := newPolicedPath(t, "near")
	r, near := w.remotes[0], w.remotes[1]
	p := startTcpilot(t, w, settings{rules: paceRules})
	samples := p.follow(t)
	rate, later, sparse := uint64(0), 0, 0
	for n := 1; n <= 40 && rate == 0; n++ {
		done := make(chan struct{})
		go func() {
			defer close(done)
			s := load.ChurnSpec{To: []string{at(near.Addr4)}, Workers: 400, Duration: 500 * time.Millisecond}
			if _, err := w.client.Churn(t.Context(), s); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(300 * time.Millisecond)
		c := bulk(t, w.client, load.BulkSpec{To: at(r.Addr4), Duration: 1500 * time.Millisecond})
		<-done
		time.Sleep(300 * time.Millisecond) // for its sample, and for the decision that follows
		s, shown := samples.find(of(c))    // none of one that lost less than four packets
		if slices.Contains(s.Flags, "adopted") {
			later++
		} else if shown && s.StandsFor > 1 && c.Retrans > 4 {
			sparse++
		}
		var why string
		rate, why = rateLimit(t, p)
		t.Logf("%d: %.1f Mbit/s, paced at %.1f, %d of %d retransmitted, %.2f times the least round-trip time then, %v: %s",
			n, c.Goodput/1e6, float64(s.MaxPacingRate)*8/1e6, c.Retrans, c.Segments, float64(s.LossRTT)/float64(max(1, s.MinRTT)), s.Flags, why)
	}
	d := map[string]uint64{}
	for _, n := range p.status(t).Counters.Decisions {
		d[n.Reason] = n.Count
	}
	t.Logf("%d connections were followed once they lost packets; %v", later, d)
	if sparse != 0 || d["not-followed"] == 0 || d["followed-lossy"] < uint64(later) { // how many were left out depends on the machine
		t.Errorf("%d connections were followed once they lost packets, %d stand for others; %v", later, sparse, d)
	}
	if limit := float64(rate) * 8; limit < 0.7*policedPayload || limit > 1.1*policedPayload {
		t.Errorf("the rate limit was found at %.1f Mbit/s, it is %.1f", limit/1e6, policedPayload/1e6)
	}
}

// TestMeasureNoFalsePolicer: on links that lose packets for other reasons, no rate limit is found,
// whatever connections have tried, and trials cost little.
func TestMeasureNoFalsePolicer(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		var links []*recordedLink
		var names []string
		for i := range recordedLinks {
			if l := &recordedLinks[i]; l.spec.Policer == (link.Policer{}) {
				links, names = append(links, l), append(names, fmt.Sprint("link", i))
			}
		}
		w := newWorld(t, names...)
		p := startTcpilot(t, w, settings{rules: "  - {name: lab, match: {remote: [10.77.0.0/16]}, learn: {arms: [cubic, bbr, reno]}, adapt: [max_pacing_rate]}\n"})
		samples := p.follow(t)
		for i, l := range links {
			r := w.remotes[i]
			must(t, r.way.Set(l.spec))
			paced, found := 0, ""
			long := 700 * time.Millisecond
			if l.seconds > 0 {
				long = time.Duration(3*l.seconds) * time.Second // long enough to lose some packets
			}
			for n := range 24 {
				if l.then != nil {
					reshape(t, r.way, func(s *link.Spec) { s.Rate = l.then[n%len(l.then)] })
				}
				spec := load.BulkSpec{To: at(r.Addr4), Duration: long}
				if n%6 == 5 {
					spec.CC = arms[n/6%len(arms)] // so that each is seen, whatever is learned
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					if l.beside {
						bulk(t, w.beside, load.BulkSpec{To: at(r.Addr4), Duration: long, CC: "cubic"})
					}
				}()
				c := bulk(t, w.client, spec)
				<-done
				if samples.await(t, of(c)).MaxPacingRate != 0 {
					paced++
				}
				time.Sleep(100 * time.Millisecond)
				if s := p.path(t, fmt.Sprintf("10.77.%d.0/24", i+1)); s != nil {
					if s.RateLimit != 0 {
						found = s.RateLimitWhy
					} else if s.RateLimitWhy != "" {
						t.Logf("%s: %s", l.name, s.RateLimitWhy)
					}
				}
			}
			t.Logf("%s: %d of 24 connections were paced; found %q", l.name, paced, found)
			m.Holds(l.name+": no rate limit is found", "none", found == "", fmt.Sprintf("%d paced", paced))
		}
	})
}
