package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func adaptRTOMin(r *policy.Rule) { r.Adapt = []tcp.Field{tcp.RTOMin} }

// rtoMinOf is the RTO_MIN in ms that connections to an address get, 0 for the kernel's.
func rtoMinOf(w *world, addr string) uint32 {
	row := w.sink.rows[path.Of(1, 0, ip(addr), 24)]
	us, _ := row.Policy.Params.Get(tcp.RTOMin)
	return uint32(us / 1000)
}

// runRTOMin makes n connections with the RTO_MIN of their path, one a second, some of whose
// retransmissions are spurious.
func runRTOMin(w *world, n int, dsacks uint32) {
	w.gap = second
	for range n {
		ms := rtoMinOf(w, "198.51.100.7")
		if ms == 0 {
			ms = 200
		}
		w.run(1, ip("198.51.100.7"), goods{cubic: 100, bbr: 100, reno: 100},
			func(s *tcp.Sample) { s.MinRTT, s.SRTT, s.RTTVar = 1000, 1200, 100 },
			func(s *tcp.Sample) {
				s.RTOMin, s.DataSegsOut, s.DSACKs = time.Duration(ms)*time.Millisecond, 100, dsacks
			})
	}
}

// RTO_MIN goes down step by step, and up again at once if it causes spurious retransmissions.
// What was observed of each value survives a restart.
func TestAdaptRTOMin(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", adaptRTOMin))
	for _, want := range []uint32{100, 50, 50} {
		if runRTOMin(w, 30, 0); rtoMinOf(w, "198.51.100.7") != want {
			t.Fatalf("RTO_MIN %d ms, want %d", rtoMinOf(w, "198.51.100.7"), want)
		}
	}
	p := w.path("198.51.100.0/24")
	if len(p.Set) != 1 || p.Set[0].Field != "rto_min" || p.Set[0].Value != 50_000 || !strings.Contains(p.Set[0].Why, "0 were spurious") {
		t.Errorf("explained as %+v", p.Set)
	}
	if runRTOMin(w, 10, 1); rtoMinOf(w, "198.51.100.7") != 100 {
		t.Errorf("with spurious retransmissions, RTO_MIN is %d ms, want 100", rtoMinOf(w, "198.51.100.7"))
	}
	p = w.path("198.51.100.0/24")
	if b := p.RTOMinBarred; b == nil || b.RTOMin != 50*time.Millisecond || b.For != 10*time.Minute || p.RTOMin != 100*time.Millisecond {
		t.Errorf("barred is %+v, RTO_MIN %v", b, p.RTOMin)
	}
	if n := w.e.View(time.Unix(0, w.now)).Totals.RTOMinBarred; n["0.05"] != 1 || n["0.1"] != 0 {
		t.Errorf("counted are %v", n)
	}
	if runRTOMin(w, 60, 0); rtoMinOf(w, "198.51.100.7") != 100 {
		t.Errorf("a minute later, RTO_MIN is %d ms, want 100", rtoMinOf(w, "198.51.100.7"))
	}
	changed, _, _ := w.e.Unsaved(100)
	next := newWorld(t, nil)
	restore := func(keep func(StoredPath) bool) error {
		for _, m := range changed {
			keep(m)
		}
		return nil
	}
	if err := next.e.Start([]policy.Rule{learnRule("all", adaptRTOMin)}, policy.Resolver{}, restore, w.now); err != nil {
		t.Fatal(err)
	}
	next.now = w.now
	next.e.Tick(next.now)
	k := path.Of(next.e.View(time.Unix(0, w.now)).Rules[0].Class, 0, ip("198.51.100.7"), 24)
	row := next.sink.rows[k]
	if us, _ := row.Policy.Params.Get(tcp.RTOMin); us != 100_000 {
		t.Errorf("after a restart, RTO_MIN is %d us", us)
	}
	if runRTOMin(w, 600, 0); rtoMinOf(w, "198.51.100.7") != 50 {
		t.Errorf("ten minutes later, RTO_MIN is %d ms, want 50", rtoMinOf(w, "198.51.100.7"))
	}
}

// RTO_MIN goes up again also if the peer reports no spurious retransmissions, and the kernel finds them.
func TestAdaptRTOMinToPeersWithoutDSACKs(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", adaptRTOMin))
	runRTOMin(w, 60, 0)
	if got := rtoMinOf(w, "198.51.100.7"); got != 50 {
		t.Fatalf("RTO_MIN is %d ms", got)
	}
	w.run(10, ip("198.51.100.7"), goods{cubic: 100, bbr: 100, reno: 100}, func(s *tcp.Sample) {
		s.MinRTT, s.SRTT, s.RTTVar, s.RTOMin, s.DataSegsOut, s.Undone = 1000, 1200, 100, 50*time.Millisecond, 100, 1
	})
	if got := rtoMinOf(w, "198.51.100.7"); got != 100 {
		t.Errorf("RTO_MIN is %d ms", got)
	}
	if p := w.path("198.51.100.0/24"); p.RTOMinBarred == nil || p.RTOMinBarred.RTOMin != 50*time.Millisecond {
		t.Errorf("%+v", p.RTOMinBarred)
	}
}

// A path without spurious retransmissions, of a rule that does not adapt RTO_MIN, keeps the
// kernel's.
func TestRTOMinIsNotAdaptedUnasked(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", adaptRule))
	if runRTOMin(w, 100, 0); rtoMinOf(w, "198.51.100.7") != 0 {
		t.Errorf("RTO_MIN %d ms", rtoMinOf(w, "198.51.100.7"))
	}
}

// A path whose applications send little has no outcomes, but gets an RTO_MIN.
func TestAdaptRTOMinWithoutOutcomes(t *testing.T) {
	for _, adapt := range []bool{true, false} {
		rule := learnRule("all", adaptRTOMin)
		if !adapt {
			rule = learnRule("all", adaptRule)
		}
		w := newWorld(t, nil, rule)
		w.gap = second
		w.run(30, ip("198.51.100.7"), goods{cubic: 100, bbr: 100, reno: 100}, func(s *tcp.Sample) {
			*s = tcp.Sample{Kind: s.Kind, Class: s.Class, Remote: s.Remote, Local: s.Local, Arm: s.Arm, CC: s.CC, Flags: s.Flags | tcp.FlagAppLimited, Duration: time.Second,
				BytesAcked: 15_000, DataSegsOut: 100, SegsOut: 100, Delivered: 100, MinRTT: 1000, SRTT: 1200, RTTVar: 100, MSS: 1448, RTOMin: 200 * time.Millisecond}
		})
		if got, want := rtoMinOf(w, "198.51.100.7"), map[bool]uint32{true: 100}[adapt]; got != want {
			t.Errorf("adapt %v: RTO_MIN is %d ms, want %d", adapt, got, want)
		}
	}
}
