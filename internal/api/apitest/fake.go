package apitest

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/metrics"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Now is the time of the fake daemon's clock.
var Now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// Fake is an api.Backend. If Err is set, every method returns it.
type Fake struct {
	Hub      api.Hub
	Snap     *engine.Snapshot
	Programs []api.Loaded
	CCs      []api.CongestionControl
	Err      error
	Problems []string // of Status and Doctor
	Healthy  bool     // of Status: every wanted feature is active, and the configuration is in force
	// Feed is how many samples a new subscription finds waiting.
	Feed int

	PodList api.PodList      // of New: without pods
	Stale   []api.RefusedPod // records that SyncPods removes
	Removal *api.PluginRemoval

	Asked    api.ExplainRequest // by the latest Explain
	Detached bool
	// PodsDetached says that DetachPods was called.
	PodsDetached bool
}

// New returns a daemon that has run for three hours.
func New() *Fake {
	return &Fake{Snap: snapshot(), Programs: []api.Loaded{{
		Name: "my-iw", File: "/opt/my_iw.bpf.o", Cgroup: "/sys/fs/cgroup/web", Since: Now.Add(-time.Minute),
		Programs: []api.Program{{ProgramStats: metrics.ProgramStats{Name: "iw", ID: 77, Stats: true, RunCount: 1200, RunTime: 300 * time.Microsecond}, Type: "sock_ops"}},
	}}, CCs: controls(), PodList: api.PodList{At: Now, Pods: []api.Pod{}, Refused: []api.RefusedPod{}}}
}

// AddPods adds two pods, a record that is not used, and one that SyncPods removes. Samples of network
// namespace 1 are of the second pod.
func (f *Fake) AddPods() {
	f.PodList.Pods = []api.Pod{
		{Pod: "shop/db-0", Namespace: "shop", Name: "db-0", NetNS: 4711, Container: "fedcba9876543210", Rules: []string{}, Since: Now.Add(-time.Minute),
			Annotations: map[string]string{"tcpilot.io/congestion-control": "vegas"},
			Warning:     "annotation tcpilot.io/congestion-control: vegas is not available here: it needs its kernel module, or 'tcpilot cc load'",
			Routing:     &api.PodRouting{Why: "annotation tcpilot.io/host-routing"}},
		{Pod: "shop/web-1", Namespace: "shop", Name: "web-1", NetNS: 1, Container: "0123456789abcdef", Cgroup: "/kubepods.slice/x",
			Annotations: map[string]string{"tcpilot.io/congestion-control": "bbr"}, Rules: []string{"web", "any-pod"}, Control: "bbr",
			Since: Now.Add(-2 * time.Hour), Connections: 1234, Routing: &api.PodRouting{Active: true},
			Egress:  &api.PodBandwidth{Limit: 10e6 / 8, Passed: 123456789, Marked: 12, Dropped: 345},
			Ingress: &api.PodBandwidth{Limit: 1e9 / 8},
			BigTCP:  &api.PodBigTCP{Active: true, Size: 192 << 10, Sent: 1200, Received: 34}},
	}
	f.PodList.Refused = []api.RefusedPod{{Record: "abcdef0123456789@eth0.json", Pod: "shop/node-agent", Why: "its network namespace is the daemon's own"}}
	f.PodList.Packets = []metrics.PacketCount{{Fate: "pod-to-wire", Routed: true, Packets: 81234}, {Fate: "wire-to-pod", Routed: true}, {Fate: "nat", Packets: 12}, {Fate: "ttl"}}
	f.Stale = []api.RefusedPod{{Record: "00112233445566@eth0.json", Pod: "shop/old", Why: "its network namespace /run/netns/cni-1 does not exist", Removed: true}}
}

// Pods implements api.Backend.
func (f *Fake) Pods(context.Context) (api.PodList, error) { return f.PodList, f.Err }

// SyncPods implements api.Backend.
func (f *Fake) SyncPods(context.Context) (api.PodSync, error) {
	return api.PodSync{Pods: len(f.PodList.Pods), Refused: append(f.Stale[:len(f.Stale):len(f.Stale)], f.PodList.Refused...)}, f.Err
}

// DetachPods implements api.Backend.
func (f *Fake) DetachPods(context.Context) error {
	f.PodsDetached = f.Err == nil
	return f.Err
}

// PodName implements api.Backend.
func (f *Fake) PodName(netns uint64) string {
	for i := range f.PodList.Pods {
		if p := &f.PodList.Pods[i]; p.NetNS == netns {
			return p.Pod
		}
	}
	return ""
}

// controls is the fake daemon's catalogue.
func controls() []api.CongestionControl {
	return []api.CongestionControl{
		{Name: "mine", State: "loaded", Source: "/opt/mine.bpf.o", User: true, Rules: []string{}, Version: "0123456789ab", Connections: 1,
			Programs: []metrics.ProgramStats{{Name: "mine_cong_avoid", ID: 91}}},
		{Name: "tcpilot_bbr3", State: "loaded", Source: "draft-ietf-ccwg-bbr", Wanted: true, Rules: []string{"default"}, Auto: true,
			Version: "5f1d0c7a9e42", Connections: 12, Programs: []metrics.ProgramStats{
				{Name: "bbr3_main", ID: 88, Stats: true, RunCount: 40_000, RunTime: 10 * time.Millisecond},
				{Name: "bbr3_init", ID: 89, Stats: true, RunCount: 12, RunTime: 6 * time.Microsecond}}},
		{Name: "tcpilot_dctcp", State: "absent", Why: "this kernel's verifier refused it: permission denied", Source: "RFC 8257",
			Wanted: true, Rules: []string{}, NeedsECN: true, Auto: true, Version: "77aa00bb11cc", Programs: []metrics.ProgramStats{}},
		{Name: "tcpilot_ledbat", State: "available", Source: "RFC 6817", Rules: []string{}, Version: "c0ffee00c0ff", Programs: []metrics.ProgramStats{}},
	}
}

// Serve serves b on a socket until the test ends, and returns the socket's path.
func Serve(t testing.TB, b api.Backend) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tcpilot") // t.TempDir's name may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	l, err := api.Listen(socket, 0o600, -1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- api.NewServer(b, -1, slog.New(slog.DiscardHandler)).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("api.Serve: %v", err)
		}
		os.RemoveAll(dir)
	})
	return socket
}

// CC returns a congestion control by its name.
func CC(name string) tcp.CC {
	c, _ := tcp.ParseCC(name)
	return c
}

// wifi is why the first path of Snapshot has its type of network.
const wifi = "least round-trip time 12ms (at least 1ms, below 30ms), 20 % of the connections that came within 3.69ms of it came within 610µs (below 60 %), " +
	"round-trip times within a small connection differ by 1.9ms (at least 500µs), that is 15 % of the least one (at least 3 %)"

// receivesLittle is why the first path of Snapshot has the kernel's receive window.
const receivesLittle = "4 times what a connection received in a least round-trip time of 12.3ms (1.2 Mbit/s): that is 5 packets, and a window is raised from 66 on (the kernel announces 44 at first)"

// snapshot returns an engine's state with two learned paths.
func snapshot() *engine.Snapshot {
	start := Now.Add(-3 * time.Hour)
	web := path.Of(2, 0, netip.MustParseAddr("192.0.2.7"), 24)
	lab := path.Of(2, 4026531840, netip.MustParseAddr("2001:db8:1::7"), 48)
	s := &engine.Snapshot{
		At: Now, Started: start, Learner: "thompson", Mode: engine.ModeTune,
		Rules: []engine.RuleState{
			{Name: "datacentre", Class: 1, Match: "remote 10.0.0.0/8", Action: "set", Samples: 12,
				Rollout: &engine.Rollout{Share: 0.1, Configured: 0.1},
				Gain:    engine.Gain{Treated: 400, HeldOut: 3610, Ratio: 1.21, Low: 1.1, High: 1.33},
				Set: []engine.Setting{{Field: "cwnd_clamp", Value: 100, Unit: "packets", Reason: "rule"},
					{Field: "rto_min", Value: 5000, Unit: "us", Reason: "rule"}}},
			{Name: "default", Class: 2, Match: "any", Action: "learn", Arms: []tcp.CC{CC("cubic"), CC("bbr")},
				Objective: "throughput", HoldOut: 0.02, Watch: []string{"rto", "retransmit"}, WatchShare: 0.01, Paths: 2, Samples: 230, Rollout: &engine.Rollout{Share: 1, Configured: 1}},
			{Name: "loopback", Class: 3, Match: "remote 127.0.0.0/8", Action: "leave"},
		},
		Arms: engine.Arms{Active: []tcp.CC{CC("bbr"), CC("cubic")}, Retired: map[tcp.CC]string{CC("dctcp"): "the kernel refused it"},
			Missing: map[tcp.CC]string{}, Failures: map[tcp.CC]uint64{CC("dctcp"): 3}},
		Yields: []engine.Yield{{Field: "rto_min", Sysctl: "net.ipv4.tcp_rto_min_us", Before: "200000", After: "20000", Since: Now.Add(-time.Hour)}},
		Paths: []*engine.PathState{
			{Key: web, Rule: "default", Prefix: web.Prefix.String(), PolicyID: 17, Reason: "learned", Expires: Now.Add(30 * time.Second),
				LastUsed: Now.Add(-2 * time.Second), Samples: 200, PathMetrics: engine.PathMetrics{
					MinRTT: 12_300, SRTT: 15_000, RTTVar: 900, Rate: 11_760_000, ReceiveRate: 150_000, Ssthresh: 96, Carried: 240,
					LossShare: 0.0012, DataSegs: 41_000, Active: new(uint32(12)), Updated: Now.Add(-2 * time.Second),
					NetworkType: "wifi",
				},
				Arms: []engine.PathArm{
					{CC: CC("cubic"), Default: true, Weight: 0.05, Count: 40, Greedy: 12, Mean: 14.2, StdDev: 0.11, MinRTT: 12500, Rate: 800_000, LastUsed: Now,
						Recent: engine.Recent{Goodput: 760_000, Retrans: 0.0104, DataSegs: 12_000, SRTT: 13_100}},
					{CC: CC("bbr"), Weight: 0.95, Count: 155, Greedy: 150, Mean: 16.1, StdDev: 0.02, MinRTT: 12300, Rate: 11_760_000, LastUsed: Now,
						Recent: engine.Recent{Goodput: 9_800_000, Retrans: 0.0127, DataSegs: 160_000, SRTT: 14_100}},
					{CC: CC("reno"), Count: 21, Mean: 13.1, StdDev: 0.2, MinRTT: 12400, Rate: 400_000, LastUsed: Now,
						Recent: engine.Recent{Goodput: 380_000, Retrans: 0.011, DataSegs: 6_000, SRTT: 12_900},
						Retired: &engine.ArmRetirement{Guard: "reward-collapse", Why: "its reward is 2.5 times less than the hold-out's, over 21 connections and 5 of the hold-out",
							Since: Now.Add(-time.Minute), Until: Now.Add(9 * time.Minute)}},
				},
				HoldOut: engine.PathHoldOut{Share: 0.02, Slices: 0.01, Count: 25,
					Recent: engine.Recent{Goodput: 740_000, Retrans: 0.0101, DataSegs: 9_000, SRTT: 13_000}, Gain: engine.Gain{Ratio: 7.39, Low: 5.1, High: 10.7, BySlice: true, Treated: 300, HeldOut: 8}},
				Switched: &engine.Switched{To: CC("bbr"), Since: Now.Add(-40 * time.Second),
					Switched: engine.RunningGroup{Connections: 16, Goodput: 9_600_000, Retrans: 0.012}, Kept: engine.RunningGroup{Connections: 5, Goodput: 790_000, Retrans: 0.0102},
					Gain: engine.Gain{Ratio: 11.8, Low: 6.2, High: 22.4, Treated: 16, HeldOut: 5}}},
			{Key: lab, Rule: "default", Prefix: lab.Prefix.String(), Scope: lab.Scope, PolicyID: 18, Reason: "exploring", Expires: Now.Add(30 * time.Second),
				LastUsed: Now.Add(-time.Second), Samples: 30, PathMetrics: engine.PathMetrics{MinRTT: 80, Rate: 1_100_000_000, NetworkType: "datacentre",
					RTOMin: 100 * time.Millisecond, RTOMinBarred: &engine.BarredRTOMin{RTOMin: 50 * time.Millisecond, Until: Now.Add(7 * time.Minute), For: 10 * time.Minute}},
				Arms:    []engine.PathArm{{CC: CC("cubic"), Weight: 0.5, Count: 30, Greedy: 15, Mean: 20.5}, {CC: CC("bbr"), Weight: 0.5}},
				HoldOut: engine.PathHoldOut{Share: 0.1, Count: 6, Gain: engine.Gain{Ratio: 0.97, Low: 0.9, High: 1.05, Treated: 22, HeldOut: 6}}},
		},
		Totals: engine.Totals{
			Samples:     map[string]uint64{"close": 220, "interval": 20, "failed-connect": 2},
			Connections: map[string]uint64{"close": 440, "interval": 20, "failed-connect": 2}, Ignored: map[string]uint64{"too-small": 12},
			Decisions: map[string]uint64{"learned": 30, "exploring": 12}, Paths: 2, PathLimit: 10000, Ticks: 10800, TickTime: 1080 * time.Millisecond,
			Writes: 42, LastSaved: Now.Add(-20 * time.Second), ObserveCount: 230,
		},
	}
	for i, why := range []string{wifi, "least round-trip time 80µs (below 500µs)"} {
		if err := s.Paths[i].NetworkWhy.UnmarshalText([]byte(why)); err != nil {
			panic(err) // cannot fail
		}
	}
	return s
}

// Sample returns the i-th sample of a fixed sequence.
func Sample(i int) tcp.Sample {
	s := tcp.Sample{
		Kind: tcp.KindClose, End: tcp.EndFin, Flags: tcp.FlagOutgoing, At: Now.Add(time.Duration(i) * time.Second).UnixNano(),
		Cookie: uint64(1000 + i), NetNS: 1, Cgroup: 4242, StandsFor: 1,
		Local: netip.MustParseAddrPort("198.51.100.1:50001"), Remote: netip.MustParseAddrPort("192.0.2.7:443"),
		Class: 2, PolicyID: 17, Arm: CC("bbr"), CC: CC("bbr"), Duration: 1230 * time.Millisecond, Connect: 12500 * time.Microsecond,
		Busy: time.Second, BytesAcked: 12_000_000, BytesReceived: 340, SegsOut: 8300, SegsIn: 4000, DataSegsOut: 8290, Retrans: 12,
		Delivered: 8300, Lost: 12, MinRTT: 12300, SRTT: 14100, RTTVar: 500, Cwnd: 120, Ssthresh: 1<<31 - 1, MSS: 1448, DeliveryRate: 11_760_000,
	}
	switch i % 5 {
	case 1:
		s.Flags, s.Arm, s.CC = tcp.FlagHoldOut|tcp.FlagAppLimited, tcp.CC{}, CC("cubic")
		s.Local, s.Remote = netip.MustParseAddrPort("[2001:db8::1]:443"), netip.MustParseAddrPort("[2001:db8:1::7]:61000")
		s.End, s.DeliveryRate, s.BytesAcked, s.Class = tcp.EndReset, 90_000, 15_000, 99
	case 2:
		s.Kind, s.End, s.Flags, s.Class = tcp.KindInterval, tcp.EndNone, tcp.FlagAdopted, 1
	case 3:
		s = tcp.Sample{Kind: tcp.KindFailedConnect, End: tcp.EndRefused, Flags: tcp.FlagOutgoing, At: s.At, Local: s.Local, Remote: s.Remote,
			Duration: 250 * time.Microsecond, CC: CC("cubic"), StandsFor: 3}
	case 4:
		s.Kind, s.End, s.Arm, s.CC = tcp.KindInterval, tcp.EndNone, CC("tcpilot_bbr3"), CC("tcpilot_bbr3")
		s.CCState = tcp.CCState{BW: 11_760_000, MinRTT: 12_300, InflightHi: 131, InflightLo: tcp.NoBound, Alpha: 64, WMax: 140,
			Mode: 5, Flags: tcp.CCFlagKnown | tcp.CCFlagFullPipe | tcp.CCFlagECN}
	}
	return s
}

// Status implements api.Backend.
func (f *Fake) Status(context.Context) (api.Status, error) {
	s := api.Status{
		Version: "1.2.3", PID: 4711, Started: Now.Add(-3 * time.Hour), Uptime: 3 * time.Hour, Kernel: "6.18.5",
		Problems: f.Problems, Config: "/etc/tcpilot/tcpilot.yaml", ConfigLoaded: Now.Add(-time.Hour), ConfigError: "tcpilot.yaml:7:3: unknown key \"sett\"",
		NeedRestart: []string{"host", "log"},
		Cgroup:      "/sys/fs/cgroup/unified", Attached: Now.Add(-3 * time.Hour), Adopted: true, Lease: 30 * time.Second, Metrics: "127.0.0.1:9464",
		Mode: f.Snap.Mode, Rollouts: api.RolloutsOf(f.Snap.Rules), Features: features(), Learner: "thompson", Arms: f.Snap.Arms, Yields: f.Snap.Yields, Totals: f.Snap.Totals, Loaded: f.Programs,
		Counters: metrics.Counters{
			Connections: []metrics.ClassCount{{Class: 0, Incoming: 3}, {Class: 1, Outgoing: 12}, {Class: 2, Outgoing: 230, Incoming: 40}, {Class: 9, Outgoing: 1}},
			Decisions:   []metrics.ReasonCount{{Reason: "policy", Count: 264}, {Reason: "cc-set", Count: 260}, {Reason: "hold-out", Count: 5}, {Reason: "app-chose", Count: 4}},
			Samples:     metrics.SampleCount{Submitted: 245, Dropped: 2, Received: 243, Malformed: 1},
			SetErrors:   []metrics.FieldCount{{Field: "rto_max", Count: 7}},
			Limits:      []metrics.LimitCount{limitCount()},
			Events:      []metrics.EventCount{{Class: 2, Event: "retransmit", Count: 310}, {Class: 2, Event: "rto", Count: 4}, {Class: 9, Event: "rto", Count: 1}},
			Programs: []metrics.ProgramStats{{Name: "tcpilot_sockops", ID: 41, Stats: true, RunCount: 2500, RunTime: 750 * time.Microsecond},
				{Name: "tcpilot_iter", ID: 42}},
		},
	}
	s.HostRoutes = []api.HostRoutes{{Count: 2, Routes: []string{"10.0.0.0/8", "10.7.0.0/16 metric 100"}, Left: []string{"fd00::/8: from a router's advertisement"}}}
	s.HostSysctls = []api.HostSysctl{{Sysctl: "net.ipv4.tcp_comp_sack_nr", Original: "44", Value: "100", Since: Now.Add(-3 * time.Hour)}}
	if s.Pods = f.PodList.Status(""); f.Removal != nil {
		s.Pods.Removal = f.Removal
	}
	s.Counters.NameRules(f.Snap.Rules)
	if f.Healthy {
		s.ConfigError, s.Features = "", s.Features[:1]
	}
	s.SetDegraded()
	return s, f.Err
}

func limitCount() metrics.LimitCount {
	return metrics.LimitCount{Rule: "default", Total: 12_500_000, Connection: 2_500_000, Connections: 40, Active: 9, Share: 1_600_000, Measured: 12_400_000, Sent: 9e9}
}

func features() []api.Feature {
	return []api.Feature{
		{Name: "sock_ops", Wanted: true, Active: true},
		{Name: "rto_max", Wanted: true, Why: "bpf_setsockopt(TCP_RTO_MAX_MS): invalid argument"},
		{Name: "struct_ops", Why: "not asked for"},
	}
}

// Snapshot implements api.Backend.
func (f *Fake) Snapshot() *engine.Snapshot { return f.Snap }

// Explain implements api.Backend.
func (f *Fake) Explain(_ context.Context, r api.ExplainRequest) (api.Explanation, error) {
	f.Asked = r
	if f.Err != nil {
		return api.Explanation{}, f.Err
	}
	return api.Explanation{
		Request: r, Pod: r.Pod, Rule: "default", Class: 2, Match: "any", Action: "learn", Reason: "learned",
		Why:   "rule default learns; 200 samples of 192.0.2.0/24 are in favour of bbr.",
		Entry: &api.Entry{Prefix: "192.0.2.0/24", PolicyID: 17, Reason: "learned", Expires: Now.Add(28 * time.Second)},
		Fields: []api.FieldWhy{
			{Setting: engine.Setting{Field: "init_cwnd", Value: 32, Unit: "packets", Reason: "rule", Why: "rule default sets it"}, Applied: true},
			{Setting: engine.Setting{Field: "syn_rto", Value: 125, Unit: "ms", Reason: "metrics",
				Why: "srtt 15ms + 4 x rttvar 900us is 18.6ms; times 2 to 2.5, rounded up to the next allowed timeout"}, Applied: true},
			{Setting: engine.Setting{Field: "rto_min", Value: 5000, Unit: "us", Reason: "rule", Why: "net.ipv4.tcp_rto_min_us was changed by the administrator"}},
			{Setting: engine.Setting{Field: "init_rwnd", Reason: "metrics", Why: receivesLittle}, Kernel: true},
		},
		Arms: []api.ArmWeight{{CC: CC("bbr"), Weight: 0.95, Why: "best known"}, {CC: CC("cubic"), Weight: 0.05, Why: "still explored"}},
		Mode: f.Snap.Mode, HoldOut: 0.02, Rollout: f.Snap.Rules[1].Rollout,
		OnRTO:     &engine.OnRTO{CC: CC("bbr"), After: 3, Share: 1},
		RateLimit: &api.RateLimit{LimitCount: limitCount(), New: 1_250_000, Why: "shared with 9 active connections, each of which gets what it needs, but not more than its fair share"},
		Path:      f.Snap.Paths[0], Network: &engine.NetworkType{Type: "wifi", Why: wifi}, Notes: []string{"the application may still choose for itself"},
	}, nil
}

// Samples implements api.Backend.
func (f *Fake) Samples(ctx context.Context) (*api.Subscription, error) {
	if f.Err != nil {
		return nil, f.Err
	}
	sub, err := f.Hub.Subscribe(ctx)
	for i := range f.Feed {
		s := Sample(i)
		f.Hub.Publish(&s)
	}
	return sub, err
}

// Doctor implements api.Backend.
func (f *Fake) Doctor(context.Context, bool) (api.Doctor, error) {
	d := Doctor()
	d.Problems, d.Removal = f.Problems, f.Removal
	return d, f.Err
}

// Doctor is what the fake kernel allows.
func Doctor() api.Doctor {
	return api.Doctor{
		Kernel: "6.18.5", Cgroup: "/sys/fs/cgroup/unified", Features: features(),
		Options: []api.OptionCheck{
			{Field: "init_cwnd", Option: "TCP_BPF_IW", Hook: "connect", Error: "invalid argument"},
			{Field: "init_cwnd", Option: "TCP_BPF_IW", Hook: "established", Accepted: true},
			{Field: "sndbuf", Option: "SO_SNDBUF", Hook: "connect", Accepted: true},
			{Field: "sndbuf", Option: "SO_SNDBUF", Hook: "established", Accepted: true},
			{Field: "syn_rto", Option: "TIMEOUT_INIT", Hook: "request", Accepted: true},
			{Field: "rto_max", Option: "TCP_RTO_MAX_MS", Hook: "connect", Error: "invalid argument"},
			{Field: "rto_max", Option: "TCP_RTO_MAX_MS", Hook: "established", Error: "invalid argument"},
			{Field: "cubic", Option: "TCP_CONGESTION=cubic", Hook: "connect", Accepted: true},
			{Field: "cubic", Option: "TCP_CONGESTION=cubic", Hook: "established", Accepted: true},
		},
		Ready: []api.Readiness{{What: "compression of SACKs", Ready: true, Why: "tcp_comp_sack_nr 44"},
			{What: "eth0: payload of a page in each packet", Why: "MTU 1500, at least 4168 is needed"}},
		Arms:       engine.Arms{Active: []tcp.CC{CC("cubic")}, Retired: map[tcp.CC]string{}, Missing: map[tcp.CC]string{CC("dctcp"): "no module tcp_dctcp"}},
		PodDevices: []api.PodDevice{{Device: "veth", Available: true}, {Device: "netkit", Why: "the kernel has no netkit devices: needs Linux 6.7 or later, with CONFIG_NETKIT"}},
		Conflicts: []api.Conflict{{Kind: "program", What: "sock_ops program 42 (bpftune) on /sys/fs/cgroup/unified",
			Advice: "stop bpftune: both would choose congestion controls"},
			{Kind: "leftover", What: "sock_ops program 43 (tcpilot_sockops) on /sys/fs/cgroup/unified", Advice: "'tcpilot run' adopts it"}},
	}
}

// Reload implements api.Backend.
func (f *Fake) Reload(context.Context) (api.ReloadResult, error) {
	return api.ReloadResult{Config: "/etc/tcpilot/tcpilot.yaml", Mode: f.Snap.Mode, Rules: 3, Added: []string{"web", "db"}, Changed: []string{"default"},
		Warnings: []string{"cgroup: takes effect at the next start"}}, f.Err
}

// SetRollout implements api.Backend.
func (f *Fake) SetRollout(_ context.Context, r api.RolloutRequest) (api.RuleRollout, error) {
	for i := range f.Snap.Rules {
		rule := &f.Snap.Rules[i]
		if rule.Name != r.Rule || rule.Rollout == nil {
			continue
		}
		return api.RuleRollout{Rule: r.Rule, Rollout: engine.Rollout{Share: r.Share, Configured: rule.Rollout.Configured, By: engine.ByOperator, Since: Now}}, f.Err
	}
	return api.RuleRollout{}, api.NotFound("no rule %q", r.Rule).WithHint("see 'tcpilot rollout list'")
}

// Detach implements api.Backend.
func (f *Fake) Detach(context.Context) error {
	f.Detached = true
	return f.Err
}

// Load implements api.Backend.
func (f *Fake) Load(_ context.Context, r api.LoadRequest) (api.Loaded, error) {
	if f.Err != nil {
		return api.Loaded{}, f.Err
	}
	if filepath.Ext(r.File) != ".o" {
		return api.Loaded{}, api.Invalid("%s is not an eBPF object", r.File).WithHint("compile it with clang -target bpf")
	}
	return api.Loaded{Name: r.Name, File: r.File, Cgroup: r.Cgroup, Since: Now, Programs: []api.Program{{ProgramStats: metrics.ProgramStats{Name: "iw", ID: 78}, Type: "sock_ops"}}}, nil
}

// Unload implements api.Backend.
func (f *Fake) Unload(_ context.Context, name string) error {
	for _, l := range f.Programs {
		if l.Name == name {
			return f.Err
		}
	}
	return api.NotFound("no program %q is loaded", name).WithHint("see 'tcpilot prog list'")
}

// Loaded implements api.Backend.
func (f *Fake) Loaded(context.Context) (api.ProgramList, error) {
	return api.ProgramList{At: Now, Programs: f.Programs}, f.Err
}

// Controls implements api.Backend.
func (f *Fake) Controls(context.Context) (api.ControlList, error) {
	return api.ControlList{At: Now, Controls: f.CCs}, f.Err
}

// LoadControl implements api.Backend.
func (f *Fake) LoadControl(_ context.Context, r api.LoadControlRequest) (api.CongestionControl, error) {
	switch {
	case f.Err != nil:
		return api.CongestionControl{}, f.Err
	case r.File == "" && r.Name != "tcpilot_ledbat":
		return api.CongestionControl{}, api.NotFound("tcpilot has no congestion control %q", r.Name).WithHint("name the file of your own: tcpilot cc load NAME FILE")
	case r.File == "":
		return api.CongestionControl{Name: r.Name, State: "loaded", Source: "RFC 6817", Version: "c0ffee00c0ff", Auto: r.Auto}, nil
	}
	return api.CongestionControl{Name: r.Name, State: "loaded", Source: r.File, User: true, Version: "0123456789ab", Auto: r.Auto}, nil
}

// UnloadControl implements api.Backend.
func (f *Fake) UnloadControl(_ context.Context, name string) (api.Unloaded, error) {
	for _, c := range f.CCs {
		if c.Name == name && c.State == "loaded" {
			return api.Unloaded{Connections: c.Connections}, f.Err
		}
	}
	return api.Unloaded{}, api.NotFound("no congestion control %q is loaded", name).WithHint("see 'tcpilot cc list'")
}
