package datapath

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// kernelDelack is how long the kernel delays ACKs at most, if round trips take less (TCP_DELACK_MIN).
const kernelDelack = 40 * time.Millisecond

// peerOption is a policy with the peer option: RTO_MIN, in microseconds, towards peers that do not delay ACKs.
func peerOption(us uint64) func(*path.Policy) {
	return func(p *path.Policy) { p.Params.Set(tcp.PeerOption, us) }
}

// peers are two hosts that reach each other, both with tcpilot.
type peers struct {
	*rig
	near, far testenv.End
}

// connect opens a connection from near to far.
func (p *peers) connect(t testing.TB) (client, server net.Conn) {
	t.Helper()
	l := listen(t, p.far.NS, netip.AddrPortFrom(p.far.V4, 0).String(), nil)
	client = dial(t, p.near.NS, l.Addr().String(), nil)
	return client, accept(t, l)
}

// TestRootPeerOption: both ends send the option and see it. RTO_MIN of both follows from it.
func TestRootPeerOption(t *testing.T) {
	r := newRig(t)
	p := &peers{rig: r}
	p.near, p.far = testenv.Veth(t, r.ns, testenv.NetNS(t))
	r.policy(t, peerOption(2000))
	c, s := p.connect(t)
	exchange(t, c, s, 100)
	exchange(t, s, c, 100)
	isC, isS := ofConn(c), ofConn(s)
	for what, end := range map[string]net.Conn{"client": c, "server": s} {
		t.Logf("%s: rto %d us", what, tcpInfo(t, end).Rto)
	}
	closeAll(t, c, s)
	for what, is := range map[string]func(*tcp.Sample) bool{"client": isC, "server": isS} {
		s := r.find(t, what, is)
		t.Logf("%s: %+v", what, s)
		if s.PeerDelack != kernelDelack || !s.Has(tcp.FlagPeerSent) || s.Has(tcp.FlagPeerResent) {
			t.Errorf("%s: peer told %s, flags %b", what, s.PeerDelack, s.Flags)
		}
	}
	n, err := r.Counters()
	must(t, err)
	t.Logf("%+v", n.Peer)
}
