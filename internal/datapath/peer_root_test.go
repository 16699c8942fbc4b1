package datapath

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// kernelDelack is the longest delay of the kernel's ACKs, unless round trips take longer (TCP_DELACK_MIN).
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

func newPeers(t testing.TB) *peers {
	t.Helper()
	p := &peers{rig: newRig(t)}
	p.near, p.far = testenv.Veth(t, p.ns, testenv.NetNS(t))
	return p
}

// peerAddress is struct peer_address (bpf/sockops/track.bpf.h).
type peerAddress struct {
	NetNS  uint64
	Remote [16]byte
}

// farKey is the key of the far host in the map of peers.
func (p *peers) farKey(t testing.TB) peerAddress {
	return peerAddress{netnsOf(t, p.near.NS), p.far.V4.As16()}
}

// wanted is what one end of a connection should show.
type wanted struct {
	peer   time.Duration // told by the peer; 0: nothing
	flags  tcp.Flags     // FlagPeerSent, FlagPeerResent
	rtoMin uint64        // microseconds
}

func (p *peers) check(t testing.TB, what string, s tcp.Sample, want wanted) {
	t.Helper()
	flags := s.Flags & (tcp.FlagPeerSent | tcp.FlagPeerResent)
	rtoMin := roundUp(uint32(want.rtoMin))
	if got := micros32(s.RTOMin); s.PeerDelack != want.peer || flags != want.flags || got+1000 < rtoMin || got > rtoMin+1000 {
		t.Errorf("%s: peer told %s, want %s; flags %x, want %x; RTO_MIN %d us, want %d", what, s.PeerDelack, want.peer, flags, want.flags, got, rtoMin)
	}
	if (s.PeerReceive != 0) != (want.peer != 0) {
		t.Errorf("%s: peer can receive %d bytes", what, s.PeerReceive)
	}
}

// connect opens a connection from near to a listener of far, sends data both ways, and compares both ends.
func (p *peers) connect(t testing.TB, what string, l net.Listener, client, server wanted) {
	t.Helper()
	c := dial(t, p.near.NS, l.Addr().String(), nil)
	s := accept(t, l)
	exchange(t, c, s, 10_000)
	exchange(t, s, c, 10_000)
	isC, isS := ofConn(c), ofConn(s)
	closeAll(t, c, s)
	p.check(t, what+": client", p.find(t, what, isC), client)
	p.check(t, what+": server", p.find(t, what, isS), server)
}

func (p *peers) listen(t testing.TB, f control) net.Listener {
	t.Helper()
	return listen(t, p.far.NS, netip.AddrPortFrom(p.far.V4, 0).String(), f)
}

var (
	untold = wanted{0, 0, kernelRTOMin}
	asked  = wanted{0, tcp.FlagPeerSent, kernelRTOMin}
	resent = wanted{0, tcp.FlagPeerSent | tcp.FlagPeerResent, kernelRTOMin}
)

// told is the end of a connection whose peer told how long it delays ACKs, with the RTO_MIN that follows.
func told(peer time.Duration, rtoMin uint64) wanted { return wanted{peer, tcp.FlagPeerSent, rtoMin} }

// tick is the length of a jiffy, in microseconds.
func tick() uint64 { return uint64(jiffyMicros()) }

// TestRootPeerOption: both ends send the option and see it. RTO_MIN of both follows from it, and the timeout from that.
func TestRootPeerOption(t *testing.T) {
	p := newPeers(t)
	p.policy(t, peerOption(2000))
	for _, address := range []netip.Addr{p.far.V4, p.far.V6} {
		l := listen(t, p.far.NS, netip.AddrPortFrom(address, 0).String(), nil)
		p.connect(t, address.String(), l, told(kernelDelack, 50_000), told(kernelDelack, 50_000))
	}
	n, err := p.Counters()
	must(t, err)
	if n.Peer != (PeerCounters{Sent: 4, Seen: 4}) {
		t.Errorf("counted are %+v", n.Peer)
	}

	// a rule that shortens the delay of ACKs: 8 ms at 250 Hz
	delack := 2 * tick()
	p.policy(t, func(q *path.Policy) {
		peerOption(2000)(q)
		q.Params.Set(tcp.DelackMax, delack)
	})
	l := p.listen(t, nil)
	c := dial(t, p.near.NS, l.Addr().String(), nil)
	s := accept(t, l)
	for range 60 { // the kernel takes some ten round trips to shorten a timeout
		exchange(t, c, s, 100)
		exchange(t, s, c, 100)
	}
	for what, end := range map[string]net.Conn{"client": c, "server": s} {
		info := tcpInfo(t, end)
		t.Logf("%s: RTO %d us, srtt %d us", what, info.Rto, info.Rtt)
		if info.Rto > 100_000 && info.Rtt < 20_000 {
			t.Errorf("%s: RTO %d us with a srtt of %d us", what, info.Rto, info.Rtt)
		}
		if info.Snd_mss != 1448 {
			t.Errorf("%s: MSS %d: the option takes room from data", what, info.Snd_mss)
		}
	}
	p.connect(t, "short delays", l, told(time.Duration(delack)*time.Microsecond, roundedRTOMin(2000+delack+tick())),
		told(time.Duration(delack)*time.Microsecond, roundedRTOMin(2000+delack+tick())))

	p.policy(t, peerOption(200_000))
	p.connect(t, "round trips are not known", l, told(kernelDelack, kernelRTOMin), told(kernelDelack, kernelRTOMin))
	p.policy(t, nil)
	p.connect(t, "no rule has it", l, untold, untold)
	p.policy(t, func(q *path.Policy) { peerOption(2000)(q); q.Params.Set(tcp.RTOMin, 120_000) })
	p.connect(t, "the rule sets RTO_MIN", l, told(kernelDelack, 120_000), told(kernelDelack, 120_000))
	p.policy(t, func(q *path.Policy) { peerOption(2000)(q); q.HoldOut = 1 << 16 })
	p.connect(t, "hold-out", l, untold, untold)
}

// Only one end has tcpilot, or only one has a rule with the option.
func TestRootPeerOptionOfOneEnd(t *testing.T) {
	p := newPeers(t)
	p.policy(t, peerOption(2000))
	outside := testenv.CG{Path: testenv.CgroupRoot(t)}
	var l net.Listener
	outside.Do(t, func() { l = p.listen(t, nil) })
	c := dial(t, p.near.NS, l.Addr().String(), nil)
	s := accept(t, l)
	exchange(t, c, s, 10_000)
	exchange(t, s, c, 10_000)
	is := ofConn(c)
	closeAll(t, c, s)
	p.check(t, "server without tcpilot", p.find(t, "client", is), asked)

	l = p.listen(t, nil)
	outside.Do(t, func() { c = dial(t, p.near.NS, l.Addr().String(), nil) })
	s = accept(t, l)
	exchange(t, c, s, 10_000)
	exchange(t, s, c, 10_000)
	is = ofConn(s)
	closeAll(t, c, s)
	p.check(t, "client without tcpilot", p.find(t, "server", is), untold)

	p.rules(t, class.Table{Dims: class.DimDirection, Classes: []class.Class{{ID: 1}, {ID: 2}},
		Outgoing: class.Set{1}, Incoming: class.Set{2}})
	p.connect(t, "the server has another rule", l, asked, untold)
}

// A middlebox drops SYNs, or SYN-ACKs, with the option. The SYN that is sent again has no option, and later
// SYNs to this host have none either.
func TestRootPeerOptionDropped(t *testing.T) {
	for _, c := range []struct {
		name string
		at   func(*peers) testenv.End
		save bool // the application has SYNs saved: the kernel has them for each SYN-ACK
	}{
		{"SYN", func(p *peers) testenv.End { return p.far }, false},
		{"SYN-ACK", func(p *peers) testenv.End { return p.near }, false},
		{"SYN-ACK, saved", func(p *peers) testenv.End { return p.near }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPeers(t)
			p.policy(t, func(p *path.Policy) {
				peerOption(2000)(p)
				p.Params.Set(tcp.SynAckRTO, 3000) // the SYN is sent again first; both timers have a second
			})
			l := p.listen(t, func(fd int) error {
				if !c.save {
					return nil
				}
				return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, 1)
			})
			restore := meddle(t, c.at(p), dropOption())
			began := time.Now()
			conn := dial(t, p.near.NS, l.Addr().String(), nil)
			took := time.Since(began)
			s := accept(t, l)
			exchange(t, conn, s, 1000)
			is := ofConn(conn)
			closeAll(t, conn, s)
			p.check(t, "first", p.find(t, "first", is), resent)
			if took < 900*time.Millisecond || took > 4*time.Second {
				t.Errorf("the first one took %s, want the timeout of one SYN", took)
			}
			p.connect(t, "second", l, untold, untold)
			restore()
			p.connect(t, "third", l, untold, untold)
			n, err := p.Counters()
			must(t, err)
			if n.Peer.Resent != 1 || n.Peer.Omitted != 2 {
				t.Errorf("counted are %+v", n.Peer)
			}
		})
	}
	// A host that has answered SYNs with the option lost one: without the option for a minute only.
	t.Run("an ordinary loss", func(t *testing.T) {
		p := newPeers(t)
		p.policy(t, peerOption(2000))
		l := p.listen(t, nil)
		both := told(kernelDelack, 50_000)
		p.connect(t, "before", l, both, both)
		restore := meddle(t, p.far, dropOption())
		c := dial(t, p.near.NS, l.Addr().String(), nil)
		s := accept(t, l)
		restore()
		closeAll(t, c, s)
		var host struct{ AnsweredNs, WithoutNs uint64 } // struct peer_host
		must(t, p.maps.PeerHosts.Lookup(p.farKey(t), &host))
		if left := time.Duration(host.WithoutNs) - time.Duration(monotonic()); left > time.Minute || left < 0 {
			t.Errorf("without the option for %s", left)
		}
	})
}

// A middlebox replaces the option by padding: the connection is like one to a host without tcpilot.
func TestRootPeerOptionStripped(t *testing.T) {
	p := newPeers(t)
	p.policy(t, peerOption(2000))
	l := p.listen(t, nil)
	restore := meddle(t, p.far, stripOption())
	p.connect(t, "SYN stripped", l, asked, untold)
	restore()
	meddle(t, p.near, stripOption())
	p.connect(t, "SYN-ACK stripped", l, asked, told(kernelDelack, 50_000))
}

// An option of another length or version is ignored.
func TestRootPeerOptionOfAnotherVersion(t *testing.T) {
	p := newPeers(t)
	p.policy(t, peerOption(2000))
	l := p.listen(t, nil)
	for name, bytes := range map[string][]byte{
		"version 2":    {254, 8, 0x54, 0x50, 0x20, 20, 0, 40},
		"no delay":     {254, 8, 0x54, 0x50, 0x10, 20, 0, 0},
		"shorter":      {254, 6, 0x54, 0x50, 0x10, 20, 1, 1},
		"other kind":   {253, 8, 0x54, 0x50, 0x10, 20, 0, 40},
		"other id":     {254, 8, 0xf9, 0x89, 0x10, 20, 0, 40},
		"ends earlier": {0, 8, 0x54, 0x50, 0x10, 20, 0, 40},
	} {
		restore := meddle(t, p.near, replaceOption(bytes)) // in the SYN-ACK
		p.connect(t, name, l, asked, told(kernelDelack, 50_000))
		restore()
	}
	for name, bytes := range map[string][]byte{
		"beyond":   {254, 20, 0x54, 0x50, 0x10, 20, 0, 40},
		"length 0": {254, 0, 0x54, 0x50, 0x10, 20, 0, 40},
	} {
		restore := meddle(t, p.near, replaceOption(bytes))
		c := dial(t, p.near.NS, l.Addr().String(), nil)
		s := accept(t, l)
		restore()
		is := ofConn(c)
		closeAll(t, c, s)
		if s := p.find(t, name, is); s.PeerDelack != 0 || s.PeerReceive != 0 {
			t.Errorf("%s: %+v", name, s)
		}
		// Linux 7.2 drops such a SYN-ACK; then the host is asked nothing for a while
		must(t, p.maps.PeerHosts.Delete(p.farKey(t)))
	}
	restore := meddle(t, p.near, replaceOption([]byte{254, 8, 0x54, 0x50, 0x1f, 99, 0xff, 0xff}))
	p.connect(t, "too much", l, told(200*time.Millisecond, kernelRTOMin), told(kernelDelack, 50_000))
	restore()
}

// It is sent to private addresses, and to the own network; to others only by rules that name remote addresses.
func TestRootPeerOptionOnlyNearby(t *testing.T) {
	p := newPeers(t)
	p.policy(t, peerOption(2000))
	p.near.NS.Run(t, "ip", "addr", "add", "203.0.113.1/32", "dev", p.near.Name)
	p.far.NS.Run(t, "ip", "addr", "add", "198.51.100.1/32", "dev", p.far.Name)
	p.near.NS.Run(t, "ip", "route", "add", "198.51.100.1", "dev", p.near.Name, "src", "203.0.113.1")
	p.far.NS.Run(t, "ip", "route", "add", "203.0.113.1", "dev", p.far.Name, "src", "198.51.100.1")
	l := listen(t, p.far.NS, "198.51.100.1:0", nil)
	p.connect(t, "public", l, untold, untold)
	p.rules(t, class.Table{Classes: []class.Class{{ID: 1, PeerAny: true}}})
	p.connect(t, "public, named", l, told(kernelDelack, 50_000), told(kernelDelack, 50_000))
}

// A SYN cookie keeps nothing of the SYN.
func TestRootPeerOptionWithSYNCookies(t *testing.T) {
	p := newPeers(t)
	p.policy(t, peerOption(2000))
	testenv.Sysctl(t, p.far.NS, "net.ipv4.tcp_syncookies", "2") // always
	p.connect(t, "cookie", p.listen(t, nil), asked, untold)
}

// Listeners that are older than the rule get the flag by a walk, and lose it after the rule.
func TestRootPeerOptionOfOldListeners(t *testing.T) {
	p := newPeers(t)
	p.needLive(t)
	must(t, p.SetSettings(Settings{}))
	l := p.listen(t, nil)
	p.policy(t, peerOption(2000))
	p.connect(t, "before the walk", l, asked, untold)
	p.walk(t, p.far.NS)
	for _, f := range p.Features() {
		if f.Name == featureOld && f.Err != nil {
			testenv.Missing(t, fmt.Sprintf("TCP_BPF_SOCK_OPS_CB_FLAGS (Linux 6.12): %v", f.Err))
		}
	}
	p.connect(t, "after the walk", l, told(kernelDelack, 50_000), told(kernelDelack, 50_000))
	must(t, p.SetSettings(Settings{}))
	p.walk(t, p.far.NS)
	must(t, p.SetSettings(Settings{Fields: 1 << tcp.PeerOption}))
	p.connect(t, "after it was taken back", l, asked, untold)
}

// roundedRTOMin is the RTO_MIN of a connection that needs so many microseconds (peer_rto_min in bpf/sockops/rto_min.bpf.h).
func roundedRTOMin(us uint64) uint64 {
	switch {
	case us <= 10_000:
		return 10_000
	case us <= 20_000, us > 25_000 && us <= 30_000:
		return us
	case us <= 25_000:
		return 25_000
	}
	return 50_000
}

// Running connections follow the value of their path if it is shorter, and keep the delay of ACKs that their peer was told.
func TestRootPeerOptionOfRunningConnections(t *testing.T) {
	p := newPeers(t)
	p.needLive(t)
	delack := 2 * tick()
	policy := func(change func(*path.Policy)) {
		t.Helper()
		p.policy(t, change)
		must(t, p.SetSettings(Settings{Fields: 1<<tcp.NumFields - 1, Interval: 10 * time.Millisecond}))
	}
	shortened := func(us uint64) func(*path.Policy) {
		return func(q *path.Policy) {
			peerOption(us)(q)
			q.Params.Set(tcp.DelackMax, delack)
			q.Adapted = 1 << tcp.DelackMax
		}
	}
	policy(shortened(25_000))
	l := p.listen(t, nil)
	c := dial(t, p.near.NS, l.Addr().String(), nil)
	s := accept(t, l)
	is := intervalOf(c)
	for _, x := range []struct {
		name   string
		policy func(*path.Policy)
		want   uint64
	}{
		{"as it began", shortened(25_000), roundedRTOMin(25_000 + delack + tick())},
		{"the path needs less", shortened(5000), roundedRTOMin(5000 + delack + tick())},
		{"nothing is known", shortened(200_000), roundedRTOMin(5000 + delack + tick())},
		{"less again, ACKs are not adapted any more", peerOption(1000), roundedRTOMin(1000 + delack + tick())},
	} {
		policy(x.policy)
		for range 3 {
			exchange(t, c, s, 1000)
			time.Sleep(15 * time.Millisecond)
			_, _, err := p.Walk(func() (bool, error) { p.walk(t, p.near.NS); return true, nil })
			must(t, err)
			p.caughtUp(t)
		}
		last := p.latest(is)
		if got, want := micros32(last.RTOMin), roundUp(uint32(x.want)); got+1000 < want || got > want+1000 {
			t.Errorf("%s: RTO_MIN %d us, want %d", x.name, got, want)
		}
		if got := last.DelackMax; got > 100*time.Millisecond {
			t.Errorf("%s: ACKs are delayed by up to %s, the peer was told %d us", x.name, got, delack)
		}
	}
}

// TestRootPeerOptionOfOverlappingNetworks: hosts with the same addresses in other network namespaces are others.
func TestRootPeerOptionOfOverlappingNetworks(t *testing.T) {
	p := newPeers(t)
	p.policy(t, peerOption(2000))
	other := &peers{rig: p.rig}
	other.near, other.far = testenv.Veth(t, testenv.NetNS(t), testenv.NetNS(t))
	address := func(at testenv.End, own, peer netip.Addr) {
		at.NS.Run(t, "ip", "addr", "flush", "dev", at.Name, "scope", "global")
		at.NS.Run(t, "ip", "addr", "add", own.String()+"/32", "dev", at.Name)
		at.NS.Run(t, "ip", "route", "add", peer.String(), "dev", at.Name, "src", own.String())
	}
	address(other.near, p.near.V4, p.far.V4)
	address(other.far, p.far.V4, p.near.V4)
	other.near.V4, other.far.V4 = p.near.V4, p.far.V4
	l := p.listen(t, nil)
	others := listen(t, other.far.NS, l.Addr().String(), nil)
	both := told(kernelDelack, 50_000)

	t.Run("a host that does not answer", func(t *testing.T) {
		restore := meddle(t, other.far, dropOption())
		other.connect(t, "other", others, resent, untold)
		restore()
		other.connect(t, "other again", others, untold, untold)
		p.connect(t, "host", l, both, both)
	})
	t.Run("a handshake that does not end", func(t *testing.T) {
		vanish(t, other.far, other.near)
		must(t, p.maps.PeerHosts.Delete(other.farKey(t)))
		before, err := p.Counters()
		must(t, err)
		from := netip.AddrPortFrom(p.near.V4, 40_000)
		other.near.NS.Do(t, func() {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			must(t, err)
			t.Cleanup(func() { must(t, unix.Close(fd)) })
			must(t, unix.Bind(fd, &unix.SockaddrInet4{Port: int(from.Port()), Addr: from.Addr().As4()}))
			to := addrPort(others.Addr())
			if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != unix.EINPROGRESS {
				t.Fatalf("connect: %v", err)
			}
		})
		eventually(t, func() error {
			n, err := p.Counters()
			if err == nil && n.Peer.Seen == before.Peer.Seen {
				err = unix.EAGAIN
			}
			return err
		})
		c, err := dialErr(t, p.near.NS, from.String(), l.Addr().String(), nil)
		must(t, err)
		s := accept(t, l)
		exchange(t, c, s, 10_000)
		exchange(t, s, c, 10_000)
		isC, isS := ofConn(c), ofConn(s)
		closeAll(t, c, s)
		p.check(t, "client", p.find(t, "client", isC), both)
		p.check(t, "server", p.find(t, "server", isS), both)
	})
}

// Connections of MPTCP do not have the option: there is no room for it, and subflows acknowledge for each
// other.
func TestRootPeerOptionNotForMPTCP(t *testing.T) {
	r := newRig(t)
	r.policy(t, peerOption(2000))
	for _, s := range r.subflows(t) {
		if s.Has(tcp.FlagPeerSent) || s.PeerDelack != 0 {
			t.Errorf("flags %x, peer told %s", s.Flags, s.PeerDelack)
		}
	}
}

// TestMeasurePeerOption is the claim: where both ends have told delays of 8 ms, a lost request takes 30 ms or less.
func TestMeasurePeerOption(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		p := newPeers(t)
		for _, c := range []struct {
			what   string
			policy func(*path.Policy)
			median func(ms float64)
		}{
			{"with the option", func(q *path.Policy) { peerOption(2000)(q); q.Params.Set(tcp.DelackMax, 2*tick()) },
				func(ms float64) { testenv.AtMost(m, "lost request, ms", ms, 30) }},
			{"rto_min: 50 ms", rtoMin(50_000), func(ms float64) { testenv.Between(m, "with an RTO_MIN of 50 ms, ms", ms, 50, 65) }},
			{"without", nil, func(ms float64) { testenv.AtLeast(m, "without either, ms", ms, 190) }},
		} {
			p.policy(t, c.policy)
			l := p.listen(t, nil)
			conn := dial(t, p.near.NS, l.Addr().String(), nil)
			s := accept(t, l)
			for range 60 {
				exchange(t, conn, s, 100)
				exchange(t, s, conn, 100)
			}
			restore := meddle(t, p.far, loseRequests())
			var slow []time.Duration
			for len(slow) < 15 {
				began := time.Now()
				exchange(t, conn, s, 100)
				if took := time.Since(began); took > 8*time.Millisecond {
					slow = append(slow, took)
				}
				exchange(t, s, conn, 100)
			}
			restore()
			slices.Sort(slow)
			t.Logf("%s: %v", c.what, slow)
			c.median(float64(slow[len(slow)/2].Microseconds()) / 1000)
		}
	})
}

// ---- middleboxes -----------------------------------------------------------

// optionAt is where the option begins in a SYN or SYN-ACK over IPv4: after 20 bytes of other options (MSS, SACK, timestamps,
// window scale).
const optionAt = 14 + 20 + 20 + 20

// meddle runs a program on what arrives at an end. It ends at the label "pass".
func meddle(t testing.TB, at testenv.End, insns asm.Instructions) (restore func()) {
	t.Helper()
	insns = append(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}, insns...)
	insns = append(insns, asm.Mov.Imm(asm.R0, 0).WithSymbol("pass"), asm.Return())
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, AttachType: ebpf.AttachTCXIngress, Instructions: insns, License: "GPL"})
	must(t, err)
	defer prog.Close()
	var detach func()
	at.NS.Do(t, func() {
		device, err := net.InterfaceByName(at.Name)
		must(t, err)
		detach = testenv.AttachCls(t, device.Index, prog, ebpf.AttachTCXIngress)
	})
	return sync.OnceFunc(func() { at.NS.Do(t, detach) })
}

// withOption runs what follows on SYNs and SYN-ACKs with the option.
func withOption(body ...asm.Instruction) asm.Instructions {
	return append(asm.Instructions{
		asm.LoadAbs(14+9, asm.Byte), // protocol
		asm.JNE.Imm(asm.R0, unix.IPPROTO_TCP, "pass"),
		asm.LoadAbs(14+20+13, asm.Byte), // flags
		asm.And.Imm(asm.R0, 2),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.LoadAbs(optionAt, asm.Word),
		asm.LoadImm(asm.R1, 0xfe085450, asm.DWord),
		asm.JNE.Reg(asm.R0, asm.R1, "pass"),
	}, body...)
}

func dropOption() asm.Instructions { return withOption(asm.Mov.Imm(asm.R0, 2), asm.Return()) } // TCX_DROP

// loseRequests drops one packet of eight that has 100 bytes of data.
func loseRequests() asm.Instructions {
	return asm.Instructions{
		asm.LoadAbs(14+2, asm.Half), // length, with timestamps
		asm.JNE.Imm(asm.R0, 20+32+100, "pass"),
		asm.FnGetPrandomU32.Call(),
		asm.And.Imm(asm.R0, 7),
		asm.JNE.Imm(asm.R0, 0, "pass"),
		asm.Mov.Imm(asm.R0, 2),
		asm.Return(),
	}
}

func stripOption() asm.Instructions { return replaceOption([]byte{1, 1, 1, 1, 1, 1, 1, 1}) }

// replaceOption writes other bytes in place of the option. The checksum is not verified: a veth pair computes none.
func replaceOption(bytes []byte) asm.Instructions {
	var word int64
	for i, b := range bytes {
		word |= int64(b) << (8 * i)
	}
	return withOption(
		asm.LoadImm(asm.R2, word, asm.DWord),
		asm.StoreMem(asm.RFP, -8, asm.R2, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, optionAt),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, -8),
		asm.Mov.Imm(asm.R4, 8),
		asm.Mov.Imm(asm.R5, 0),
		asm.FnSkbStoreBytes.Call(),
	)
}
