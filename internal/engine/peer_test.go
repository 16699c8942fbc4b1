package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// peerOptionOf is what connections to an address get, in ms; 0: no option.
func peerOptionOf(w *world, k path.Key) uint64 {
	row := w.sink.rows[k]
	us, _ := row.Policy.Params.Get(tcp.PeerOption)
	return us / 1000
}

// The option is sent to hosts of which nothing is known, with the kernel's RTO_MIN. Then the value follows the path's round trips, goes up
// with spurious retransmissions, and the option is left out once only SYNs without it are answered.
func TestAdaptPeerOption(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", func(r *policy.Rule) { r.Adapt = []tcp.Field{tcp.PeerOption} }))
	if _, adapted := w.e.Fields(); adapted&(1<<tcp.PeerOption) == 0 {
		t.Error("the datapath is not asked for the option")
	}
	run := func(n int, change func(s *tcp.Sample)) {
		w.gap = second
		w.run(n, ip("198.51.100.7"), goods{cubic: 100, bbr: 100, reno: 100}, func(s *tcp.Sample) {
			s.MinRTT, s.SRTT, s.RTTVar = 1000, 1200, 100
			s.Flags |= tcp.FlagOutgoing | tcp.FlagPeerSent
		}, change)
	}
	told := func(dsacks uint32) func(s *tcp.Sample) {
		return func(s *tcp.Sample) {
			s.PeerDelack, s.PeerReceive = 8*time.Millisecond, 1<<22
			s.RTOMin, s.DataSegsOut, s.DSACKs = 16*time.Millisecond, 100, dsacks
		}
	}
	own := path.Of(1, 0, ip("198.51.100.7"), 24)
	run(1, told(0))
	if got := peerOptionOf(w, path.Root(1, 0)); got != 200 {
		t.Errorf("unknown hosts get %d ms", got)
	}
	run(30, told(0))
	if got := peerOptionOf(w, own); got != 2 {
		t.Errorf("the path gets %d ms", got)
	}
	p := w.path("198.51.100.0/24")
	if p.Peer == nil || p.Peer.Delack != 8*time.Millisecond || p.Peer.Receive != 1<<22 || !p.Peer.LostAt.IsZero() {
		t.Errorf("shown is %+v", p.Peer)
	}
	if len(p.Set) != 1 || p.Set[0].Field != "peer_option" || !strings.Contains(p.Set[0].Why, "latest told 8ms") {
		t.Errorf("explained as %+v", p.Set)
	}
	run(10, told(1))
	if got := peerOptionOf(w, own); got != 25 {
		t.Errorf("with spurious retransmissions at about 10 ms, the path gets %d ms", got)
	}
	if b := w.path("198.51.100.0/24").RTOMinBarred; b == nil || b.RTOMin != 10*time.Millisecond {
		t.Errorf("barred is %+v", b)
	}
	run(1, func(s *tcp.Sample) { s.Flags |= tcp.FlagPeerResent })
	if got := peerOptionOf(w, own); got == 0 {
		t.Error("one SYN was lost, of a path that answers: the option is left out")
	}
	w.now += int64(25 * time.Hour)
	run(1, func(s *tcp.Sample) { s.Flags |= tcp.FlagPeerResent })
	if got := peerOptionOf(w, own); got != 0 {
		t.Errorf("SYNs with the option are dropped: the path gets %d ms", got)
	}
	if p := w.path("198.51.100.0/24").Peer; p == nil || p.LostAt.IsZero() {
		t.Errorf("shown is %+v", p)
	}
}
