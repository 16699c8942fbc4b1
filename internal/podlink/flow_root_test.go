package podlink

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// A connection whose way is known takes the new one when a route or a device changes.
func TestRootFlowFollowsRoutes(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.wanted())
	forEach(t, func(t *testing.T, address func(*testenv.Pod) netip.Addr) {
		c := r.a.Dial(t, "udp", netip.AddrPortFrom(address(r.c), 9).String())
		defer c.Close()
		// await sends a datagram each millisecond until a counter has grown by as many as were sent lately.
		await := func(counter string) {
			t.Helper()
			for begun, before := time.Now(), r.counts()[counter]; r.counts()[counter] < before+50; time.Sleep(time.Millisecond) {
				if time.Since(begun) > 5*time.Second {
					t.Fatalf("%s grew by %d in 5 s", counter, r.counts()[counter]-before)
				}
				_, _ = c.Write([]byte("x")) // an error may be the answer to an earlier one
			}
		}
		// settle makes a change, and waits until it is known.
		settle := func(change func()) {
			t.Helper()
			change()
			for until := coarse(t) + 11*time.Millisecond; coarse(t) < until; { // FLOW_US
				time.Sleep(time.Millisecond)
			}
		}
		// leftover is how many more are routed, at most, once a change is known.
		leftover := func(counter string, change func()) uint64 {
			t.Helper()
			settle(change)
			before := r.counts()[counter]
			for range 20 {
				_, _ = c.Write([]byte("x"))
			}
			return r.counts()[counter] - before
		}
		route := func(verb string) func() {
			return func() { r.node.IP(t, "route "+verb+" prohibit "+address(r.c).String()) }
		}
		await("pod-to-wire")
		if n, _ := r.knownFlows(); n == 0 {
			t.Error("the route is not in the cache")
		}
		if n := leftover("pod-to-wire", route("add")); n > 0 {
			t.Errorf("%d packets took a route that had gone", n)
		}
		await("prohibit")
		route("del")()
		await("pod-to-wire")
		w := r.wanted()
		w.Devices = nil
		if n := leftover("pod-to-wire", func() { r.node.Do(t, func() { r.set(w) }) }); n > 0 {
			t.Errorf("%d packets were routed to a device that is not for routing any more", n)
		}
		w = r.wanted()
		w.Pods[0].Route = false
		if n := leftover("pod-to-wire", func() { r.node.Do(t, func() { r.set(w) }) }); n > 0 {
			t.Errorf("%d packets of a pod were routed that is not to be routed any more", n)
		}
		r.node.Do(t, func() { r.set(r.wanted()) })
		await("pod-to-wire")
		w = r.wanted()
		w.Pods[0].Limits.Egress = 1e9
		settle(func() { r.node.Do(t, func() { r.set(w) }) })
		sendOne(c) // its route is looked up
		routed, passed := r.counts()["pod-to-wire"], r.links.Meters(r.a.HostIndex).Egress.Passed
		sendOne(c)
		if r.counts()["pod-to-wire"] != routed+1 || r.links.Meters(r.a.HostIndex).Egress.Passed == passed {
			t.Error("a pod's limit does not apply to a connection whose route is known")
		}
		r.node.Do(t, func() { r.set(r.wanted()) })
	})
}

// sendOne sends one datagram. A write that returns the error which an earlier datagram met sends nothing.
func sendOne(c net.Conn) {
	for _, err := c.Write([]byte("x")); err != nil; _, err = c.Write([]byte("x")) {
	}
}

// coarse is CLOCK_MONOTONIC_COARSE, which advances with the cache's clock.
func coarse(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// knownFlows is how many routes the cache had, and how many of them connections share.
func (r *rig) knownFlows() (n, shared int) {
	r.t.Helper()
	const until, transport = 8, 16 + 36 // in struct flow (bpf/pod/maps.bpf.h); transport is in its key
	var at uint32
	var flow []byte
	for all := r.links.objs.PodFlows.Iterate(); all.Next(&at, &flow); {
		if binary.NativeEndian.Uint64(flow[until:]) == 0 {
			continue
		}
		n++
		if binary.NativeEndian.Uint32(flow[transport:]) > 0xff { // ALL_PORTS
			shared++
		}
	}
	return n, shared
}

// A packet that is longer than those before it is checked against the MTU.
func TestRootFlowLength(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.wanted())
	r.node.IP(t, "route change "+r.far.V4.String()+" via 10.2.0.2 dev wire mtu lock 1000")
	var server net.PacketConn
	var err error
	r.c.Do(t, func() { server, err = net.ListenPacket("udp", netip.AddrPortFrom(r.c.V4, 9).String()) })
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for range 20 {
		got := r.grown(func() {
			c := r.a.Dial(t, "udp", netip.AddrPortFrom(r.c.V4, 9).String())
			defer c.Close()
			for _, n := range []int{10, 10, 1200} {
				if _, err := c.Write(make([]byte, n)); err != nil {
					t.Fatal(err)
				}
			}
		})
		if got["pod-to-wire"] != 2 || got["too-long"] != 1 || len(got) != 2 {
			t.Fatalf("%v", got)
		}
		r.a.Run(t, "ip", "route", "flush", "cache") // the MTU that the pod has learned
	}
}

// A connection to a service may have the addresses and ports of a connection that was not translated shortly before, and the
// other way round. The DSCP of what the server sends differs from that of its SYN-ACK.
func TestRootFlowIsNotThatBefore(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.wanted())
	service, server := netip.MustParseAddrPort("10.96.0.1:80"), netip.AddrPortFrom(r.b.V4, 81)
	r.node.Run(t, "iptables-legacy", strings.Fields("-t nat -A PREROUTING -d 10.96.0.1 -p tcp --dport 80 -j DNAT --to-destination "+server.String())...)
	l := r.b.Listen(t, "tcp", server.String())
	defer l.Close()
	go serve(l, func(c net.Conn) {
		if raw, err := c.(*net.TCPConn).SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TOS, 18<<2) })
		}
		_, _ = io.Copy(c, c)
	})
	// talk exchanges some bytes and forgets the connection (RST). A packet with the wrong addresses is dropped, and sent again
	// after 200 ms, or a second.
	slow := 0
	talk := func(to netip.AddrPort, port int) {
		t.Helper()
		begun := time.Now()
		defer func() {
			if time.Since(begun) > 190*time.Millisecond {
				slow++
			}
		}()
		var conn net.Conn
		var err error
		d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: r.a.V4.AsSlice(), Port: port}, Control: func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
		}}
		r.a.Do(t, func() { conn, err = d.Dial("tcp", to.String()) })
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		for range 5 {
			if _, err = conn.Write([]byte("x")); err == nil {
				_, err = conn.Read(make([]byte, 1))
			}
			if err != nil {
				t.Fatalf("%s from port %d: %v", to, port, err)
			}
		}
	}
	got := r.grown(func() {
		for port := 20000; port < 20100; port++ {
			talk(server, port)
			talk(service, port)
			talk(server, port)
			if slow > 10 {
				t.Fatalf("%d of %d connections had to send something again", slow, 3*(port-20000+1))
			}
		}
	})
	if got["pod-to-pod"] < 1000 || got["nat"] < 500 || got["destination"] < 500 {
		t.Errorf("%v", got)
	}
}

// hasKernelContext reports whether the programs can find out if routes depend on ports (bpf_cast_to_kern_ctx, Linux 6.2).
func hasKernelContext(t *testing.T) bool {
	t.Helper()
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	var f *btf.Func
	return kernel.TypeByName("bpf_cast_to_kern_ctx", &f) == nil
}

// Connections between the same addresses share a route, unless it depends on ports: by a rule, or by the hash that chooses among
// several next hops.
func TestRootFlowSharesRoutes(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.wanted())
	var conns []net.Conn
	for port := range uint16(64) {
		c := r.a.Dial(t, "udp", netip.AddrPortFrom(r.c.V4, 8000+port).String())
		defer c.Close()
		conns = append(conns, c)
	}
	// all sends a datagram by each connection, at once: within the time that a route is shared.
	all := func() {
		for _, c := range conns {
			sendOne(c)
		}
	}
	all()
	if _, shared := r.knownFlows(); (shared > 0) != hasKernelContext(t) {
		t.Errorf("connections share %d routes", shared)
	}
	r.node.IP(t, "route add unreachable 0.0.0.0/0 table 100")
	r.node.Run(t, "ip", strings.Fields("rule add table 100 ipproto udp dport 8001 iif "+r.a.Host)...)
	time.Sleep(20 * time.Millisecond) // FLOW_US
	for range 10 {
		if got := r.grown(func() { all(); r.settled() }); got["pod-to-wire"] != 63 || got["unreachable"] != 1 {
			t.Fatalf("a rule for a port: %v", got)
		}
	}
	r.node.Run(t, "ip", strings.Fields("rule del table 100 ipproto udp dport 8001 iif "+r.a.Host)...)

	r.node.IP(t, "link add other type veth peer name other1\nlink set other up\nlink set other1 up\naddress add 10.9.0.1/24 dev other")
	r.node.Run(t, "sysctl", "-qw", "net.ipv4.fib_multipath_hash_policy=1")
	r.node.IP(t, "route change "+r.far.V4.String()+" nexthop via 10.2.0.2 dev wire nexthop via 10.9.0.2 dev other")
	time.Sleep(20 * time.Millisecond) // FLOW_US
	if got := r.grown(func() { all(); r.settled() }); got["pod-to-wire"] < 10 || got["device"] < 10 {
		t.Errorf("two next hops: %v", got)
	}
}
