package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func adaptDelackMax(r *policy.Rule) { r.Adapt = []tcp.Field{tcp.DelackMax} }

// delackOf is the DELACK_MAX in ms that connections to an address get, 0 for the kernel's.
func delackOf(w *world, addr string) uint32 {
	row := w.sink.rows[path.Of(1, 0, ip(addr), 24)]
	us, _ := row.Policy.Params.Get(tcp.DelackMax)
	return uint32(us / 1000)
}

// runDelack makes n connections with the DELACK_MAX of their path, one a second, every tenth of them in
// the hold-out. Each receives 40 segments in answer to 20 requests. The peer waits for delayed ACKs, and
// there are more of those with a shorter delay.
func runDelack(w *world, n int, more uint32) {
	w.gap = second
	for i := range n {
		ms, acks := delackOf(w, "198.51.100.7"), uint32(20)
		heldOut := i%10 == 9
		if ms == 0 || heldOut {
			ms = 200
		} else {
			acks += more
		}
		w.run(1, ip("198.51.100.7"), goods{cubic: 100, bbr: 100, reno: 100}, func(s *tcp.Sample) {
			*s = tcp.Sample{Kind: tcp.KindInterval, Class: s.Class, Remote: s.Remote, Local: s.Local, Arm: s.Arm, CC: s.CC,
				Flags: s.Flags | tcp.FlagAppLimited | tcp.FlagLater, Duration: 2 * time.Second, BytesAcked: 2000, BytesReceived: 4000,
				DataSegsOut: 20, SegsOut: 20 + acks, DataSegsIn: 40, Delivered: 20, MinRTT: 1000, SRTT: 1200, RTTVar: 100, MSS: 1448,
				DelackMax: time.Duration(ms) * time.Millisecond}
			if heldOut {
				s.Flags |= tcp.FlagHoldOut
			}
		})
	}
}

// A path whose peers wait for delayed ACKs gets a shorter delay, which is taken back at once if it
// costs more ACKs than the kernel's. Paths of a rule that does not adapt it do not.
func TestAdaptDelackMax(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", adaptDelackMax))
	if runDelack(w, 5, 0); delackOf(w, "198.51.100.7") != 0 {
		t.Fatalf("after 5 connections, DELACK_MAX is %d ms", delackOf(w, "198.51.100.7"))
	}
	if runDelack(w, 60, 0); delackOf(w, "198.51.100.7") != 8 {
		t.Fatalf("DELACK_MAX is %d ms, want 8", delackOf(w, "198.51.100.7"))
	}
	p := w.path("198.51.100.0/24")
	if len(p.Set) != 1 || p.Set[0].Field != "delack_max" || p.Set[0].Value != 8000 || !strings.Contains(p.Set[0].Why, "waited for a delayed ACK") {
		t.Errorf("explained as %+v", p.Set)
	}
	for range 20 { // 8 ms costs too much, and then 16 ms
		if runDelack(w, 10, 10); delackOf(w, "198.51.100.7") == 0 {
			break
		}
	}
	if got := delackOf(w, "198.51.100.7"); got != 0 {
		t.Errorf("with more ACKs, DELACK_MAX is %d ms", got)
	}
	if runDelack(w, 120, 0); delackOf(w, "198.51.100.7") != 0 {
		t.Errorf("two minutes later, DELACK_MAX is %d ms", delackOf(w, "198.51.100.7"))
	}
	if runDelack(w, 1200, 0); delackOf(w, "198.51.100.7") != 8 { // barred for 10 minutes, then for 20
		t.Errorf("22 minutes later, DELACK_MAX is %d ms, want 8", delackOf(w, "198.51.100.7"))
	}
}

func TestDelackMaxIsNotAdaptedUnasked(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", adaptRule))
	if runDelack(w, 100, 0); delackOf(w, "198.51.100.7") != 0 {
		t.Errorf("DELACK_MAX %d ms", delackOf(w, "198.51.100.7"))
	}
}
