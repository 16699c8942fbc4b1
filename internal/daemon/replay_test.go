package daemon

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/record"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

var update = flag.Bool("update", false, "write the golden files of the recorded samples")

const (
	// The kernel's own samples, and the configuration that they were recorded under: see
	// TestRecordSamples of test/e2e.
	recorded       = "../../test/samples/kernel.tcpilot"
	recordedConfig = "testdata/kernel.yaml"
	// Synthetic samples as an earlier tcpilot recorded them. They are written again only for
	// another version of the format.
	synthetic    = "../../test/samples/paths.tcpilot"
	replayConfig = "testdata/replay.yaml"
)

func named(name string) tcp.CC {
	c, _ := tcp.ParseCC(name)
	return c
}

var arms = []tcp.CC{named("cubic"), named("bbr"), named("reno")}

// server is one remote of the synthetic samples, with the goodput of each arm in Mbit/s.
type server struct {
	addr string
	port uint16
	rtt  uint32 // microseconds
	good [3]float64
	// turned, if set, is the goodput in the second half.
	turned [3]float64
}

// servers: two in one /24 that differ, one whose path becomes lossy, one far, one IPv6,
// and a slow link.
var servers = []server{
	{addr: "203.0.113.9", port: 5201, rtt: 10_000, good: [3]float64{20, 160, 22}},
	{addr: "203.0.113.10", port: 5201, rtt: 10_000, good: [3]float64{800, 500, 700}},
	{addr: "198.51.100.1", port: 5201, rtt: 20_000, good: [3]float64{300, 200, 280}, turned: [3]float64{12, 180, 11}},
	{addr: "192.0.2.77", port: 443, rtt: 90_000, good: [3]float64{40, 60, 30}},
	{addr: "2001:db8:5::1", port: 443, rtt: 30_000, good: [3]float64{90, 45, 85}},
	{addr: "233.252.0.3", port: 5201, rtt: 60_000, good: [3]float64{0.4, 0.9, 0.4}},
}

const recordedAt = int64(1_700_000_000_000_000_000)

// samples generates synthetic samples, the same every time: n connections, ten a second.
// What they show is known, and there can be any number of them. Arms are drawn as by a
// learner that has found the best one but still tries others.
func samples(n int, perSecond int64) iter.Seq[*tcp.Sample] {
	return func(yield func(*tcp.Sample) bool) {
		rng := rand.New(rand.NewPCG(3, 7))
		for i := range n {
			h := &servers[rng.IntN(len(servers))]
			good := h.good
			if i > n/2 && h.turned[0] != 0 {
				good = h.turned
			}
			s := connection(rng, h, good, i > n/10)
			s.At = recordedAt + int64(i)*int64(time.Second)/perSecond
			s.Cookie = uint64(i) + 1
			if !yield(s) {
				return
			}
		}
	}
}

func connection(rng *rand.Rand, h *server, good [3]float64, settled bool) *tcp.Sample {
	arm := rng.IntN(3)
	if settled && rng.IntN(4) != 0 {
		for i := range good {
			if good[i] > good[arm] {
				arm = i
			}
		}
	}
	special := rng.IntN(25)
	if special == 0 {
		arm = 0 // hold-out: the kernel's default
	}
	busy := time.Duration(200+rng.IntN(1800)) * time.Millisecond
	rate := good[arm] * 125e3 * math.Exp(0.25*rng.NormFloat64())
	s := &tcp.Sample{
		Kind: tcp.KindClose, End: tcp.EndFin, Flags: tcp.FlagOutgoing, NetNS: 1, Cgroup: 1, Class: 11, PolicyID: 1,
		Local: netip.MustParseAddrPort("192.0.2.1:40000"), Remote: netip.AddrPortFrom(netip.MustParseAddr(h.addr), h.port),
		Arm: arms[arm], CC: arms[arm], Duration: busy + 5*time.Millisecond, Connect: time.Duration(h.rtt) * time.Microsecond, Busy: busy,
		BytesAcked: uint64(rate * busy.Seconds()), DeliveryRate: uint64(rate),
		MinRTT: h.rtt, SRTT: h.rtt + h.rtt/4, RTTVar: h.rtt / 10, Cwnd: 200, Ssthresh: 100, MSS: 1448,
	}
	if h.port == 443 {
		s.Class = 10
	}
	s.DataSegsOut = uint32(s.BytesAcked/1448) + 1
	s.SegsOut, s.Delivered = s.DataSegsOut+3, s.DataSegsOut
	if good[1] > good[0] {
		s.Retrans = s.DataSegsOut / 50
	}
	switch special {
	case 0:
		s.Flags |= tcp.FlagHoldOut
		s.Arm = tcp.CC{}
	case 1:
		s.End = tcp.EndReset
	case 2:
		s.RwndLtd = s.Busy
	case 3:
		s.Flags |= tcp.FlagAppCC
	case 4:
		s.Kind, s.End = tcp.KindInterval, tcp.EndNone
	}
	return s
}

var recordedMeta = record.Meta{
	Created: time.Unix(0, recordedAt).UTC(), Version: "test", Kernel: "none",
	Rules: []record.RuleName{{Class: 10, Name: "web"}, {Class: 11, Name: "bulk"}},
}

func recording(t testing.TB, n int, perSecond int64) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := record.NewWriter(&b, recordedMeta)
	if err != nil {
		t.Fatal(err)
	}
	for s := range samples(n, perSecond) {
		if err := w.Write(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func replay(t testing.TB, data []byte, learner string) *engine.Snapshot {
	t.Helper()
	return replayUnder(t, replayConfig, data, learner)
}

func replayUnder(t testing.TB, config string, data []byte, learner string) *engine.Snapshot {
	t.Helper()
	r, err := record.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	snap, err := Replay(context.Background(), config, learner, r.Meta(), r.All())
	if err != nil {
		t.Fatal(err)
	}
	if r.Err() != nil {
		t.Fatal(r.Err())
	}
	return snap
}

// golden compares with a file, or writes it with -update.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; if that is meant: go test ./internal/daemon -run Replay -update\ngot:\n%.4000s", file, got)
	}
}

// decisions writes a snapshot for comparison: figures are rounded, because machines
// differ in the last digit.
func decisions(s *engine.Snapshot) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "learner %s\nsamples %v\nignored %v\n", s.Learner, s.Totals.Samples, s.Totals.Ignored)
	for _, r := range s.Rules {
		fmt.Fprintf(&b, "rule %s class %d: %s, %d paths, %d samples\n", r.Name, r.Class, r.Action, r.Paths, r.Samples)
	}
	for _, p := range s.Paths {
		fmt.Fprintf(&b, "%s %s: %s, %d samples, min_rtt %s, hold-out %.2f", p.Rule, p.Prefix, p.Reason, p.Samples, time.Duration(p.MinRTT)*time.Microsecond, p.HoldOut.Share)
		if p.HoldOut.Count > 0 {
			fmt.Fprintf(&b, " of %d", p.HoldOut.Count)
		}
		if g := p.HoldOut.Gain; g.Known() {
			fmt.Fprintf(&b, ", gain %.1f", g.Ratio)
		}
		fmt.Fprintf(&b, "\n  network %s: %s", p.NetworkType, p.NetworkWhy)
		b.WriteByte('\n')
		for _, a := range p.Arms {
			fmt.Fprintf(&b, "  %-6s weight %.2f, %3d scored, %3d greedy, mean %.1f\n", a.CC, a.Weight, a.Count, a.Greedy, a.Mean)
		}
	}
	return []byte(b.String())
}

// Recorded samples of real connections lead to these decisions.
func TestReplayOfRecordedSamples(t *testing.T) {
	data, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	for _, learner := range []string{"thompson", "epsilon-greedy"} {
		t.Run(learner, func(t *testing.T) {
			golden(t, filepath.Join("testdata", "kernel."+learner+".golden"), decisions(replayUnder(t, recordedConfig, data, learner)))
		})
	}
}

// A replay shows each field that a rule adapts, on each path: with its value, or why that is the kernel's.
func TestReplayShowsWhatIsAdapted(t *testing.T) {
	data, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	adapted, kernel := 0, 0
	for _, p := range replayUnder(t, recordedConfig, data, "").Paths {
		for _, s := range p.Set {
			if s.Computed() && s.Why != "" {
				adapted++
			}
		}
		for _, k := range p.Kernel {
			if k.Why == "" {
				t.Errorf("%s: %s has no reason", p.Prefix, k.Field)
			}
			kernel++
		}
		if n := adapted + kernel; n%len(policy.AdaptedByDefault) != 0 {
			t.Errorf("%s: %d fields are shown in all", p.Prefix, n)
		}
	}
	if adapted == 0 || kernel == 0 {
		t.Errorf("%d adapted values, %d of the kernel", adapted, kernel)
	}
}

// What the recording must show, independent of the golden file: with 5 % loss bbr has
// several times the reward of the others; hosts have paths of their own.
func TestReplayOfRecordedSamplesFindsTheBestArm(t *testing.T) {
	data, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	r, err := record.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	var samples, resets, limited, ipv6, resent int
	for s := range r.All() {
		samples++
		resets += count(s.End != tcp.EndFin)
		limited += count(s.Flags&tcp.FlagAppLimited != 0)
		ipv6 += count(s.Remote.Addr().Is6())
		resent += count(s.Retrans > 0)
	}
	if r.Err() != nil || samples < 250 || resets == 0 || limited == 0 || ipv6 == 0 || resent == 0 || r.Meta().Kernel == recordedMeta.Kernel {
		t.Errorf("recorded on %q: %d samples, %d resets, %d limited, %d IPv6, %d with losses, %v",
			r.Meta().Kernel, samples, resets, limited, ipv6, resent, r.Err())
	}
	best := best(replayUnder(t, recordedConfig, data, ""))
	if best["10.77.2.0/24"] != "bbr" || best["10.77.1.0/24"] == "" || best["10.77.3.0/24"] == "" {
		t.Errorf("arms of the greatest share: %v, want bbr for the lossy 10.77.2.0/24", best)
	}
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// best is the arm of the greatest share, by prefix.
func best(snap *engine.Snapshot) map[string]string {
	all := map[string]string{}
	for _, p := range snap.Paths {
		if len(p.Arms) == 0 {
			continue
		}
		best := p.Arms[0]
		for _, a := range p.Arms {
			if a.Weight > best.Weight {
				best = a
			}
		}
		all[p.Prefix] = best.CC.String()
	}
	return all
}

// A file that an earlier tcpilot recorded leads to the same decisions as the same samples
// recorded now.
func TestReplayOfAnOlderFile(t *testing.T) {
	old, err := os.ReadFile(synthetic)
	if err != nil {
		t.Fatal(err)
	}
	data := recording(t, 1500, 10)
	if _, err := record.NewReader(bytes.NewReader(old)); err != nil && *update { // another version of the format
		if err := os.WriteFile(synthetic, data, 0o644); err != nil {
			t.Fatal(err)
		}
		old = data
	}
	for _, learner := range []string{"thompson", "epsilon-greedy"} {
		t.Run(learner, func(t *testing.T) {
			got := decisions(replay(t, data, learner))
			golden(t, filepath.Join("testdata", "replay."+learner+".golden"), got)
			if again := decisions(replay(t, old, learner)); !bytes.Equal(got, again) {
				t.Error("the samples of the older file lead to other decisions")
			}
		})
	}
}

// What the synthetic samples must show, independent of the golden file.
func TestReplayFindsTheBestArms(t *testing.T) {
	found := best(replay(t, recording(t, 1500, 10), ""))
	for prefix, want := range map[string]string{
		"203.0.113.9/32": "bbr", "203.0.113.10/32": "cubic", "198.51.100.0/24": "bbr",
		"192.0.2.0/24": "bbr", "2001:db8:5::/48": "cubic", "233.252.0.0/24": "bbr",
	} {
		if found[prefix] != want {
			t.Errorf("%s: %q has the greatest share, want %s", prefix, found[prefix], want)
		}
	}
}

// Samples of rules that the configuration does not have are classified again.
func TestReplayUnderOtherRules(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	rules := "rules:\n  - {name: v6, match: {remote: [\"2001:db8::/32\"]}, learn: {}}\n  - {name: rest, learn: {}}\n"
	if err := os.WriteFile(file, []byte(rules), 0o644); err != nil {
		t.Fatal(err)
	}
	snap, err := Replay(context.Background(), file, "", recordedMeta, samples(600, 10))
	if err != nil {
		t.Fatal(err)
	}
	var v6, rest uint64
	for _, r := range snap.Rules {
		switch r.Name {
		case "v6":
			v6 = r.Samples
		case "rest":
			rest = r.Samples
		}
	}
	if v6 == 0 || v6+rest != 600 || snap.Totals.Unattributed != 0 {
		t.Errorf("v6 %d, rest %d, unattributed %d", v6, rest, snap.Totals.Unattributed)
	}
}

func TestReplayEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	n := 0
	_, err := Replay(ctx, replayConfig, "", recordedMeta, func(yield func(*tcp.Sample) bool) {
		for s := range samples(1000, 10) {
			if n++; n == 10 {
				cancel()
			}
			if !yield(s) {
				return
			}
		}
	})
	if err == nil || n > 10 {
		t.Errorf("error %v after %d samples", err, n)
	}
}

// BenchmarkReplayMillion reads a recording of one million samples, 5,000 a second,
// from memory.
func BenchmarkReplayMillion(b *testing.B) {
	data := recording(b, 1_000_000, 5000)
	for b.Loop() {
		replay(b, data, "")
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/million")
}
