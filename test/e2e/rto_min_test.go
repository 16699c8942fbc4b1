package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
)

// adaptRTOMin learns for the first remote's network, and adapts RTO_MIN.
const adaptRTOMin = "  - {name: lab, match: {remote: [10.77.0.0/16]}, learn: {arms: [cubic], hold_out: 5%}, adapt: [rto_min]}\n"

// spurious counts by RTO_MIN in milliseconds.
type spurious map[uint32]*struct{ conns, sent, dsacks, rtos uint64 }

// bySample adds up what samples say, by the RTO_MIN of their connections.
func (f *tail) bySample() spurious {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := spurious{}
	for _, s := range f.samples {
		ms := uint32(s.RTOMin.Milliseconds())
		if out[ms] == nil {
			out[ms] = &struct{ conns, sent, dsacks, rtos uint64 }{}
		}
		n := out[ms]
		n.conns++
		n.sent += uint64(s.DataSegsOut)
		n.dsacks += uint64(s.DSACKs)
		n.rtos += uint64(s.RTOs)
	}
	return out
}

func (s spurious) String() (text string) {
	var all []uint32
	for ms := range s {
		all = append(all, ms)
	}
	slices.Sort(all)
	for _, ms := range all {
		n := s[ms]
		text += fmt.Sprintf("\n%4d ms: %5d samples, %7d segments, %4d arrived twice (%.3f %%), %d RTOs", ms, n.conns, n.sent, n.dsacks,
			100*float64(n.dsacks)/float64(max(1, n.sent)), n.rtos)
	}
	return text
}

// share of all segments that were retransmitted in vain by connections whose RTO_MIN was lowered;
// and of all that were, with the kernel's.
func (s spurious) share() (lowered, usual float64) {
	var sent, low uint64
	for ms, n := range s {
		sent += n.sent
		if ms < 200 {
			low += n.dsacks
		}
	}
	if n := s[200]; n != nil {
		usual = float64(n.dsacks) / float64(max(1, n.sent))
	}
	return float64(low) / float64(max(1, sent)), usual
}

// jittery is a link in both directions, and what changes in it, over and over.
type jittery struct {
	name          string
	forward, back link.Spec
	changes       []change
}

// change is a state of the forward direction, for a time.
type change struct {
	last    time.Duration
	rate    uint64        // bit/s
	stalled time.Duration // added to the delay
}

// jitteryLinks are those of the lab's scenarios of these names, without and with stalls: a
// station that scans other channels or sleeps, or a handover.
var jitteryLinks = []jittery{
	{"calm", link.Spec{Delay: ms / 2}, link.Spec{Delay: ms / 2}, nil},
	{"wifi-like", link.Spec{Delay: 10 * ms, Jitter: 4 * ms, Reorder: 0.001, Rate: 50e6, Queue: link.Queue{Packets: 256}, Bursts: link.Bursts{ToBad: 0.002, ToGood: 0.2, LossBad: 0.5}},
		link.Spec{Delay: 10 * ms, Jitter: 4 * ms}, []change{{time.Second, 50e6, 0}, {time.Second, 30e6, 0}, {time.Second, 15e6, 0}, {time.Second, 40e6, 0}}},
	{"wifi-like, short, with stalls", link.Spec{Delay: 2 * ms, Jitter: 2 * ms, Rate: 50e6, Queue: link.Queue{Packets: 256}},
		link.Spec{Delay: 2 * ms, Jitter: 2 * ms}, []change{{1700 * ms, 50e6, 0}, {80 * ms, 50e6, 80 * ms}, {2300 * ms, 50e6, 0}, {120 * ms, 50e6, 120 * ms}}},
	{"cellular-like", link.Spec{Delay: 30 * ms, Jitter: 10 * ms, Rate: 20e6, Queue: link.Queue{Packets: 1000}},
		link.Spec{Delay: 30 * ms, Jitter: 10 * ms, Rate: 10e6}, []change{{time.Second, 30e6, 0}, {time.Second, 8e6, 0}, {time.Second, 3e6, 0}, {2 * time.Second, 15e6, 0}}},
	{"cellular-like, with stalls", link.Spec{Delay: 25 * ms, Jitter: 5 * ms, Rate: 20e6, Queue: link.Queue{Packets: 1000}},
		link.Spec{Delay: 25 * ms, Jitter: 5 * ms, Rate: 10e6}, []change{{2900 * ms, 20e6, 0}, {150 * ms, 20e6, 150 * ms}, {4700 * ms, 20e6, 0}, {250 * ms, 20e6, 250 * ms}}},
}

// run changes a direction until the context ends.
func (j *jittery) run(ctx context.Context, d *link.Direction) error {
	for len(j.changes) > 0 {
		for _, c := range j.changes {
			s := j.forward
			s.Rate, s.Delay = c.rate, s.Delay+c.stalled
			if err := d.Set(s); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(c.last):
			}
		}
	}
	return nil
}

// askAll makes connections of all kinds to a remote at once: requests of one packet and of
// several, and bulk transfers that end after a while.
func askAll(t testing.TB, w *world, r *remote, d time.Duration) {
	t.Helper()
	end := time.Now().Add(d)
	var wg sync.WaitGroup
	account := uint64(1)
	loop := func(one func(account uint64) error) {
		first := account
		account += 1_000_000
		wg.Go(func() {
			for n := first; time.Now().Before(end); n++ {
				if err := one(n); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i, request := range []int{150, 150, 150, 1200, 1200, 5000, 30_000} {
		think := []time.Duration{0, 10 * ms, 100 * ms}[i%3]
		loop(func(account uint64) error {
			_, err := w.client.RPC(t.Context(), load.RPCSpec{To: at(r.Addr4), Account: account, Request: request, Reply: 100, Think: think, Duration: time.Second})
			return err
		})
	}
	loop(func(uint64) error {
		_, err := w.client.Bulk(t.Context(), load.BulkSpec{To: at(r.Addr4), Duration: 150 * ms})
		time.Sleep(500 * ms)
		return err
	})
	wg.Wait()
}

// TestMeasureSpuriousUnderJitter measures the documented claim: at most 0.1 % of segments.
func TestMeasureSpuriousUnderJitter(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		for _, j := range jitteryLinks {
			t.Run(j.name, func(t *testing.T) {
				w, p := newJitteryWorld(t, &j, adaptRTOMin)
				samples := p.follow(t)
				askAll(t, w, w.remotes[0], 40*time.Second)
				time.Sleep(time.Second) // for the last samples
				got := samples.bySample()
				t.Logf("%s%s\n%+v", j.name, got, rtoMinSetting(t, p, w.remotes[0]))
				lowered, usual := got.share()
				testenv.AtMost(m, j.name+": spurious with a lowered RTO_MIN, % of all segments", 100*lowered, 0.1)
				m.Holds(j.name+": spurious with the kernel's, % of its segments", "for comparison", true, fmt.Sprintf("%.3g", 100*usual))
			})
		}
	})
}

// newJitteryWorld is a world with one path of the given kind, and tcpilot, whose rules adapt RTO_MIN.
func newJitteryWorld(t *testing.T, j *jittery, rules string) (*world, *tcpilot) {
	t.Helper()
	w := newWorld(t, "far")
	must(t, w.remotes[0].way.Set(j.forward))
	must(t, w.back.Set(j.back))
	p := startTcpilot(t, w, settings{rules: rules})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- j.run(ctx, w.remotes[0].way) }()
	t.Cleanup(func() {
		stop()
		must(t, <-done)
	})
	return w, p
}

// rtoMinSetting is how tcpilot explains the RTO_MIN of connections to a remote; the zero Setting if
// it is the kernel's.
func rtoMinSetting(t testing.TB, p *tcpilot, r *remote) engine.Setting {
	t.Helper()
	for _, f := range ask[api.Explanation](t, p, "explain", r.Addr4.String()).Fields {
		if f.Field == "rto_min" && f.Applied {
			return f.Setting
		}
	}
	return engine.Setting{}
}

// newSteadyWorld is a path of 1 ms on which RTO_MIN is most microseconds or less by now. Its peers
// do not report spurious retransmissions: a machine that stalls may cause them here too, and RTO_MIN
// would be the kernel's for the next ten minutes. While the machine stalls, round-trip times vary.
func newSteadyWorld(t *testing.T, rules string, most uint64) (*world, *tcpilot) {
	t.Helper()
	w, p := newJitteryWorld(t, &jitteryLinks[0], rules)
	w.reportSpurious(t, w.remotes[0], "0")
	eventually(t, 3*time.Minute, fmt.Sprintf("RTO_MIN is %d us or less", most), func() error {
		askSome(t, w, w.remotes[0], 2*time.Second)
		if v := rtoMinSetting(t, p, w.remotes[0]).Value; v == 0 || v > most {
			e := ask[api.Explanation](t, p, "explain", w.remotes[0].Addr4.String())
			return fmt.Errorf("the fields are %+v, path %+v", e.Fields, e.Path)
		}
		return nil
	})
	return w, p
}

// reportSpurious sets whether a remote reports what it receives twice (DSACK): "0" or "1".
func (w *world) reportSpurious(t testing.TB, r *remote, on string) {
	t.Helper()
	must(t, r.Host.SetSysctl("net.ipv4.tcp_dsack", on))
}

// askSome sends requests of one packet, on several connections.
func askSome(t testing.TB, w *world, r *remote, d time.Duration) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range uint64(4) {
		wg.Go(func() {
			for end, n := time.Now().Add(d), uint64(1); time.Now().Before(end); n++ {
				if _, err := w.client.RPC(t.Context(), load.RPCSpec{To: at(r.Addr4), Account: i*1e6 + n, Request: 150, Reply: 100, Think: 5 * ms, Duration: 500 * ms}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// lostRequests sends requests of one packet over a path that loses some, and returns the median
// time of those that had to be sent again.
func lostRequests(t testing.TB, w *world, client *load.Agent) time.Duration {
	t.Helper()
	r := w.remotes[0]
	w.setLoss(t, r, 0.02)
	defer w.setLoss(t, r, 0)
	var slow []time.Duration
	n := uint64(1)
	for ; n <= 4 || len(slow) < 10 && n <= 20; n++ { // 6 of each 300 are lost, about
		got, err := client.RPC(t.Context(), load.RPCSpec{To: at(r.Addr4), Account: 1e9 + n, Request: 150, Reply: 100, Count: 300, Duration: 20 * time.Second})
		must(t, err)
		for _, e := range got.Kept {
			if e.Elapsed > 35*ms {
				slow = append(slow, e.Elapsed)
			}
		}
	}
	if len(slow) < 10 {
		t.Fatalf("%d of %d requests were lost, want about a fiftieth", len(slow), 300*(n-1))
	}
	slices.Sort(slow)
	return slow[len(slow)/2]
}

// On a path whose round-trip times vary little, a lost request is sent again after 100 ms or less.
// When the path begins to stall, RTO_MIN becomes longer.
func TestRootAdaptedRTOMin(t *testing.T) {
	t.Parallel()
	w, p := newSteadyWorld(t, adaptRTOMin, 100_000)
	eventually(t, 3*time.Minute, "lost requests take less than 150 ms", func() error {
		if took := lostRequests(t, w, w.client); took > 150*ms {
			return fmt.Errorf("they took %v, with %+v", took, rtoMinSetting(t, p, w.remotes[0]))
		}
		return nil
	})
	if took := lostRequests(t, w, w.beside); took < 190*ms {
		t.Errorf("lost requests took %v without tcpilot, want 190 ms or more", took)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	stalls := jittery{changes: []change{{150 * ms, 0, 0}, {150 * ms, 0, 90 * ms}}}
	go func() { done <- stalls.run(ctx, w.remotes[0].way) }()
	before := rtoMinSetting(t, p, w.remotes[0]).Value
	w.reportSpurious(t, w.remotes[0], "1")
	eventually(t, time.Minute, "RTO_MIN is longer than before", func() error {
		askSome(t, w, w.remotes[0], time.Second)
		if s := rtoMinSetting(t, p, w.remotes[0]); s.Value != 0 && s.Value <= before {
			return fmt.Errorf("it is %+v, path %+v", s, p.path(t, "10.77.1.0/24"))
		}
		return nil
	})
	stop()
	must(t, <-done)
}

// TestMeasureLostRequest measures the documented claim: at most 65 ms on a path of 1 ms.
func TestMeasureLostRequest(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		w, _ := newSteadyWorld(t, adaptRTOMin, 50_000)
		testenv.AtMost(m, "lost request, ms", float64(lostRequests(t, w, w.client).Microseconds())/1000, 65)
		testenv.AtLeast(m, "without tcpilot, ms", float64(lostRequests(t, w, w.beside).Microseconds())/1000, 190)
	})
}
