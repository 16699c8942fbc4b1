package metrics

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

var update = flag.Bool("update", false, "write generated files again")

type fake struct {
	snap     *engine.Snapshot
	counters Counters
	err      error
}

func (f *fake) Snapshot() *engine.Snapshot  { return f.snap }
func (f *fake) Counters() (Counters, error) { return f.counters, f.err }

func cc(name string) tcp.CC {
	c, ok := tcp.ParseCC(name)
	if !ok {
		panic(name)
	}
	return c
}

// full returns a source in which every metric has a value.
func full(paths int) *fake {
	start := time.Unix(1_700_000_000, 0)
	s := &engine.Snapshot{
		At: start.Add(time.Hour), Started: start, Learner: "thompson",
		Rules: []engine.RuleState{
			{Name: "web", Class: 1, Action: "learn", HoldOut: 0.02, Paths: paths, Samples: 1000,
				Rollout: &engine.Rollout{Share: 0.1, Configured: 0.1}, Gain: engine.Gain{Ratio: 1.2, Low: 1.1, High: 1.3}},
			{Name: "dc", Class: 2, Action: "set"},
		},
		Arms:   engine.Arms{Active: []tcp.CC{cc("bbr")}, Missing: map[tcp.CC]string{cc("dctcp"): "no module"}},
		Yields: []engine.Yield{{Field: "rto_min", Sysctl: "net.ipv4.tcp_rto_min_us"}},
		Totals: engine.Totals{
			Samples: map[string]uint64{"close": 10, "interval": 3}, Connections: map[string]uint64{"close": 25, "interval": 3}, Ignored: map[string]uint64{"app-limited": 2},
			Decisions: map[string]uint64{"learned": 5}, Retired: map[string]uint64{"marks-lost": 1}, RTOMinBarred: map[string]uint64{"0.05": 4}, Paths: paths, PathLimit: 20000, Ticks: 100, TickTime: 500 * time.Millisecond,
			InitialPackets: 100, InitialLost: 5, InitialHalved: 2, Writes: 5, LastSaved: start, ObserveCount: 11, Unattributed: 1,
		},
	}
	for i := range paths {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0})
		key := path.Of(1, 0, addr, 24)
		s.Paths = append(s.Paths, &engine.PathState{
			Key: key, Rule: "web", Prefix: key.Prefix.String(), Samples: uint64(2 * (paths - i)),
			Set:         []engine.Setting{{Field: "init_cwnd", Value: 40, Reason: "metrics"}, {Field: "no_delay", Value: 1, Reason: "rule"}},
			PathMetrics: engine.PathMetrics{MinRTT: 12_000, SRTT: 15_000, RTTVar: 500, Rate: 1e6, ReceiveRate: 2e6, Ssthresh: 42, Carried: 50, RateLimit: 3e6, LossShare: 0.01, DataSegs: 1000, RTOMin: 100 * time.Millisecond, RTOMinBarred: &engine.BarredRTOMin{RTOMin: 50 * time.Millisecond, Until: time.Unix(1_700_000_060, 0)}, Active: new(uint32(3)), Updated: time.Unix(1_700_000_000, 0), NetworkType: "lan"},
			Arms: []engine.PathArm{
				{CC: cc("bbr"), Weight: 0.75, Count: 8, Greedy: 7, Mean: 4.5, StdDev: 0.1, MinRTT: 12000, Rate: 1e6},
				{CC: cc("cubic"), Weight: 0.25, Count: 2, Greedy: 1, Mean: 4.1, StdDev: 0.2, MinRTT: 13000, Rate: 9e5},
			},
			HoldOut: engine.PathHoldOut{Share: 0.02, Count: 20, Gain: engine.Gain{Ratio: 1.5, Low: 1.2, High: 1.9}},
		})
	}
	return &fake{snap: s, counters: Counters{
		Connections: []ClassCount{{Class: 1, Outgoing: 7, Incoming: 2}, {Class: 99, Outgoing: 1}},
		Decisions:   []ReasonCount{{"set", 6}, {"hold-out", 1}},
		Samples:     SampleCount{Submitted: 10, Dropped: 1, Received: 9},
		SetErrors:   []FieldCount{{"init_cwnd", 3}},
		ArmFailures: []ArmCount{{"dctcp", 2}},
		Controls:    map[string]int{"tcpilot_bbr3": 12},
		Limits:      []LimitCount{{Rule: "all", Total: 12e6, Connection: 3e6, Connections: 9, Active: 4, Share: 3e6, Measured: 11.9e6, Sent: 5e9}},
		Buffers:     []BufferCount{{Sysctl: "net.ipv4.tcp_rmem", Raised: 1, Raises: 3, TakenBack: 2}},
		Host:        &HostCount{Sysctls: 4, Routes: 2, RoutesLeft: 1},
		Events:      []EventCount{{Class: 1, Event: "rto", Count: 4}},
		Programs: []ProgramStats{{Name: "sockops", ID: 1, Stats: true, RunCount: 10, RunTime: time.Microsecond},
			{Name: "sockops", ID: 2, Stats: true, RunCount: 5, RunTime: time.Microsecond}, {Name: "iter", ID: 3}},
		Pods:      []PodCount{{"shop/web", 7}, {"shop/db", 9}, {"shop/web", 1}},
		Packets:   []PacketCount{{"pod-to-pod", true, 7}, {"nat", false, 9}},
		Bandwidth: []BandwidthCount{{Direction: "egress", Limited: 2, Passed: 1e9, Marked: 3, Dropped: 4}, {Direction: "ingress", Limited: 1}},
		PodLimits: []PodLimitCount{{Pod: "shop/web", Direction: "egress", Limit: 1e6, Passed: 5e6, Marked: 1, Dropped: 2}, {Pod: "shop/db", Direction: "egress", Limit: 2e6, Passed: 6e6, Dropped: 1},
			{Pod: "shop/db", Direction: "ingress", Limit: 3e6, Passed: 7e6}},
		BigTCP: &BigTCPCount{Pods: 3, Sent: 40, Received: 50},
		Peer:   PeerCount{Sent: 1, Seen: 2, Resent: 3, Omitted: 4},
		Unseen: UnseenCount{Untracked: 1, Forgotten: 2, Missed: 3, Thinned: 4, Backwards: 5},
	}}
}

// topPaths is how many paths have labels of their own in these tests.
const topPaths = 20

func gather(t testing.TB, f *fake, top int) map[string]*dto.MetricFamily {
	t.Helper()
	r := prometheus.NewPedanticRegistry() // checks what Collect sends against Describe
	r.MustRegister(NewCollector(f, "1.0", top))
	got, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]*dto.MetricFamily{}
	for _, f := range got {
		m[f.GetName()] = f
	}
	return m
}

// value returns the one series of name with these labels ("k=v").
func value(t *testing.T, got map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	t.Helper()
	var found []float64
	for _, m := range got[name].GetMetric() {
		have := map[string]string{}
		for _, l := range m.GetLabel() {
			have[l.GetName()] = l.GetValue()
		}
		if !slices.ContainsFunc(labels, func(l string) bool {
			k, v, _ := strings.Cut(l, "=")
			return have[k] != v
		}) {
			found = append(found, m.GetGauge().GetValue()+m.GetCounter().GetValue())
		}
	}
	if len(found) != 1 {
		t.Fatalf("%s%v: %d series, want 1", name, labels, len(found))
	}
	return found[0]
}

// The values of RTO_MIN are few, whatever the number of paths; paths beyond the top ones count.
func TestRTOMins(t *testing.T) {
	got := gather(t, full(30), topPaths)
	for name, want := range map[string]map[string]float64{
		"tcpilot_rto_min_paths":        {"0.2": 0, "0.1": 30, "0.05": 0, "0.025": 0, "0.01": 0},
		"tcpilot_rto_min_barred_paths": {"0.1": 0, "0.05": 30, "0.025": 0, "0.01": 0},
		"tcpilot_rto_min_barred_total": {"0.05": 4},
	} {
		if n := len(got[name].GetMetric()); n != len(want) {
			t.Errorf("%s has %d series, want %d", name, n, len(want))
		}
		for seconds, n := range want {
			if v := value(t, got, name, "seconds="+seconds); v != n {
				t.Errorf("%s of %s s is %v, want %v", name, seconds, v, n)
			}
		}
	}
}

func TestEveryMetricIsCollected(t *testing.T) {
	got := gather(t, full(3), topPaths)
	for _, f := range families {
		if got[f.name] == nil {
			t.Errorf("%s has no series though its source has values", f.name)
		}
		delete(got, f.name)
	}
	for name := range got {
		t.Errorf("%s is not declared", name)
	}
}

func TestLint(t *testing.T) {
	r := prometheus.NewRegistry()
	r.MustRegister(NewCollector(full(3), "1.0", topPaths))
	problems, err := testutil.GatherAndLint(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestValuesAreInBaseUnits(t *testing.T) {
	got := gather(t, full(3), topPaths)
	first := []string{"prefix=10.0.0.0/24", "rule=web"}
	for _, tt := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"tcpilot_path_srtt_seconds", first, 0.015},
		{"tcpilot_path_min_rtt_seconds", first, 0.012},
		{"tcpilot_path_arm_min_rtt_seconds", append(first, "cc=cubic"), 0.013},
		{"tcpilot_path_arm_weight", append(first, "cc=bbr"), 0.75},
		{"tcpilot_path_gain_ratio", first, 1.5},
		{"tcpilot_program_run_seconds_total", []string{"program=sockops"}, 2e-6},
		{"tcpilot_program_runs_total", []string{"program=sockops"}, 15},
		{"tcpilot_connections_total", []string{"rule=web", "direction=incoming"}, 2},
		{"tcpilot_connections_total", []string{"rule=removed", "direction=outgoing"}, 1},
		{"tcpilot_arm_state", []string{"cc=dctcp", "state=missing"}, 1},
		{"tcpilot_arm_state", []string{"cc=dctcp", "state=active"}, 0},
		{"tcpilot_congestion_control_loaded", []string{"cc=tcpilot_bbr3"}, 1},
		{"tcpilot_congestion_control_loaded", []string{"cc=tcpilot_cubic"}, 0},
		{"tcpilot_congestion_control_connections", nil, 12},
		{"tcpilot_sampled_connections_total", []string{"kind=close"}, 25},
		{"tcpilot_path_arms_retired_total", []string{"reason=marks-lost"}, 1},
		{"tcpilot_store_saved_timestamp_seconds", nil, 1_700_000_000},
		{"tcpilot_datapath_up", nil, 1},
	} {
		if v := value(t, got, tt.name, tt.labels...); math.Abs(v-tt.want) > 1e-12*math.Abs(tt.want) {
			t.Errorf("%s%v = %v, want %v", tt.name, tt.labels, v, tt.want)
		}
	}
}

func TestGainHasItsInterval(t *testing.T) {
	f := full(2)
	f.snap.Rules[0].Gain = engine.Gain{Ratio: 2, Low: 1.5, High: 2.6, BySlice: true}
	f.snap.Paths[1].HoldOut.Gain = engine.Gain{Ratio: 3} // too few observations for an interval
	got := gather(t, f, topPaths)
	for name, want := range map[string]float64{"tcpilot_rule_gain_by_slices": 1, "tcpilot_path_gain_by_slices": 0} {
		if v := value(t, got, name, "rule="+f.snap.Rules[0].Name); v != want {
			t.Errorf("%s = %v, want %v", name, v, want)
		}
	}
	for name, want := range map[string]float64{"": 2, "_low": 1.5, "_high": 2.6} {
		if v := value(t, got, "tcpilot_rule_gain_ratio"+name, "rule="+f.snap.Rules[0].Name); v != want {
			t.Errorf("gain%s = %v, want %v", name, v, want)
		}
		if n := len(got["tcpilot_path_gain_ratio"+name].GetMetric()); n != 1 {
			t.Errorf("%d series of paths' gain%s, want none for a path without an interval", n, name)
		}
	}
}

func TestOtherSumsTheRest(t *testing.T) {
	f := full(4) // 8, 6, 4, 2 samples
	f.snap.Paths[3].Arms = f.snap.Paths[3].Arms[:1]
	f.snap.Paths[3].Arms[0].Weight = 1
	got := gather(t, f, 2)
	if v := value(t, got, "tcpilot_path_samples", "prefix=other"); v != 6 {
		t.Errorf("samples of the rest = %v, want 6", v)
	}
	if v := value(t, got, "tcpilot_path_arm_connections", "prefix=other", "cc=bbr"); v != 16 {
		t.Errorf("connections of the rest = %v, want 16", v)
	}
	if v := value(t, got, "tcpilot_path_arm_weight", "prefix=other", "cc=bbr"); math.Abs(v-(0.75*4+2)/6) > 1e-9 {
		t.Errorf("weight of bbr in the rest = %v, want %v", v, (0.75*4+2)/6.)
	}
	if v := value(t, got, "tcpilot_path_arm_weight", "prefix=other", "cc=cubic"); math.Abs(v-1./6) > 1e-9 {
		t.Errorf("weight of cubic in the rest = %v, want 1/6", v)
	}
}

// Ten thousand paths must not become ten thousand series.
func TestCardinality(t *testing.T) {
	small, big := series(gather(t, full(50), topPaths)), series(gather(t, full(10_000), topPaths))
	if small != big {
		t.Errorf("%d series with 50 paths, %d with 10,000", small, big)
	}
	if big > 1000 {
		t.Errorf("%d series, want at most 1000", big)
	}
	if none := series(gather(t, full(10_000), 0)); none >= big {
		t.Errorf("%d series without named paths, %d with", none, big)
	}
}

func series(got map[string]*dto.MetricFamily) (n int) {
	for _, f := range got {
		n += len(f.GetMetric())
	}
	return n
}

func TestUnreadableCountersDoNotHideOtherMetrics(t *testing.T) {
	f := full(3)
	f.err = errors.New("map is gone")
	got := gather(t, f, topPaths)
	if v := value(t, got, "tcpilot_datapath_up"); v != 0 {
		t.Errorf("datapath_up = %v, want 0", v)
	}
	if got["tcpilot_ring_samples_received_total"] != nil || got["tcpilot_path_samples"] == nil {
		t.Error("want the engine's metrics, and none of the datapath's")
	}
}

func TestBeforeTheFirstSnapshot(t *testing.T) {
	f := full(3)
	f.snap = nil
	if got := gather(t, f, topPaths); got["tcpilot_datapath_up"] == nil || got["tcpilot_paths"] != nil {
		t.Errorf("got %v", slices.Sorted(maps.Keys(got)))
	}
}

func TestTwoPathsOfOneNameDoNotFailTheScrape(t *testing.T) {
	f := full(2)
	f.snap.Paths[1].Prefix = f.snap.Paths[0].Prefix
	if n := len(gather(t, f, topPaths)["tcpilot_path_samples"].GetMetric()); n != 1 {
		t.Errorf("%d series, want the first one", n)
	}
	f.snap.Paths[1].Scope = 4026531840
	if n := len(gather(t, f, topPaths)["tcpilot_path_samples"].GetMetric()); n != 2 {
		t.Errorf("%d series, want 2: the scope tells them apart", n)
	}
}

// The pods with most connections have labels of their own; two pods of one name count together.
func TestPods(t *testing.T) {
	f := full(0)
	for top, want := range map[int]map[string]float64{
		2: {"shop/db": 9, "shop/web": 8}, 1: {"shop/db": 9, "other": 8}, 0: {"other": 17},
	} {
		got := gather(t, f, top)
		if value(t, got, "tcpilot_pods") != 3 || len(got["tcpilot_pod_connections"].GetMetric()) != len(want) {
			t.Errorf("top %d: %v", top, got["tcpilot_pod_connections"])
		}
		for name, n := range want {
			if v := value(t, got, "tcpilot_pod_connections", "pod="+name); v != n {
				t.Errorf("top %d: %s has %g, want %g", top, name, v, n)
			}
		}
	}
	f.counters.Pods = nil
	if got := gather(t, f, topPaths); value(t, got, "tcpilot_pods") != 0 || got["tcpilot_pod_connections"] != nil {
		t.Errorf("without pods: %v", got["tcpilot_pod_connections"])
	}
}

// The pods whose limits dropped most have labels of their own, in each direction that is limited.
func TestPodLimits(t *testing.T) {
	for top, want := range map[int][]string{1: {"shop/web", "other"}, 2: {"shop/web", "shop/db"}} {
		got := gather(t, full(0), top)
		for i, dropped := range []float64{2, 1} {
			if v := value(t, got, "tcpilot_pod_limit_dropped_packets", "pod="+want[i], "direction=egress"); v != dropped {
				t.Errorf("top %d: %s dropped %v packets, want %v", top, want[i], v, dropped)
			}
		}
		if n := len(got["tcpilot_pod_limit_bytes_per_second"].GetMetric()); n != 2*top-1 {
			t.Errorf("top %d: %d limits", top, n)
		}
	}
}

// docs/metrics.md is generated: go test ./internal/metrics -update
func TestDocumentation(t *testing.T) {
	const file = "../../docs/metrics.md"
	var b strings.Builder
	b.WriteString("# Metrics\n\n<!-- Generated by go test ./internal/metrics -update: do not edit. -->\n\n" +
		"tcpilot exports these to Prometheus at `/metrics` of the configured address (loopback by\ndefault), with those of the Go runtime (`go_`) and the process (`process_`).\n" +
		"Units are base units. Labels are bounded: the paths with most samples have their own\n`prefix`, all others share `other`, and so do pods. `scope` is the cookie of a network namespace; it is empty if\nall namespaces share what is learned. The `rule` of connections that match no rule is `none`; if a\nreload removed their rule, it is `removed`.\n\n" +
		"| name | type | labels | meaning |\n|---|---|---|---|\n")
	for _, f := range families {
		kind := "gauge"
		if f.kind == prometheus.CounterValue {
			kind = "counter"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, kind, strings.Join(f.labels, ", "), f.help)
	}
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != b.String() {
		t.Errorf("%s is stale: go test ./internal/metrics -update", file)
	}
}

func BenchmarkScrape(b *testing.B) {
	f := full(10_000)
	for b.Loop() {
		gather(b, f, topPaths)
	}
}
