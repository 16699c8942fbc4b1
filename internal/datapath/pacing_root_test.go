package datapath

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// pacing is a policy with an adapted pacing rate, bytes/s.
func pacing(rate uint64) func(*path.Policy) {
	return func(p *path.Policy) {
		p.Params.Set(tcp.MaxPacingRate, rate)
		p.Adapted, p.CountFlows, p.WatchLosses = 1<<tcp.MaxPacingRate, true, true
	}
}

func pacingOf(t *testing.T, c net.Conn) uint32 {
	return uint32(sockopt(t, c, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE))
}

// An adapted pacing rate is shared by the path's connections. A rate that the application chose, or
// that the rule sets, stays, and the hold-out is not paced.
func TestRootAdaptedPacing(t *testing.T) {
	r := newRig(t)
	const none = 1<<32 - 1
	heldOut := func(p *path.Policy) { pacing(9e6)(p); p.HoldOut = 1 << 16 }
	uncounted := func(p *path.Policy) { pacing(9e6)(p); p.CountFlows = false }
	byRule := func(p *path.Policy) { p.Params.Set(tcp.MaxPacingRate, 9e6) }
	for _, c := range []struct {
		name           string
		policy         func(*path.Policy)
		client, server uint32
	}{
		// The client is established first, and so is the first of two.
		{"shared", pacing(9e6), 9e6, 4.5e6},
		{"the greatest that programs can pass", pacing(1<<32 - 2), 1<<32 - 2, 1<<31 - 1},
		{"a hold-out", heldOut, none, none},
		{"connections are not counted", uncounted, none, none},
		{"by rule", byRule, 9e6, 9e6},
		{"none", nil, none, none},
	} {
		r.policy(t, c.policy)
		client, server := r.pair(t, "127.0.0.1:0")
		if a, b := pacingOf(t, client), pacingOf(t, server); a != c.client || b != c.server {
			t.Errorf("%s: pacing rates %d and %d, want %d and %d", c.name, a, b, c.client, c.server)
		}
		is := ofConn(client)
		closeAll(t, client, server)
		want := uint64(c.client)
		switch {
		case want == none:
			want = 0
		case c.client != c.server:
			want = uint64(c.server) // as of the ACK after the other began
		}
		if s := r.find(t, c.name, is); s.MaxPacingRate != want {
			t.Errorf("%s: its sample has the pacing rate %d, want %d", c.name, s.MaxPacingRate, want)
		}
	}
}

func TestRootAdaptedPacingLeavesWhatTheApplicationChose(t *testing.T) {
	r := newRig(t)
	r.policy(t, pacing(9e6))
	chosen := control(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, 1e6) })
	l := listen(t, r.ns, "127.0.0.1:0", chosen)
	c := dial(t, r.ns, l.Addr().String(), chosen)
	s := accept(t, l)
	if a, b := pacingOf(t, c), pacingOf(t, s); a != 1e6 || b != 1e6 {
		t.Errorf("an application's pacing rate of 1e6 became %d, and %d of a listener's connection", a, b)
	}
}

// Connections that began before the others are paced anew.
func TestRootAdaptedPacingOfRunningConnections(t *testing.T) {
	r := newRig(t)
	r.policy(t, pacing(8e6))
	client, server := r.pair(t, "127.0.0.1:0")
	r.pair(t, "127.0.0.1:0")
	follow(t, client, server)
	if a, b := pacingOf(t, client), pacingOf(t, server); a != 2e6 || b != 2e6 {
		t.Errorf("pacing rates %d and %d, want 2e6, a quarter of the path's", a, b)
	}
	r.policy(t, func(p *path.Policy) { p.CountFlows, p.WatchLosses = true, true })
	follow(t, client, server)
	if a, b := pacingOf(t, client), pacingOf(t, server); a != noPacing || b != noPacing {
		t.Errorf("pacing rates %d and %d once the path has no limit, want none", a, b)
	}
}

// A paced connection sends at its rate.
func TestRootAdaptedPacingIsARate(t *testing.T) {
	r := newRig(t)
	const rate, bytes = 20e6, 6e6
	r.policy(t, pacing(rate))
	c, s := r.pair(t, "127.0.0.1:0")
	go io.CopyN(io.Discard, s, bytes)
	begun := time.Now()
	_, err := c.Write(make([]byte, bytes))
	must(t, err)
	for tcpInfo(t, c).Bytes_acked < bytes {
		time.Sleep(time.Millisecond)
	}
	// Data is never early, except for what is sent before pacing begins (tcp_update_pacing_rate).
	if took, want := time.Since(begun), time.Duration(bytes/rate*1e9); took < want*8/10 {
		t.Errorf("%g bytes at %g bytes/s took %v, want %v", bytes, rate, took, want)
	}
}

// The sample of a connection that lost packets has the round-trip time of what arrived meanwhile,
// if the policy asks for it.
func TestRootRoundTripTimeOfLosses(t *testing.T) {
	r := newRig(t)
	near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
	l := listen(t, far.NS, netip.AddrPortFrom(far.V4, 0).String(), nil)
	for _, asked := range []bool{true, false} {
		r.policy(t, func(p *path.Policy) { p.Params.Set(tcp.NoDelay, 1); p.WatchLosses = asked })
		c := dial(t, r.ns, l.Addr().String(), nil)
		s := accept(t, l)
		is := ofConn(c)
		exchange(t, c, s, 200_000) // so that the window has room for what follows the lost packets
		restore := vanish(t, near, far)
		_, err := c.Write(make([]byte, 5*1448))
		must(t, err)
		restore()
		_, err = c.Write(make([]byte, 5*1448))
		must(t, err)
		_, err = io.CopyN(io.Discard, s, 10*1448)
		must(t, err)
		closeAll(t, c, s)
		got := r.find(t, "client", is)
		if got.Retrans == 0 || got.LossRTT > 0 != asked || got.LossRTT > 1_000_000 {
			t.Errorf("asked %v: %d retransmits, round-trip time of losses %d us", asked, got.Retrans, got.LossRTT)
		}
	}
}
