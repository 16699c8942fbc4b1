package workload

import (
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/measure"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// newFleet has agents in a network, each host's in a cgroup of its own. All must
// close without error.
func newFleet(t testing.TB, g topology.Graph) *Fleet {
	t.Helper()
	testenv.Root(t)
	n, err := topology.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close network: %v", err)
		}
	})
	l, err := topology.Build(n, g)
	if err != nil {
		t.Fatal(err)
	}
	cgroups := map[string]*topology.Cgroup{}
	for _, h := range slices.Concat(l.Senders, l.Receivers) {
		if cgroups[h.Name], err = n.Cgroup(h.Name); err != nil {
			t.Fatal(err)
		}
	}
	f, err := Start(t.Context(), l, func(host string) load.Placer { return cgroups[host] })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() }) // a test may have killed an agent
	return f
}

// run makes a round that must be free of errors.
func run(t *testing.T, f *Fleet, parts ...Spec) (r measure.Result) {
	t.Helper()
	r, err := f.Run(t.Context(), parts)
	if err != nil {
		t.Fatal(err)
	}
	if r.Errors > 0 {
		t.Fatalf("%d errors, first %s", r.Errors, r.FirstError)
	}
	check(t, &r)
	return r
}

// check fails the test if something contradicts itself.
func check(t *testing.T, r *measure.Result) {
	t.Helper()
	for i, c := range r.Connections {
		if c.ID != i || i > 0 && c.Start < r.Connections[i-1].Start {
			t.Fatalf("connection %d has number %d and start %s, the one before %s", i, c.ID, c.Start, r.Connections[max(i, 1)-1].Start)
		}
		if c.Elapsed <= 0 || c.Bytes == 0 || !c.Delivered || c.Start+c.Elapsed > r.Elapsed {
			t.Fatalf("in %s of traffic: %+v", r.Elapsed, c)
		}
		if c.From == c.To {
			t.Fatalf("to itself: %+v", c)
		}
		if c.Retrans > c.Segments {
			t.Fatalf("on a clean wire: %+v", c)
		}
	}
	for _, q := range r.Requests {
		if c := r.Connections[q.Conn]; q.Elapsed <= 0 || q.Bytes == 0 || q.Start < c.Start || q.Group != c.Group {
			t.Fatalf("%+v of %+v", q, c)
		}
	}
	last := map[int]measure.Point{}
	for _, p := range r.Points {
		before := last[p.Conn]
		if p.At <= before.At || p.Retrans < before.Retrans || p.Goodput < 0 {
			t.Fatalf("%+v after %+v", p, before)
		}
		last[p.Conn] = p
	}
}

// On a clean wire next to nothing is sent again, unless the machine stalls.
func TestMeasureCleanWire(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		f := newFleet(t, topology.Dumbbell(2, 2))
		r := run(t, f, Spec{Kind: Bulk, Duration: 300 * time.Millisecond, Streams: 2})
		var again, sent float64
		for _, c := range r.Connections {
			again, sent = again+float64(c.Retrans), sent+float64(c.Segments)
		}
		testenv.AtMost(m, "share sent again", again/sent, 0.02)
	})
}

// kernel says whether the record has what only the sending kernel knows.
func kernel(c measure.Connection) bool {
	return c.CC != "" && c.Segments > 0 && c.MinRTT > 0 && c.SRTT > 0 && c.MeanRTT > 0
}

// families runs a test over IPv4 and IPv6.
func families(t *testing.T, f func(t *testing.T, ipv6 bool)) {
	t.Run("IPv4", func(t *testing.T) { f(t, false) })
	t.Run("IPv6", func(t *testing.T) { f(t, true) })
}

func TestRootBulk(t *testing.T) {
	f := newFleet(t, topology.Dumbbell(2, 2))
	families(t, func(t *testing.T, ipv6 bool) {
		r := run(t, f, Spec{Name: "b", Kind: Bulk, Duration: 300 * time.Millisecond, Count: 2, Streams: 2, CC: "reno",
			Sample: 20 * time.Millisecond, IPv6: ipv6, Start: 100 * time.Millisecond})
		if len(r.Connections) != 2*2*2 {
			t.Errorf("%d connections, want 2 senders' with 2 sequences of 2", len(r.Connections))
		}
		hosts := map[string]int{}
		for _, c := range r.Connections {
			hosts[c.From+">"+c.To]++
			if !kernel(c) || c.CC != "reno" || c.CCEnd != "" || c.Group != "b" || c.Start < 100*time.Millisecond {
				t.Errorf("record %+v", c)
			}
			if c.Elapsed < 300*time.Millisecond {
				t.Errorf("sent for %s", c.Elapsed)
			}
		}
		if len(hosts) != 2 {
			t.Errorf("pairs %v, want each sender with a receiver of its own", hosts)
		}
		if len(r.Points) < 8*5 {
			t.Errorf("%d points of 8 connections of 300 ms, one each 20 ms", len(r.Points))
		}
		var bytes uint64
		for _, c := range r.Connections {
			bytes += c.Bytes
		}
		if want := (measure.Total{Connections: 8, Bytes: bytes}); r.Totals["b"] != want {
			t.Errorf("totals %+v, want %+v", r.Totals, want)
		}
		for _, h := range slices.Concat(f.layout.Senders, f.layout.Receivers) {
			if c := r.CPU[h.Name]; c.User+c.System == 0 {
				t.Errorf("%s spent nothing", h.Name)
			}
		}
	})
}

func TestRootRPC(t *testing.T) {
	f := newFleet(t, topology.Dumbbell(1, 1))
	sender, receiver := f.layout.Senders[0].Name, f.layout.Receivers[0].Name
	families(t, func(t *testing.T, ipv6 bool) {
		for name, s := range map[string]Spec{
			"up":     {Request: 1_000_000, Reply: 100, From: sender, To: receiver},
			"down":   {Request: 100, Reply: 300_000, From: receiver, To: sender},
			"small":  {},
			"timed":  {Duration: 200 * time.Millisecond, Think: time.Millisecond},
			"closes": {Count: 3, Think: 30 * time.Millisecond, Sample: 5 * time.Millisecond},
		} {
			t.Run(name, func(t *testing.T) {
				s.Name, s.Kind, s.IPv6, s.CC, s.Streams = name, RPC, ipv6, "reno", 2
				if s.Duration == 0 && s.Count == 0 {
					s.Count = 10
				}
				r := run(t, f, s)
				if len(r.Connections) != 2 || s.Count > 0 && len(r.Requests) != 2*s.Count || len(r.Requests) < 2 {
					t.Fatalf("%d connections, %d requests", len(r.Connections), len(r.Requests))
				}
				for _, c := range r.Connections {
					n := uint64(len(r.Requests)) / 2
					if !kernel(c) || c.CC != "reno" || s.Count > 0 && c.Bytes != n*uint64(max(s.request(), s.reply())) {
						t.Errorf("after %d requests each: %+v", n, c)
					}
					if up := s.request() > s.reply(); s.From == "" && (c.From == sender) != up || s.From != "" && c.From != sender {
						t.Errorf("data of %d and %d bytes went from %s to %s", s.request(), s.reply(), c.From, c.To)
					}
				}
				if s.Sample > 0 && len(r.Points) == 0 {
					t.Error("no points")
				}
				if r.Totals[name].Requests != uint64(len(r.Requests)) {
					t.Errorf("totals %+v of %d requests", r.Totals, len(r.Requests))
				}
			})
		}
	})
}

func TestRootFlows(t *testing.T) {
	f := newFleet(t, topology.Dumbbell(1, 1))
	pareto := Size{Alpha: 0.8, Scale: 2000, Max: 104_000}
	families(t, func(t *testing.T, ipv6 bool) {
		for name, s := range map[string]Spec{
			"closed":  {Count: 40, Size: pareto, Concurrency: 5, Gap: 2 * time.Millisecond},
			"poisson": {Count: 40, Size: pareto, Rate: 400},
			"trace":   {Trace: []Arrival{{0, 1}, {50 * time.Millisecond, 5_000_000}, {50 * time.Millisecond, 100}}},
			"timed":   {Duration: 100 * time.Millisecond, Size: Size{Fixed: 10_000}, Concurrency: 2},
			"large":   {Count: 1, Size: Size{Fixed: 300_000_000}, Sample: 2 * time.Millisecond},
		} {
			t.Run(name, func(t *testing.T) {
				s.Name, s.Kind, s.IPv6, s.CC, s.Seed = name, Flows, ipv6, "cubic", 7
				r := run(t, f, s)
				flows := s.flows(0)
				if !s.endless() && len(r.Requests) != len(flows) || len(r.Requests) != len(r.Connections) || len(r.Requests) < 1 {
					t.Fatalf("%d requests on %d connections, want %d", len(r.Requests), len(r.Connections), len(flows))
				}
				for i, c := range r.Connections {
					q, want := r.Requests[i], uint64(flows[i%len(flows)].Size)
					if c.Bytes != want || q.Bytes != want || q.Elapsed != c.Elapsed {
						t.Errorf("flow %d of %d bytes: %+v, %+v", i, want, c, q)
					}
					if !kernel(c) || c.CC != "cubic" || c.From != f.layout.Senders[0].Name {
						t.Errorf("record %+v", c)
					}
					if i > 0 && c.Start-r.Connections[i-1].Start < s.Gap {
						t.Errorf("flow %d began %s after the one before", i, c.Start-r.Connections[i-1].Start)
					}
					if s.openLoop() && c.Start < flows[i].At {
						t.Errorf("flow %d of %s began at %s", i, flows[i].At, c.Start)
					}
				}
				if s.Sample > 0 && len(r.Points) == 0 {
					t.Error("no points")
				}
			})
		}
	})
}

func TestRootChurn(t *testing.T) {
	f := newFleet(t, topology.Dumbbell(1, 1))
	if err := f.layout.Spread(f.layout.Receivers[0]); err != nil {
		t.Fatal(err)
	}
	families(t, func(t *testing.T, ipv6 bool) {
		for name, s := range map[string]Spec{
			"count":   {Count: 200, Streams: 4},
			"rate":    {Duration: 300 * time.Millisecond, Rate: 300, Streams: 4},
			"paths":   {Count: 300, Streams: 4, Paths: 300},
			"uploads": {Count: 20, Request: 100_000},
		} {
			t.Run(name, func(t *testing.T) {
				s.Name, s.Kind, s.IPv6, s.CC = name, Churn, ipv6, "reno"
				r := run(t, f, s)
				want := s.Count
				if want == 0 {
					want = 90
				}
				if len(r.Connections) != want || len(r.Requests) != want || r.Totals[name].Connections != uint64(want) {
					t.Fatalf("%d connections, %d requests, totals %+v, want %d", len(r.Connections), len(r.Requests), r.Totals, want)
				}
				if sum := r.Totals[name]; sum.End <= sum.Begin || sum.End > r.Elapsed {
					t.Errorf("of %s of traffic: totals %+v", r.Elapsed, sum)
				}
				for _, c := range r.Connections {
					if !kernel(c) || c.CC != "reno" || c.Bytes != uint64(max(s.request(), s.reply())) {
						t.Fatalf("record %+v", c)
					}
				}
			})
		}
	})
}

func TestRootMux(t *testing.T) {
	f := newFleet(t, topology.Dumbbell(1, 1))
	families(t, func(t *testing.T, ipv6 bool) {
		s := Spec{Name: "m", Kind: Mux, Count: 4, Concurrency: 20, Streams: 2, Think: 10 * time.Millisecond, CC: "reno",
			Size: Size{Alpha: 1.2, Scale: 1000, Max: 1_000_000}, IPv6: ipv6, Sample: 5 * time.Millisecond}
		r := run(t, f, s)
		if len(r.Connections) != 2 || len(r.Requests) != 2*4*20 || len(r.Points) == 0 {
			t.Fatalf("%d connections, %d requests, %d points", len(r.Connections), len(r.Requests), len(r.Points))
		}
		for _, c := range r.Connections {
			var bytes uint64
			for _, q := range r.Requests {
				if q.Conn == c.ID {
					bytes += q.Bytes
				}
			}
			if !kernel(c) || c.CC != "reno" || c.Bytes != bytes || c.From != f.layout.Senders[0].Name {
				t.Errorf("%d bytes in requests: %+v", bytes, c)
			}
		}
	})
}

// Equal replies that share a connection end together.
func TestRootMuxInterleaves(t *testing.T) {
	f := newFleet(t, topology.Dumbbell(1, 1))
	r := run(t, f, Spec{Kind: Mux, Concurrency: 4, Size: Size{Fixed: 300_000_000}})
	first, last := r.Requests[0].Elapsed, r.Requests[3].Elapsed
	if first < last/2 { // one after the other it would be a quarter
		t.Errorf("the first reply took %s, the last %s", first, last)
	}
}

func TestRootPartsRunTogether(t *testing.T) {
	f := newFleet(t, topology.Incast(3))
	r := run(t, f,
		Spec{Name: "one MB", Kind: RPC, Request: 1_000_000, Streams: 4, Duration: 300 * time.Millisecond},
		Spec{Name: "10 kB", Kind: RPC, Request: 10_000, Streams: 2, Duration: 300 * time.Millisecond},
		Spec{Name: "stream", Kind: Bulk, Duration: 300 * time.Millisecond},
		Spec{Name: "flows", Kind: Flows, Duration: 300 * time.Millisecond, Size: Size{Fixed: 1000}},
	)
	groups := map[string]int{}
	for _, c := range r.Connections {
		groups[c.Group]++
	}
	if groups["one MB"] != 12 || groups["10 kB"] != 6 || groups["stream"] != 3 || groups["flows"] < 3 {
		t.Errorf("connections by group: %v", groups)
	}
	if r.Elapsed > 20*time.Second {
		t.Errorf("parts of 300 ms took %s", r.Elapsed)
	}
}

// Parts with the same end stop together, whatever their connections would take.
func TestRootPartsEndTogether(t *testing.T) {
	f := newFleet(t, topology.Dumbbell(2, 2))
	const each, end, long = 300 * time.Millisecond, 3 * time.Second, time.Minute
	r := run(t, f,
		Spec{Name: "ours", Kind: Bulk, From: "sender1", To: "receiver1", Duration: each, Count: 200, End: end},
		Spec{Name: "theirs", Kind: Bulk, From: "sender2", To: "receiver2", Duration: long, End: end},
	)
	last, n := map[string]time.Duration{}, map[string]int{}
	for _, c := range r.Connections {
		last[c.Group] = max(last[c.Group], c.Start+c.Elapsed)
		n[c.Group]++
		if c.Group == "ours" && c.Elapsed < each && c.Start+c.Elapsed < end {
			t.Errorf("cut short before the end: %+v", c)
		}
	}
	if most := int(end/each) + 1; n["theirs"] != 1 || n["ours"] < 2 || n["ours"] > most { // 200 would take a minute
		t.Errorf("connections: %v, want 1 of theirs and at most %d of ours", n, most)
	}
	for group, at := range last {
		if at < end || at > long/2 {
			t.Errorf("%s ended at %s, want soon after %s", group, at, end)
		}
	}
}

// A second round on the same agents has servers of its own.
func TestRootRoundsRepeat(t *testing.T) {
	f := newFleet(t, topology.Dumbbell(1, 1))
	s := Spec{Kind: Flows, Count: 20, Concurrency: 4, Seed: 3, Size: Size{Alpha: 0.8, Scale: 1000, Max: 52_000}}
	a, b := run(t, f, s), run(t, f, s)
	for i := range a.Connections {
		if a.Connections[i].Bytes != b.Connections[i].Bytes {
			t.Fatalf("flow %d had %d bytes, then %d", i, a.Connections[i].Bytes, b.Connections[i].Bytes)
		}
	}
}
