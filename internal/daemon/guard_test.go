package daemon

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/record"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// In the recording, paths differ, change, and lose packets: no reason for a guard to act.
func TestGuardsDoNotActOnTheRecording(t *testing.T) {
	data, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	for _, learner := range []string{"thompson", "epsilon-greedy"} {
		for guard, n := range replayUnder(t, recordedConfig, data, learner).Totals.Retired {
			if n != 0 {
				t.Errorf("%s: %s acted %d times", learner, guard, n)
			}
		}
	}
}

// guarded is a recording of connections to one host under one rule.
type guarded struct {
	t   *testing.T
	buf bytes.Buffer
	w   *record.Writer
	at  int64
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{t: t, at: recordedAt}
	var err error
	g.w, err = record.NewWriter(&g.buf, record.Meta{Created: recordedMeta.Created, Rules: []record.RuleName{{Class: 1, Name: "bulk"}}})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// connection records a sample of 5 s of an arm, at a goodput in Mbit/s.
func (g *guarded) connection(cookie uint64, arm string, mbit float64, change func(*tcp.Sample)) {
	g.t.Helper()
	const busy = 5 * time.Second
	s := &tcp.Sample{
		Kind: tcp.KindClose, End: tcp.EndFin, Flags: tcp.FlagOutgoing, NetNS: 1, Class: 1, PolicyID: 1, Cookie: cookie, At: g.at,
		Local: netip.MustParseAddrPort("192.0.2.1:40000"), Remote: netip.MustParseAddrPort("198.51.100.7:5201"),
		Arm: named(arm), CC: named(arm), Duration: busy, Busy: busy, BytesAcked: uint64(mbit * 125e3 * busy.Seconds()),
		MinRTT: 1000, SRTT: 1200, RTTVar: 100, Cwnd: 100, Ssthresh: 80, MSS: 1448,
	}
	s.DataSegsOut = uint32(s.BytesAcked/1448) + 1
	s.SegsOut, s.Delivered = s.DataSegsOut, s.DataSegsOut
	change(s)
	if err := g.w.Write(s); err != nil {
		g.t.Fatal(err)
	}
}

// replay replays what was recorded so far under a rule.
func (g *guarded) replay(rule string) *engine.Snapshot {
	g.t.Helper()
	if err := g.w.Flush(); err != nil {
		g.t.Fatal(err)
	}
	file := filepath.Join(g.t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("rules:\n  - {name: bulk, "+rule+"}\n"), 0o644); err != nil {
		g.t.Fatal(err)
	}
	return replayUnder(g.t, file, g.buf.Bytes(), "")
}

// A recording of spurious timeouts that the peer does not report leads to a longer RTO_MIN.
func TestReplayOfSpuriousTimeouts(t *testing.T) {
	for undone, barred := range map[int16]time.Duration{0: 0, 1: 50 * time.Millisecond} {
		g := newGuarded(t)
		for i, ms := range []int{200, 100, 50} {
			for n := range 30 {
				g.at += int64(time.Second)
				g.connection(uint64(100*i+n+1), "cubic", 0.2, func(s *tcp.Sample) {
					if s.RTOMin = time.Duration(ms) * time.Millisecond; ms == 50 && n >= 20 {
						s.Undone = undone
					}
				})
			}
		}
		got := g.replay("learn: {arms: [cubic]}, adapt: [rto_min]").Paths[0]
		if b := got.RTOMinBarred; (b == nil) != (barred == 0) || b != nil && b.RTOMin != barred {
			t.Errorf("%d undone each: %+v, RTO_MIN %s", undone, b, got.RTOMin)
		}
	}
}

// A recording of running connections that do worse once they are switched stops that, one of connections that do not goes on.
func TestReplayOfSwitchesThatDoHarm(t *testing.T) {
	for mbit, stopped := range map[float64]bool{0.5: true, 80: false} {
		g := newGuarded(t)
		for n := range 200 {
			g.at += int64(time.Second)
			arm, good := "cubic", 4.0
			if n%2 == 0 {
				arm, good = "bbr", 100
			}
			g.connection(uint64(n+1), arm, good, func(*tcp.Sample) {})
		}
		for range 4 {
			for i := range uint64(200) {
				// Of sequential cookies, every 16th keeps its arm (keeps_arm in bpf/sockops/switch.bpf.h).
				cookie, arm, good := 1<<20+i, "bbr", mbit
				if keeps := cookie*0x9e3779b97f4a7c15>>60 == 0; keeps {
					arm, good = "cubic", 4
				}
				g.connection(cookie, arm, good, func(s *tcp.Sample) {
					s.Kind, s.End, s.Flags = tcp.KindInterval, tcp.EndNone, s.Flags|tcp.FlagLater
					if arm == "bbr" {
						s.Flags |= tcp.FlagCCChanged
					}
				})
			}
			g.at += 5 * int64(time.Second)
		}
		got := g.replay("learn: {arms: [cubic, bbr], switch: true}")
		s := got.Paths[0].Switched
		if s == nil {
			t.Fatalf("%g Mbit/s: nothing was compared", mbit)
		}
		if (s.Stopped != nil) != stopped || got.Totals.Retired["switched-worse"] > 0 != stopped {
			t.Errorf("%g Mbit/s: %+v, %v", mbit, s, got.Totals.Retired)
		}
	}
}
