package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
)

// Ports of live streams, each with a rule of its own.
const (
	realtimePort = 6001
	latencyPort  = 6002
	kernelPort   = 6003
)

// objectiveRules are rules that differ in the objective, and so in what it decides.
var objectiveRules = fmt.Sprintf(`  - {name: realtime, match: {remote_port: [%d]}, learn: {arms: [cubic], hold_out: 0, objective: realtime}}
  - {name: latency, match: {remote_port: [%d]}, learn: {arms: [cubic], hold_out: 0, objective: latency}}
  - {name: kernel, match: {remote_port: [%d]}, learn: {arms: [cubic], hold_out: 0}}
`, realtimePort, latencyPort, kernelPort)

// The objective decides TCP_NOTSENT_LOWAT, but not that of an application that chose its own.
func TestRootObjectiveDecidesNotsentLowat(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "far")
	startTcpilot(t, w, settings{rules: objectiveRules})
	for _, c := range []struct{ port, own, want int }{
		{realtimePort, 0, 16 << 10}, {latencyPort, 0, 64 << 10}, {kernelPort, 0, 0}, {realtimePort, 5000, 5000},
	} {
		if s, _ := w.live(t, w.remotes[0], c.port, 1500*time.Millisecond, c.own); s.Lowat != c.want {
			t.Errorf("port %d, application's own %d: TCP_NOTSENT_LOWAT is %d, want %d", c.port, c.own, s.Lowat, c.want)
		}
	}
}

// liveLinks are links over which live streams are compared. The second one has the queue of a slow access link, the
// third one a bandwidth-delay product of 1.9 MB.
var liveLinks = []struct {
	name    string
	forward link.Spec
	d       time.Duration
}{
	{"20 Mbit/s, 20 ms, queue of a BDP", link.Spec{Delay: 15 * ms, Rate: 20e6, Queue: link.Queue{Bytes: 50 * kB}}, 6 * time.Second},
	{"20 Mbit/s, 20 ms, queue of 1000 packets", link.Spec{Delay: 15 * ms, Rate: 20e6, Queue: link.Queue{Packets: 1000}}, 8 * time.Second},
	{"100 Mbit/s, 150 ms, queue of a BDP", link.Spec{Delay: 145 * ms, Rate: 100e6, Queue: link.Queue{Bytes: 1900 * kB}}, 10 * time.Second},
}

// TestMeasureNotsentLowat compares values of TCP_NOTSENT_LOWAT for live streams: the delay from write to arrival,
// memory of the send queue, context switches and throughput. The memory that the kernel allows is 16 MiB, as on hosts that
// serve long paths.
func TestMeasureNotsentLowat(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		for _, c := range liveLinks {
			w := newWorld(t, "far")
			must(t, w.star.Client.SetSysctl("net.ipv4.tcp_wmem", "4096 16384 16777216"))
			must(t, w.star.Client.SetSysctl("net.ipv4.tcp_rmem", "4096 131072 33554432"))
			must(t, w.remotes[0].Host.SetSysctl("net.ipv4.tcp_rmem", "4096 131072 33554432"))
			must(t, w.remotes[0].way.Set(c.forward))
			var baseline received
			for _, kib := range []int{0, 16, 64, 128} {
				s, r := w.live(t, w.remotes[0], kernelPort, c.d, kib<<10)
				what := fmt.Sprintf("%s, %d KiB", c.name, kib)
				m.Holds(what+": p50, p99; goodput; send queue mean, greatest; context switches a second", "", true, fmt.Sprintf("%v,%v;%.1fMbit/s;%.0fkB,%.0fkB;%.0f",
					r.P50.Round(ms/10), r.P99.Round(ms/10), r.Goodput/1e6, s.Queued/1000, s.MostQueued/1000, float64(s.Switches)/c.d.Seconds()))
				if kib == 0 {
					baseline = r
					continue
				}
				testenv.AtMost(m, what+": p50 of the delay from write to arrival, of the kernel's", r.P50.Seconds()/baseline.P50.Seconds(), 0.9)
				testenv.AtLeast(m, what+": goodput, of the kernel's", r.Goodput/baseline.Goodput, 0.97)
			}
		}
	})
}

// TestMeasureBoundOfRTOMin compares the bound of RTO_MIN that objective realtime has with that of the
// others: what a lost request costs, and what is retransmitted in vain.
func TestMeasureBoundOfRTOMin(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		lost := map[string]time.Duration{}
		for _, c := range []struct {
			objective string
			least     uint64 // microseconds
		}{{"realtime", 25_000}, {"latency", 50_000}} {
			w, p := newSteadyWorld(t, strings.Replace(adaptRTOMin, "hold_out: 5%", "hold_out: 0, objective: "+c.objective, 1), c.least)
			lost[c.objective] = lostRequests(t, w, w.client)
			samples := p.follow(t)
			askAll(t, w, w.remotes[0], 15*time.Second)
			time.Sleep(time.Second)
			got := samples.bySample()
			lowered, _ := got.share()
			t.Logf("%s: lost request %v%s", c.objective, lost[c.objective], got)
			testenv.AtMost(m, c.objective+": spurious with a lowered RTO_MIN, % of all segments", 100*lowered, 0.1)
			m.Holds(c.objective+": a lost request, ms", "", true, fmt.Sprintf("%.1f", lost[c.objective].Seconds()*1000))
		}
		testenv.AtMost(m, "a lost request with objective realtime, of that with latency", lost["realtime"].Seconds()/lost["latency"].Seconds(), 0.8)
	})
}

// TestMeasureBoundOfInitCwnd compares bounds of the initial window: requests on a connection of their own
// beside objects, each on a new connection, that begin with adapted windows.
func TestMeasureBoundOfInitCwnd(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		for _, c := range []struct {
			name string
			link link.Spec
			size uint32
		}{
			{"100 Mbit/s, 50 ms", link.Spec{Delay: 45 * ms, Rate: 100e6, Queue: link.Queue{Bytes: 625 * kB}}, 200e3},
			{"20 Mbit/s, 20 ms", link.Spec{Delay: 15 * ms, Rate: 20e6, Queue: link.Queue{Bytes: 200 * kB}}, 50e3},
		} {
			w := newWorld(t, "far")
			must(t, w.remotes[0].way.Set(c.link))
			rules, to := "", map[int]string{}
			for _, bound := range []int{16, 32, 64} {
				at, err := w.client.Listen(t.Context(), load.ListenSpec{Address: netip.AddrPortFrom(w.star.Access.Addr4.Addr(), 0).String()})
				must(t, err)
				to[bound] = at.String()
				rules += fmt.Sprintf("  - {name: bound%d, match: {local_port: [%d]}, learn: {arms: [cubic], hold_out: 0, objective: latency}, adapt: [init_cwnd], adapt_bounds: {init_cwnd: %d}}\n", bound, at.Port(), bound)
			}
			p := startTcpilot(t, w, settings{rules: rules, interval: "30s"})
			samples := p.follow(t)
			s := &served{world: w, account: 1, samples: samples}
			for _, bound := range []int{64, 16, 32} {
				s.to = to[bound]
				s.objects(t, 30, c.size, 2)
				begin := time.Now()
				done := make(chan []time.Duration)
				go func() { done <- s.objects(t, 60, c.size, 2) }()
				rpc, err := w.remotes[0].agent.RPC(t.Context(), load.RPCSpec{To: s.to, Account: 1e9 + uint64(bound), Request: 150, Reply: 1000, Think: 3 * ms, Duration: 6 * time.Second})
				must(t, err)
				took := <-done
				raised, _, _ := firstWindows(s.begun(t, begin, 50))
				var asked []time.Duration
				for _, e := range rpc.Kept {
					asked = append(asked, e.Elapsed)
				}
				slices.Sort(asked)
				slices.Sort(took)
				m.Holds(fmt.Sprintf("%s, at most %d packets: requests p50, p99; objects p50, p99; windows raised", c.name, bound), "", true,
					fmt.Sprintf("%v,%v,%v,%v,%d", asked[len(asked)/2].Round(ms/10), asked[len(asked)*99/100].Round(ms/10), took[len(took)/2].Round(ms/10), took[len(took)*99/100].Round(ms/10), raised))
			}
		}
	})
}

// TestMeasureArmsOfLatency compares what objective latency learns from all arms with what it learns from those that do not
// fill the queue by design: connections of a second, one after the other, over a link with a queue of 1000 packets.
func TestMeasureArmsOfLatency(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		w := newWorld(t, "first", "second")
		p := startTcpilot(t, w, settings{rules: `  - {name: all, match: {remote: [10.77.1.0/24]}, learn: {objective: latency}}
  - {name: some, match: {remote: [10.77.2.0/24]}, learn: {objective: latency, arms: [cubic, tcpilot_bbr3]}}
`})
		samples := p.follow(t)
		var wg sync.WaitGroup
		for _, r := range w.remotes {
			must(t, r.way.Set(link.Spec{Delay: 15 * ms, Rate: 20e6, Queue: link.Queue{Packets: 1000}}))
			wg.Go(func() {
				for end := time.Now().Add(70 * time.Second); time.Now().Before(end); {
					bulk(t, w.client, load.BulkSpec{To: at(r.Addr4), Duration: time.Second})
				}
			})
		}
		wg.Wait()
		time.Sleep(2 * time.Second)
		for i, r := range w.remotes {
			var stretch, n, bbr3 float64
			samples.mu.Lock()
			for _, s := range samples.samples {
				if s.Remote.Addr() == r.Addr4 && s.Kind == "close" && s.MinRTT > 0 {
					stretch, n = stretch+float64(s.SRTT)/float64(s.MinRTT), n+1
					if s.CC == "tcpilot_bbr3" {
						bbr3++
					}
				}
			}
			samples.mu.Unlock()
			m.Holds([]string{"all arms", "without those that fill the queue"}[i]+": srtt over min RTT; share of tcpilot_bbr3; connections", "", true, fmt.Sprintf("%.2f;%.2f;%.0f", stretch/n, bbr3/n, n))
		}
	})
}
