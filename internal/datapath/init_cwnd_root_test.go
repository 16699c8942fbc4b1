package datapath

import (
	"io"
	"math"
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

// window is a policy with an adapted initial window: each connection gets its share of held packets,
// at most most.
func window(most, held uint64, left time.Duration) func(*path.Policy) {
	return func(p *path.Policy) {
		p.Params.Set(tcp.InitCwnd, most)
		p.Adapted = 1 << tcp.InitCwnd
		p.Window, p.WindowExpires, p.CountFlows = uint32(held), time.Now().Add(left).UnixNano(), true
	}
}

func TestRootAdaptedInitCwnd(t *testing.T) {
	r := newRig(t)
	cwnds := func() (client, server uint32) {
		time.Sleep(3 * time.Millisecond) // a round trip: what others were given counts for one
		c, s := r.pair(t, "127.0.0.1:0")
		defer closeAll(t, c, s)
		return tcpInfo(t, c).Snd_cwnd, tcpInfo(t, s).Snd_cwnd
	}
	for _, c := range []struct {
		name           string
		policy         func(*path.Policy)
		client, server uint32
		most           uint32 // the server's, if it is established later: a window is given in a round trip
	}{
		// The client is established first, and so is the first of two.
		{"room for all", window(64, 1000, time.Minute), 64, 64, 64},
		{"half of it for the second", window(64, 100, time.Minute), 64, 36, 50},
		{"nothing left for the second", window(64, 60, time.Minute), 60, 10, 30},
		{"a share below the kernel's window", window(64, 15, time.Minute), 15, 10, 10},
		{"expired", window(64, 1000, -time.Second), 10, 10, 10},
		{"none", nil, 10, 10, 10},
	} {
		r.policy(t, c.policy)
		if client, server := cwnds(); client != c.client || server < c.server || server > c.most {
			t.Errorf("%s: initial windows %d and %d, want %d and %d", c.name, client, server, c.client, c.server)
		}
	}
}

// Connections that begin within a small part of a round trip get the path's window once, all together.
func TestRootAdaptedInitCwndOfABurst(t *testing.T) {
	for range 5 { // a machine that stalls sends SYNs again
		if burstOfInitCwnd(t) {
			return
		}
	}
	t.Error("SYNs were sent again each time")
}

func burstOfInitCwnd(t *testing.T) (ok bool) {
	t.Helper()
	const held, n, rtt = 6400, 400, 100 * time.Millisecond
	r := newRig(t)
	near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
	r.policy(t, window(64, held, time.Minute))
	l := listen(t, far.NS, netip.AddrPortFrom(far.V4, 0).String(), nil)
	to := addrPort(l.Addr())
	// The other ends, whose round trips are short, keep a window that is their route's.
	far.NS.Run(t, "ip", "route", "replace", netip.PrefixFrom(near.V4, 24).Masked().String(), "dev", far.Name, "initcwnd", "9")
	// Their SYNs wait for the address of the other end, and then leave together.
	far.NS.Run(t, "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=8")
	near.NS.Run(t, "sysctl", "-qw", "net.ipv4.neigh."+near.Name+".unres_qlen_bytes=2000000")
	fds := make([]int, n)
	r.ns.Do(t, func() {
		for i := range fds {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			must(t, err)
			t.Cleanup(func() { unix.Close(fd) })
			if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != unix.EINPROGRESS {
				t.Fatal(err)
			}
			fds[i] = fd
		}
	})
	time.Sleep(rtt)
	var device *net.Interface
	far.NS.Do(t, func() {
		var err error
		device, err = net.InterfaceByName(far.Name)
		must(t, err)
	})
	begun := time.Now()
	near.NS.Run(t, "ip", "neigh", "replace", far.V4.String(), "lladdr", device.HardwareAddr.String(), "dev", near.Name, "nud", "permanent")
	raised, sum := 0, uint32(0)
	for _, fd := range fds {
		var info *unix.TCPInfo
		for range 1000 {
			var err error
			info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			must(t, err)
			if info.State == unix.BPF_TCP_ESTABLISHED {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if info.Total_retrans > 0 {
			return false
		}
		if info.State != unix.BPF_TCP_ESTABLISHED {
			t.Fatalf("a connection is in state %d", info.State)
		}
		if info.Snd_cwnd > 10 {
			raised, sum = raised+1, sum+info.Snd_cwnd
		}
	}
	took := time.Since(begun)
	t.Logf("%d of %d windows raised, %d packets together in %v", raised, n, sum, took)
	if most := 1.05 + float64(took)/float64(rtt); sum < held*9/10 || float64(sum) > most*held { // what is given comes back within a round trip
		t.Errorf("%d connections of a path that holds %d packets begin with %d together in %v", raised, held, sum, took)
	}
	return true
}

// A connection with a raised window is paced, without a limit of the rate. An application that
// chose one keeps it.
func TestRootAdaptedInitCwndIsPaced(t *testing.T) {
	r := newRig(t)
	r.policy(t, window(64, 1000, time.Minute))
	c, _ := r.pair(t, "127.0.0.1:0")
	if got := sockopt(t, c, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE); uint32(got) != 1<<32-1 {
		t.Errorf("greatest pacing rate %d", uint32(got))
	}
	// Of a connection that is not paced, it is 2 windows in a round trip: much more on loopback.
	if rate := tcpInfo(t, c).Pacing_rate; rate > math.MaxUint32 {
		t.Errorf("it is not paced: rate %d", rate)
	}
	chosen := control(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, 1e6) })
	l := listen(t, r.ns, "127.0.0.1:0", nil)
	c = dial(t, r.ns, l.Addr().String(), chosen)
	if got := sockopt(t, c, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE); got != 1e6 {
		t.Errorf("an application's pacing rate of 1e6 became %d", got)
	}
}

// The sample of a connection has its raised window, and how many of its packets were sent
// again after a loss.
func TestRootAdaptedInitCwndLosses(t *testing.T) {
	r := newRig(t)
	near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
	r.policy(t, window(40, 1000, time.Minute))
	l := listen(t, far.NS, netip.AddrPortFrom(far.V4, 0).String(), nil)
	for _, lossy := range []bool{false, true} {
		c := dial(t, r.ns, l.Addr().String(), nil)
		s := accept(t, l)
		isC := ofConn(c)
		restore := func() {}
		if lossy {
			restore = vanish(t, near, far)
		}
		_, err := c.Write(make([]byte, 30*1448))
		must(t, err)
		if lossy {
			time.Sleep(50 * time.Millisecond)
			restore()
		}
		_, err = io.CopyN(io.Discard, s, 30*1448)
		must(t, err)
		exchange(t, c, s, 500_000)
		closeAll(t, c, s)
		got := r.find(t, "client", isC)
		if got.InitCwnd != 40 || got.InitLost > 0 != lossy || got.InitLost > 40 {
			t.Errorf("lossy %v: initial window %d, lost %d", lossy, got.InitCwnd, got.InitLost)
		}
		if lossy && int(got.InitLost) < 20 {
			t.Errorf("lost %d packets of 30", got.InitLost)
		}
	}
}

// Connections are counted from their handshake to their end, however they end.
func TestRootFlowCounts(t *testing.T) {
	r := newRig(t)
	root := path.Root(1, 0)
	r.policy(t, window(64, 1000, time.Minute))
	r.awaitFlows(t, root, 0)
	c1, s1 := r.pair(t, "127.0.0.1:0")
	c2, s2 := r.pair(t, "127.0.0.1:0")
	r.awaitFlows(t, root, 4)
	closeAll(t, c1, s1)
	r.awaitFlows(t, root, 2)
	must(t, c2.(*net.TCPConn).SetLinger(0))
	closeAll(t, c2) // sends a RST: s2 is over, though its process has it open
	r.awaitFlows(t, root, 0)
	closeAll(t, s2)
	r.awaitFlows(t, root, 0)
	if _, err := dialErr(t, r.ns, "", "127.0.0.1:1", nil); err == nil {
		t.Error("connected to a closed port")
	}
	r.awaitFlows(t, root, 0)
	r.policy(t, nil)
	if n, counted := r.Flows(root); counted {
		t.Errorf("%d connections of a path that is not counted any more", n)
	}
}

// awaitFlows waits until a path has the given number of connections: ends are asynchronous.
func (r *rig) awaitFlows(t *testing.T, k path.Key, want uint32) {
	t.Helper()
	n := uint32(0)
	for range 1000 {
		if n, _ = r.Flows(k); n == want {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
	t.Fatalf("%d connections are counted, want %d", n, want)
}

// Counts stay exact over restarts, because rows belong to a rule's paths, and not to classes, which each
// process numbers anew. A walk finds as many connections.
func TestRootFlowCountsOverRestarts(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	l := listen(t, r.ns, "127.0.0.1:0", nil)
	var live []io.Closer
	for id := uint32(1); id <= 4; id++ {
		r.rules(t, class.Table{Classes: []class.Class{{ID: id}}})
		k := path.Root(id, 0)
		r.policyOf(t, k, time.Now().Add(time.Minute), window(64, 1000, time.Minute))
		must(t, r.DeletePoliciesExcept(func(c uint32) bool { return c == id }))
		for i := range 500 {
			c := dial(t, r.ns, l.Addr().String(), nil)
			s := accept(t, l)
			if i%100 == 0 {
				live = append(live, c, s)
				continue
			}
			must(t, c.(*net.TCPConn).SetLinger(0)) // a RST: both ends are over at once
			closeAll(t, c, s)
		}
		r.awaitFlows(t, k, uint32(len(live)))
		tooMany, tooFew := r.completeWalk(t)
		if tooMany+tooFew != 0 {
			t.Errorf("a walk found %d too many, %d too few", tooMany, tooFew)
		}
		r.crash(t)
		r.open(t)
	}
}

// Connections that are older than the programs are counted by the first walk that finds them, if
// their class does not depend on which end opened them. So are those whose class does not exist any more.
func TestRootOlderConnectionsAreCounted(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	walk := func(id, want uint32) {
		t.Helper()
		must(t, r.SetSettings(Settings{Interval: 10 * time.Millisecond}))
		time.Sleep(15 * time.Millisecond)
		tooMany, tooFew := r.completeWalk(t)
		if n, _ := r.Flows(path.Root(id, 0)); n != want || tooMany+tooFew != 0 {
			t.Errorf("%d connections are counted, want %d; %d too many, %d too few", n, want, tooMany, tooFew)
		}
	}
	must(t, r.SetLease(-time.Second)) // nobody sees this connection begin
	c, s := r.pair(t, "127.0.0.1:0")
	must(t, r.SetLease(time.Minute))
	r.policy(t, nil)
	young, youngPeer := r.pair(t, "127.0.0.1:0")
	walk(1, 0) // its policy does not count
	r.rules(t, class.Table{Classes: []class.Class{{ID: 2}}})
	r.policyOf(t, path.Root(2, 0), time.Now().Add(time.Minute), window(64, 1000, time.Minute))
	must(t, r.DeletePoliciesExcept(func(c uint32) bool { return c == 2 }))
	walk(2, 4)
	walk(2, 4)
	closeAll(t, young, youngPeer)
	r.awaitFlows(t, path.Root(2, 0), 2)
	closeAll(t, c, s)
	r.awaitFlows(t, path.Root(2, 0), 0)
}
