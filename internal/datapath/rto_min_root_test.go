package datapath

import (
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

const kernelRTOMin = 200_000 // microseconds: TCP_RTO_MIN

// rtoMin is a policy with an adapted RTO_MIN in microseconds.
func rtoMin(us uint64) func(*path.Policy) {
	return func(p *path.Policy) {
		p.Params.Set(tcp.RTOMin, us)
		p.Adapted = 1 << tcp.RTOMin
	}
}

// roundUp rounds a timeout of the kernel up to its clock.
func roundUp(us uint32) uint32 { return (us + jiffyMicros() - 1) / jiffyMicros() * jiffyMicros() }

func micros32(d time.Duration) uint32 { return uint32(d.Microseconds()) }

// checkRTOMin compares RTO_MIN of a closed connection's sample, and its timeout before, with what
// is wanted in microseconds.
func (r *rig) checkRTOMin(t *testing.T, what string, c net.Conn, want uint32) {
	t.Helper()
	is, info := ofConn(c), tcpInfo(t, c)
	closeAll(t, c)
	s := r.find(t, what, is)
	if got, want := micros32(s.RTOMin), roundUp(want); got+1000 < want || got > want+1000 {
		t.Errorf("%s: RTO_MIN %d us, want %d", what, got, want)
	}
	// It is rounded up to a jiffy, and the handshake of a slow machine takes as long.
	if low := info.Rto < kernelRTOMin; low != (want < kernelRTOMin) && s.SRTT < kernelRTOMin/8 {
		t.Errorf("%s: timeout %d us, srtt %d us", what, info.Rto, s.SRTT)
	}
}

// An outgoing connection begins with the adapted RTO_MIN: its first timeout follows from it. An
// incoming one gets it when it is established, after its first round-trip time.
func TestRootAdaptedRTOMin(t *testing.T) {
	r := newRig(t)
	r.policy(t, rtoMin(50_000))
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		c, s := r.pair(t, address)
		isS := ofConn(s)
		r.checkRTOMin(t, "outgoing "+address, c, 50_000)
		closeAll(t, s)
		if got := micros32(r.find(t, "incoming", isS).RTOMin); got > roundUp(50_000)+1000 {
			t.Errorf("incoming %s: RTO_MIN %d us", address, got)
		}
	}
	r.policy(t, rtoMin(10_000))
	c, _ := r.pair(t, "127.0.0.1:0")
	r.checkRTOMin(t, "10 ms", c, 10_000)
}

// Connections without an adapted value, of the hold-out, incoming ones without SACK, those of MPTCP, or whose application or
// namespace chose a value, keep their RTO_MIN.
func TestRootOtherRTOMinIsKept(t *testing.T) {
	r := newRig(t)
	plain := func(change func(*path.Policy)) func() net.Conn {
		return func() net.Conn {
			r.policy(t, change)
			c, _ := r.pair(t, "127.0.0.1:0")
			return c
		}
	}
	holdOut := func(p *path.Policy) { rtoMin(50_000)(p); p.HoldOut = 1 << 16 }
	r.checkRTOMin(t, "no value", plain(nil)(), kernelRTOMin)
	r.checkRTOMin(t, "hold-out", plain(holdOut)(), kernelRTOMin)
	r.checkRTOMin(t, "expired", func() net.Conn {
		r.policyOf(t, path.Root(1, 0), time.Now().Add(-time.Second), rtoMin(50_000))
		c, _ := r.pair(t, "127.0.0.1:0")
		return c
	}(), kernelRTOMin)
	t.Run("incoming without SACK", func(t *testing.T) {
		near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
		testenv.Sysctl(t, far.NS, "net.ipv4.tcp_sack", "0")
		r.policy(t, rtoMin(50_000))
		l := listen(t, near.NS, netip.AddrPortFrom(near.V4, 0).String(), nil)
		dial(t, far.NS, l.Addr().String(), nil)
		r.checkRTOMin(t, "incoming, no SACK", accept(t, l), kernelRTOMin)
	})
	t.Run("MPTCP", func(t *testing.T) {
		r := newRig(t)
		r.policy(t, rtoMin(50_000))
		for _, s := range r.subflows(t) {
			if micros32(s.RTOMin)+1000 < kernelRTOMin {
				t.Errorf("a subflow has an RTO_MIN of %s", s.RTOMin)
			}
		}
	})
	t.Run("chosen by the application", func(t *testing.T) {
		const tcpRTOMinUs = 45 // TCP_RTO_MIN_US
		l := listen(t, r.ns, "127.0.0.1:0", nil)
		missing := false
		c := dial(t, r.ns, l.Addr().String(), func(fd int) error {
			err := unix.SetsockoptInt(fd, unix.SOL_TCP, tcpRTOMinUs, 120_000)
			missing = err == syscall.ENOPROTOOPT
			return nil
		})
		if missing {
			testenv.Missing(t, "TCP_RTO_MIN_US (Linux 6.15)")
		}
		r.checkRTOMin(t, "application", c, 120_000)
	})
	t.Run("chosen by the sysctl", func(t *testing.T) {
		if !sysctlExists("net.ipv4.tcp_rto_min_us") {
			testenv.Missing(t, "tcp_rto_min_us (Linux 6.11)")
		}
		testenv.Sysctl(t, r.ns, "net.ipv4.tcp_rto_min_us", "120000")
		r.checkRTOMin(t, "sysctl", plain(rtoMin(50_000))(), 120_000)
	})
}

// A route's RTO_MIN is in force whatever the connection's is.
func TestRootAdaptedRTOMinOfARoute(t *testing.T) {
	r := newRig(t)
	near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
	near.NS.Run(t, "ip", "route", "replace", far.V4.String(), "dev", near.Name, "rto_min", "300ms")
	r.policy(t, rtoMin(50_000))
	l := listen(t, far.NS, netip.AddrPortFrom(far.V4, 0).String(), nil)
	c := dial(t, near.NS, l.Addr().String(), nil)
	accept(t, l)
	if got := tcpInfo(t, c).Rto; got < 300_000 {
		t.Errorf("timeout %d us, the route's least one is 300 ms", got)
	}
}

// Running connections get a shorter value of their path at the next walk. They keep it when the path gets a longer one, or the
// kernel's: these would not lengthen their timeout. The hold-out, and what an application chose meanwhile, stay as they are.
func TestRootRunningConnectionsFollowRTOMin(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	policy := func(change func(*path.Policy)) {
		t.Helper()
		r.policy(t, change)
		must(t, r.SetSettings(Settings{Interval: 10 * time.Millisecond}))
	}
	policy(nil)
	c, s := r.pair(t, "127.0.0.1:0")
	policy(func(p *path.Policy) { rtoMin(50_000)(p); p.HoldOut = 1 << 16 })
	out, outPeer := r.pair(t, "127.0.0.1:0")
	isC, isOut := intervalOf(c), intervalOf(out)
	// walk lets tcpilot see all connections; a sample has the value from before the walk.
	walk := func() {
		t.Helper()
		for range 3 {
			exchange(t, c, s, 1000)
			exchange(t, out, outPeer, 1000)
			time.Sleep(15 * time.Millisecond)
			r.completeWalk(t)
			r.caughtUp(t)
		}
	}
	for _, x := range []struct {
		name   string
		policy func(*path.Policy)
		want   uint32
	}{
		{"lowered", rtoMin(50_000), 50_000},
		{"lower", rtoMin(25_000), 25_000},
		{"raised", rtoMin(100_000), 25_000},
		{"the kernel's", nil, 25_000},
		{"lower again", rtoMin(10_000), 10_000},
		{"all are in the hold-out", func(p *path.Policy) { rtoMin(10_000)(p); p.HoldOut = 1 << 16 }, 10_000},
	} {
		policy(x.policy)
		walk()
		if got, want := micros32(r.latest(isC).RTOMin), roundUp(x.want); got+1000 < want || got > want+1000 {
			t.Errorf("%s: RTO_MIN %d us, want %d", x.name, got, want)
		}
		if got := micros32(r.latest(isOut).RTOMin); got+1000 < kernelRTOMin {
			t.Errorf("%s: hold-out has an RTO_MIN of %d us", x.name, got)
		}
	}
}

// What one network namespace owns is left alone there, and only there: also on running connections.
func TestRootRunningConnectionsFollowRTOMinUnlessItIsOwned(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	own, other := r.yields(t, 1<<tcp.RTOMin, false)
	for _, x := range []struct {
		name   string
		yields []Yield
		named  bool
		want   uint32
	}{
		{"another namespace's", []Yield{other}, false, 50_000},
		{"the namespace's own", []Yield{other, own}, false, kernelRTOMin},
		{"named by the rule", []Yield{other, own}, true, 50_000},
	} {
		r.rules(t, class.Table{Classes: []class.Class{{ID: 1, Named: x.named}}})
		r.policy(t, nil)
		c, s := r.pair(t, "127.0.0.1:0")
		r.policy(t, rtoMin(50_000))
		must(t, r.SetSettings(Settings{Interval: 10 * time.Millisecond, Yields: x.yields}))
		for range 4 { // a sample has the value from before its walk
			exchange(t, c, s, 1000)
			time.Sleep(15 * time.Millisecond)
			r.completeWalk(t)
		}
		r.caughtUp(t)
		if got, want := micros32(r.latest(intervalOf(c)).RTOMin), roundUp(x.want); got+1000 < want || got > want+1000 {
			t.Errorf("%s: RTO_MIN %d us, want %d", x.name, got, want)
		}
	}
}

// A connection that has measured its round trips keeps its RTO_MIN as long as they vary little: with a longer one, its timeout would
// stay as it is, and not follow when they vary more. For the same reason, it keeps it if the peer has no SACK, which is known only
// after its first round trip.
func TestRootTimeoutsFollowTheVariation(t *testing.T) {
	t.Run("without SACK", func(t *testing.T) {
		r := newRig(t)
		testenv.Sysctl(t, r.ns, "net.ipv4.tcp_sack", "0")
		followsTheVariation(t, r, func(*testing.T, *rig, net.Conn, net.Conn) {})
	})
	for name, then := range map[string]func(t *testing.T, r *rig, c, s net.Conn){
		"released": func(t *testing.T, r *rig, _, _ net.Conn) { r.release(t, nothing) },
		"raised": func(t *testing.T, r *rig, c, s net.Conn) {
			r.needLive(t)
			r.policy(t, rtoMin(100_000))
			must(t, r.SetSettings(Settings{Interval: 10 * time.Millisecond}))
			for range 3 {
				exchange(t, c, s, 1000)
				time.Sleep(15 * time.Millisecond)
				r.completeWalk(t)
				r.caughtUp(t)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { followsTheVariation(t, newRig(t), then) })
	}
}

func followsTheVariation(t *testing.T, r *rig, then func(t *testing.T, r *rig, c, s net.Conn)) {
	t.Helper()
	r.policy(t, rtoMin(50_000))
	c, s := r.pair(t, "127.0.0.1:0")
	follow(t, c, s)
	then(t, r, c, s)
	for i := range 40 {
		exchange(t, c, s, 1)
		if i%2 != 0 {
			time.Sleep(60 * time.Millisecond) // the ACK is delayed by 40 ms
		}
		exchange(t, s, c, 1)
	}
	info := tcpInfo(t, c)
	if info.Rttvar < 5000 {
		t.Fatalf("round trips of %d us vary by %d us", info.Rtt, info.Rttvar)
	}
	// RFC 6298 (2.3), rounded down to a tick of the clock. The kernel lowers the variation by a quarter of the difference in each round trip.
	if want := info.Rtt + 3*info.Rttvar; info.Rto < want {
		t.Errorf("round trips of %d us vary by %d us: timeout %d us, want %d or more", info.Rtt, info.Rttvar, info.Rto, want)
	}
}

// The sender's sample counts the segments that its peer reported as received twice.
func TestRootSamplesCountDSACKs(t *testing.T) {
	r := newRig(t)
	near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
	r.policy(t, rtoMin(10_000))
	l := listen(t, far.NS, netip.AddrPortFrom(far.V4, 0).String(), nil)
	c := dial(t, near.NS, l.Addr().String(), nil)
	s := accept(t, l)
	is := ofConn(c)
	exchange(t, c, s, 1000)
	restore := vanish(t, far, near) // of ACKs: data that has arrived is sent again
	exchange(t, c, s, 1000)
	time.Sleep(50 * time.Millisecond)
	restore()
	time.Sleep(200 * time.Millisecond)
	exchange(t, c, s, 1000)
	closeAll(t, c, s)
	got := r.find(t, "client", is)
	if got.DSACKs == 0 || got.DSACKs > got.Retrans {
		t.Errorf("%d segments reported twice, %d retransmitted: %+v", got.DSACKs, got.Retrans, got)
	}
}
