package estimate

import (
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestPeer(t *testing.T) {
	const hour = int64(time.Hour)
	sample := func(at int64, change func(*tcp.Sample)) *tcp.Sample {
		s := &tcp.Sample{Kind: tcp.KindClose, At: at}
		change(s)
		return s
	}
	told := func(s *tcp.Sample) {
		s.Flags, s.PeerDelack, s.PeerReceive = tcp.FlagOutgoing|tcp.FlagPeerSent, 8*time.Millisecond, 1<<22
	}
	lost := func(s *tcp.Sample) { s.Flags = tcp.FlagOutgoing | tcp.FlagPeerSent | tcp.FlagPeerResent }
	failed := func(s *tcp.Sample) { lost(s); s.Kind = tcp.KindFailedConnect }
	p := Path{Peer: new(Peer)}
	p.Observe(sample(hour, failed))
	p.Observe(sample(hour, func(s *tcp.Sample) { s.Flags = tcp.FlagPeerSent })) // an incoming one
	if *p.Peer != (Peer{}) {
		t.Errorf("without an answer: %+v", p.Peer)
	}
	p.Observe(sample(hour, lost))
	for at, want := range map[int64]bool{hour: true, 24 * hour: true, 25 * hour: false, hour - 1: false} {
		if p.Peer.WithoutAt(at) != want {
			t.Errorf("without the option at %v: %v", time.Duration(at), !want)
		}
	}
	p.Observe(sample(30*hour, told))
	p.Observe(sample(31*hour, lost))
	if *p.Peer != (Peer{Delack: 8 * time.Millisecond, Receive: 1 << 22, At: 30 * hour, AnsweredAt: 30 * hour, LostAt: 31 * hour}) || p.Peer.WithoutAt(31*hour) {
		t.Errorf("after an answer: %+v", p.Peer)
	}
	// hosts without tcpilot answer as well
	p = Path{Peer: new(Peer)}
	p.Observe(sample(50*hour, func(s *tcp.Sample) { s.Flags = tcp.FlagOutgoing | tcp.FlagPeerSent }))
	p.Observe(sample(51*hour, lost))
	if p.Peer.WithoutAt(51*hour) || p.Peer.AnsweredAt != 50*hour {
		t.Errorf("after an answer without the option: %+v", p.Peer)
	}
	p.Observe(sample(80*hour, told))
	q := p.Clone()
	p.Observe(sample(82*hour, told))
	if q.Peer.At != 80*hour {
		t.Error("a clone shares what peers told")
	}
}

func TestLeastRTOMin(t *testing.T) {
	var r RTOMin
	if r.LeastAt(1) != 0 {
		t.Error("nothing is barred")
	}
	r.bar(2, 1) // 50 ms
	if got := r.LeastAt(2); got != 100*time.Millisecond {
		t.Errorf("least %v", got)
	}
	if got := r.LeastAt(int64(time.Hour)); got != 0 {
		t.Errorf("least %v after it", got)
	}
}
