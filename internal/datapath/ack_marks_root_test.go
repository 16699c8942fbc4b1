package datapath

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// ackMarks is a policy that marks connections that mostly receive.
func ackMarks(priority, dscp uint64) func(*path.Policy) {
	return func(p *path.Policy) {
		for f, v := range map[tcp.Field]uint64{tcp.AckPriority: priority, tcp.AckDSCP: dscp} {
			if v != 0 {
				p.Params.Set(f, v)
			}
		}
	}
}

// dscp reads back the DSCP of a socket, of its own family.
func dscp(t testing.TB, c socket, v6 bool) int {
	if v6 {
		return sockopt(t, c, unix.IPPROTO_IPV6, unix.IPV6_TCLASS) >> 2
	}
	return sockopt(t, c, unix.IPPROTO_IP, unix.IP_TOS) >> 2
}

// A connection that mostly receives is marked when it is sampled, until it sends. Its peer is not marked.
func TestRootAckMarks(t *testing.T) {
	for _, x := range []struct {
		address        string
		priority, dscp uint64
	}{{"127.0.0.1:0", 6, 46}, {"[::1]:0", 6, 46}, {"127.0.0.1:0", 6, 0}, {"127.0.0.1:0", 0, 46}, {"[::1]:0", 0, 46}} {
		r := newRig(t)
		r.needLive(t)
		r.policy(t, ackMarks(x.priority, x.dscp))
		must(t, r.SetSettings(Settings{Interval: 5 * time.Millisecond}))
		c, s := r.pair(t, x.address)
		v6 := x.address[0] == '['
		check := func(when string, c net.Conn, marked bool) {
			t.Helper()
			want := [2]int{int(x.priority), int(x.dscp)}
			if !marked {
				want = [2]int{}
			}
			if got := [2]int{sockopt(t, c, unix.SOL_SOCKET, unix.SO_PRIORITY), dscp(t, c, v6)}; got != want {
				t.Errorf("%s, %s: priority and DSCP %v, want %v", x.address, when, got, want)
			}
		}
		step := func(from, to net.Conn, n int) {
			t.Helper()
			exchange(t, from, to, n)
			time.Sleep(10 * time.Millisecond)
			r.walk(t, r.ns)
		}
		step(s, c, 1000)
		check("it received little", c, false)
		step(s, c, 1<<20)
		check("it received 1 MB", c, true)
		check("its peer", s, false)
		step(s, c, 1000)
		check("it goes on", c, true)
		step(c, s, 1<<20)
		check("it sent 1 MB", c, false)
		check("its peer, which received that", s, true)
		step(s, c, 1<<20)
		check("it received again", c, true)
		r.policy(t, nil)
		must(t, r.SetSettings(Settings{Interval: 5 * time.Millisecond}))
		step(s, c, 1<<20)
		check("the rule has no marks any more", c, false)
	}
}

// Running connections follow their rule also after it was written again with other pods, but not those of an edited rule: they may
// belong to another one by now.
func TestRootMarksAfterRulesAreWrittenAgain(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	r.policy(t, ackMarks(6, 46))
	c, s := r.pair(t, "127.0.0.1:0")
	for _, x := range []struct {
		what  string
		rules []class.Class
		want  [2]int
	}{
		{"first", []class.Class{{ID: 1}}, [2]int{6, 46}},
		{"again", []class.Class{{ID: 1}}, [2]int{6, 46}},
		{"with another rule", []class.Class{{ID: 1}, {ID: 2}}, [2]int{}},
	} {
		r.rules(t, class.Table{Classes: x.rules})
		r.receive(t, s, c)
		if got := marksOf(t, c, false); got != x.want {
			t.Errorf("%s: priority and DSCP %v, want %v", x.what, got, x.want)
		}
	}
}

// A priority or DSCP that the application chose is kept, whether it did so before or after the
// connection was marked. The hold-out keeps the kernel's values.
func TestRootOtherMarksAreKept(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	receive := func(name string, change func(*path.Policy), before, marked func(fd int) error, priority, wantDSCP int) {
		t.Helper()
		r.policy(t, change)
		must(t, r.SetSettings(Settings{Interval: 5 * time.Millisecond}))
		l := listen(t, r.ns, "127.0.0.1:0", nil)
		c := dial(t, r.ns, l.Addr().String(), before)
		s := accept(t, l)
		for i := range 3 {
			exchange(t, s, c, 1<<20)
			time.Sleep(10 * time.Millisecond)
			r.walk(t, r.ns)
			if i == 0 && marked != nil {
				withFD(c, func(fd int) { must(t, marked(fd)) })
			}
		}
		if p, d := sockopt(t, c, unix.SOL_SOCKET, unix.SO_PRIORITY), dscp(t, c, false); p != priority || d != wantDSCP {
			t.Errorf("%s: priority %d, DSCP %d, want %d, %d", name, p, d, priority, wantDSCP)
		}
		closeAll(t, c, s)
	}
	priority := func(v int) func(fd int) error {
		return func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, v) }
	}
	tos := func(v int) func(fd int) error {
		return func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, v) }
	}
	both := ackMarks(6, 46)
	holdOut := func(p *path.Policy) { both(p); p.HoldOut = 1 << 16 }
	receive("for comparison", both, nil, nil, 6, 46)
	receive("hold-out", holdOut, nil, nil, 0, 0)
	receive("own priority", both, priority(3), nil, 3, 46)
	receive("own priority, while marked", both, nil, priority(2), 2, 46)
	receive("own DSCP", ackMarks(0, 46), tos(8), nil, 2, 2) // the kernel's priority of that type of service
	receive("own DSCP and its priority", both, tos(8), nil, 2, 2)
}

// The packets of a marked connection have the DSCP: seen by a socket that reads all packets of the
// other end's device.
func TestRootAckMarksAreInPackets(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
	r.policy(t, ackMarks(6, 46))
	must(t, r.SetSettings(Settings{Interval: 5 * time.Millisecond}))
	l := listen(t, far.NS, netip.AddrPortFrom(far.V4, 0).String(), nil)
	c := dial(t, near.NS, l.Addr().String(), nil)
	s := accept(t, l)
	count := capture(t, far)
	exchange(t, s, c, 1<<20)
	if n := count(); n[46] != 0 || n[0] == 0 {
		t.Errorf("before it is marked: packets by DSCP %v", n)
	}
	for range 2 { // from its second sample on
		exchange(t, s, c, 1<<20)
		time.Sleep(10 * time.Millisecond)
		r.walk(t, r.ns)
	}
	count()
	exchange(t, s, c, 1<<20)
	if n := count(); n[46] == 0 || n[0] != 0 {
		t.Errorf("marked: packets by DSCP %v", n)
	}
}

// capture counts the IPv4 packets of TCP that arrive at a device, by DSCP; each call returns those
// since the last one.
func capture(t *testing.T, e testenv.End) func() map[int]int {
	t.Helper()
	var fd int
	var err error
	e.NS.Do(t, func() {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		must(t, err)
		dev, err := net.InterfaceByName(e.Name)
		must(t, err)
		const ip = 0x0008 // ETH_P_IP in network order
		must(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ip, Ifindex: dev.Index}))
	})
	t.Cleanup(func() { must(t, unix.Close(fd)) })
	must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20))
	return func() map[int]int {
		by := map[int]int{}
		b := make([]byte, 64)
		for {
			n, from, err := unix.Recvfrom(fd, b, 0)
			if err != nil {
				return by
			}
			if at, ok := from.(*unix.SockaddrLinklayer); ok && at.Pkttype == unix.PACKET_HOST && n >= 20 && b[9] == unix.IPPROTO_TCP {
				by[int(b[1]>>2)]++
			}
		}
	}
}
