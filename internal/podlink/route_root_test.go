package podlink

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// Connections between pods of a node, and with those of another one, do not use the host's stack.
func TestRootRoute(t *testing.T) {
	r := newRig(t)
	r.open()
	if err := r.links.CanRoute(); err != nil {
		t.Fatal(err)
	}
	r.set(r.wanted())
	forEach(t, func(t *testing.T, address func(*testenv.Pod) netip.Addr) {
		got := r.grown(func() { exchange(t, r.a.NS, r.b.NS, address(r.b), 1<<20) })
		if got["pod-to-pod"] < 20 || len(got) != 1 {
			t.Errorf("on the node: %v", got)
		}
		got = r.grown(func() { exchange(t, r.a.NS, r.c.NS, address(r.c), 1<<20) })
		if got["pod-to-wire"] < 10 || got["wire-to-pod"] < 10 || len(got) != 2 {
			t.Errorf("to the other node: %v", got)
		}
		got = r.grown(func() { exchange(t, r.c.NS, r.b.NS, address(r.b), 1<<20) })
		if got["pod-to-wire"] < 10 || got["wire-to-pod"] < 10 || len(got) != 2 {
			t.Errorf("from the other node: %v", got)
		}
	})
}

// Each host on the way decreases the TTL by one, also without its stack, and the packet is intact.
func TestRootTTL(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.wanted())
	forEach(t, func(t *testing.T, address func(*testenv.Pod) netip.Addr) {
		for _, c := range []struct {
			what     string
			from, to *testenv.Pod
			want     int
			grown    string
		}{
			{"on the node", r.a, r.b, 63, "pod-to-pod"}, {"to the other node", r.a, r.c, 62, "pod-to-wire"},
			{"from the other node", r.c, r.a, 62, "wire-to-pod"},
		} {
			ttl := 0
			got := r.grown(func() { ttl = arrivingTTL(t, c.from.NS, c.to.NS, address(c.to)) })
			if ttl != c.want || got[c.grown] != 1 || len(got) != 1 {
				t.Errorf("%s: TTL %d, want %d; %v", c.what, ttl, c.want, got)
			}
		}
	})
}

// arrivingTTL sends a datagram with TTL 64 and returns the TTL with which it arrives.
func arrivingTTL(t *testing.T, from, to *testenv.NS, address netip.Addr) (ttl int) {
	t.Helper()
	var l *net.UDPConn
	var err error
	to.Do(t, func() { l, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, 9))) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	level, ask, is := unix.SOL_IP, unix.IP_RECVTTL, unix.IP_TTL
	if address.Is6() {
		level, ask, is = unix.SOL_IPV6, unix.IPV6_RECVHOPLIMIT, unix.IPV6_HOPLIMIT
	}
	setOption(t, l, level, ask, 1)
	send(t, from, address)
	if err := l.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	data, control := make([]byte, 10), make([]byte, 100)
	n, m, _, _, err := l.ReadMsgUDP(data, control)
	if err != nil || string(data[:n]) != "x" {
		t.Fatalf("%q, %v", data[:n], err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:m])
	if err != nil || len(messages) != 1 || int(messages[0].Header.Type) != is {
		t.Fatalf("%+v, %v", messages, err)
	}
	return int(messages[0].Data[0])
}

func setOption(t *testing.T, c syscall.Conn, level, option, value int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, option, value) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}

// answer sends a datagram from a socket with an option and returns the error that the network answers
// within a time.
func answer(t *testing.T, from *testenv.NS, to netip.Addr, option, value int, within time.Duration) error {
	t.Helper()
	c := from.Dial(t, "udp", netip.AddrPortFrom(to, 9).String()).(*net.UDPConn)
	defer c.Close()
	level, errors := unix.SOL_IP, unix.IP_RECVERR
	if to.Is6() {
		level, errors = unix.SOL_IPV6, unix.IPV6_RECVERR
	}
	setOption(t, c, level, errors, 1)
	if option != 0 {
		setOption(t, c, level, option, value)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	_, err := c.Read(make([]byte, 1))
	return err
}

// Packets that the host's stack must answer, or must not forward, are left to it, and it does so.
func TestRootLeft(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.wanted())
	r.node.IP(t, "route add blackhole 10.1.2.99\nroute add prohibit 10.1.2.98\nroute add unreachable 10.1.2.97\n"+
		"route add blackhole fd01:2::99\nroute add prohibit fd01:2::98\nroute add unreachable fd01:2::97")
	testenv.Sysctl(t, r.node.NS, "net.ipv4.icmp_ratelimit", "0")
	timeout := "i/o timeout"
	for _, c := range []struct {
		to, reason, error string
		option, value     int
	}{
		{to: "10.9.9.9", reason: "destination", error: "network is unreachable"}, // no route, no network
		{to: "10.1.2.99", reason: "blackhole", error: timeout},
		{to: "10.1.2.98", reason: "prohibit", error: "no route to host"}, // ICMP_PKT_FILTERED
		{to: "10.1.2.97", reason: "unreachable", error: "no route to host"},
		{to: "fd01:2::99", reason: "blackhole", error: timeout},
		{to: "fd01:2::98", reason: "prohibit", error: "permission denied"},
		{to: "fd01:2::97", reason: "unreachable", error: "network is unreachable"},
		{to: "10.1.2.1", reason: "ttl", error: "no route to host", option: unix.IP_TTL, value: 1},
		{to: "fd01:2::1", reason: "ttl", error: "no route to host", option: unix.IPV6_UNICAST_HOPS, value: 1},
		{to: "10.2.0.1", reason: "destination", error: "connection refused"}, // the node itself
	} {
		var err error
		var got map[string]uint64
		for range 10 { // the kernel limits the rate of errors about routes (net.ipv4.route.error_cost), not by namespace
			got = r.grown(func() { err = answer(t, r.a.NS, netip.MustParseAddr(c.to), c.option, c.value, 500*time.Millisecond) })
			if err == nil || c.error == timeout || !strings.Contains(err.Error(), timeout) {
				break
			}
		}
		if len(got) != 1 || got[c.reason] != 1 || err == nil || !strings.Contains(err.Error(), c.error) {
			t.Errorf("%s: %v, want 1 of %s; %v, want %s", c.to, got, c.reason, err, c.error)
		}
	}
	w := r.wanted()
	w.Networks = append(w.Networks, netip.MustParsePrefix("10.2.0.0/24"))
	r.set(w)
	if got := r.grown(func() { exchange(t, r.a.NS, r.node.NS, netip.MustParseAddr("10.2.0.1"), 1000) }); len(got) != 1 || got["not-forwarded"] == 0 {
		t.Errorf("to the node, as one of the networks: %v", got)
	}
	if got := r.grown(func() { sendFragments(t, r.a.NS, r.c.NS, r.c.V4) }); len(got) != 1 || got["fragment"] < 3 {
		t.Errorf("fragments: %v", got)
	}
	testenv.Sysctl(t, r.node.NS, "net.ipv4.conf."+r.a.Host+".forwarding", "0")
	if got := r.grown(func() { send(t, r.a.NS, r.c.V4) }); len(got) != 1 || got["forwarding-off"] != 1 {
		t.Errorf("forwarding off: %v", got)
	}
}

// sendFragments sends a datagram that is longer than the MTU, and waits for it.
func sendFragments(t *testing.T, from, to *testenv.NS, address netip.Addr) {
	t.Helper()
	var l net.PacketConn
	var err error
	to.Do(t, func() { l, err = net.ListenPacket("udp", netip.AddrPortFrom(address, 9).String()) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := from.Dial(t, "udp", netip.AddrPortFrom(address, 9).String())
	defer c.Close()
	if _, err := c.Write(make([]byte, 4000)); err != nil {
		t.Fatal(err)
	}
	if err := l.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, _, err := l.ReadFrom(make([]byte, 5000)); n != 4000 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// A packet from an address that is not the pod's is left to the stack.
func TestRootSource(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.wanted())
	r.a.IP(t, fmt.Sprintf("addr add %s/32 dev lo", r.b.V4))
	var c net.Conn
	var err error
	r.a.Do(t, func() {
		d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(r.b.V4, 0))}
		c, err = d.Dial("udp", netip.AddrPortFrom(r.c.V4, 9).String())
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := r.grown(func() { _, err = c.Write([]byte("x")) }); err != nil || got["source"] != 1 || got["pod-to-wire"] != 0 {
		t.Errorf("%v, %v", got, err)
	}
}

// A smaller MTU on the way is answered as the stack does, and the sender's packets fit from then on.
// Errors of a third host about a connection reach the pod although its packets do not pass the stack.
func TestRootMTU(t *testing.T) {
	for _, where := range []string{"route", "wire", "far"} {
		t.Run(where, func(t *testing.T) {
			r := newRig(t)
			r.open()
			r.set(r.wanted())
			switch where {
			case "route":
				// Without lock, forwarding takes no account of it (net.ipv4.ip_forward_use_pmtu).
				r.node.IP(t, fmt.Sprintf("route change %s via 10.2.0.2 mtu lock 1400\nroute change %s via fd02::2 mtu lock 1400", r.far.V4, r.far.V6))
			case "wire":
				r.node.IP(t, "link set wire mtu 1400")
				r.far.IP(t, "link set wire mtu 1400")
			case "far": // the other node answers
				r.far.IP(t, fmt.Sprintf("route change %s dev %s mtu lock 1400\nroute change %s dev %[2]s mtu lock 1400", r.c.V4, r.c.Host, r.c.V6))
				// Without a connection that it knows, an error is invalid to netfilter.
				r.node.Run(t, "iptables-legacy", "-I", "FORWARD", "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP")
			}
			forEach(t, func(t *testing.T, address func(*testenv.Pod) netip.Addr) {
				if where == "far" && address(r.a).Is6() {
					r.node.Run(t, "ip6tables-legacy", "-I", "FORWARD", "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP")
				}
				got := r.grown(func() { exchange(t, r.a.NS, r.c.NS, address(r.c), 1<<20) })
				if (got["too-long"] > 0) != (where != "far") || got["pod-to-wire"] == 0 {
					t.Errorf("%v", got)
				}
				if route := r.a.Run(t, "ip", "route", "get", address(r.c).String()); !strings.Contains(route, "mtu 1400") {
					t.Errorf("the pod's route: %s", route)
				}
			})
		})
	}
}

// Rules of policy routing apply as to packets that the stack forwards.
func TestRootPolicyRouting(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.wanted())
	r.node.IP(t, "route add unreachable 0.0.0.0/0 table 100\nroute add unreachable ::/0 table 100")
	forEach(t, func(t *testing.T, address func(*testenv.Pod) netip.Addr) {
		family := map[bool]string{true: "-4", false: "-6"}[address(r.a).Is4()]
		for _, rule := range []string{"from " + address(r.a).String(), "iif " + r.a.Host, "to " + address(r.c).String() + " ipproto udp dport 9 iif " + r.a.Host, "tos 0x10 iif " + r.a.Host} {
			r.node.Run(t, "ip", append([]string{family, "rule", "add", "table", "100"}, strings.Fields(rule)...)...)
			option, value := 0, 0
			if strings.HasPrefix(rule, "tos") {
				if option, value = unix.IP_TOS, 0x10; family == "-6" {
					option, value = unix.IPV6_TCLASS, 0x10
				}
			}
			got := r.grown(func() { _ = answer(t, r.a.NS, address(r.c), option, value, 200*time.Millisecond) })
			if len(got) != 1 || got["unreachable"] != 1 {
				t.Errorf("%s: %v", rule, got)
			}
			if got := r.grown(func() { send(t, r.b.NS, address(r.c)) }); got["pod-to-wire"] != 1 || got["unreachable"] != 0 {
				t.Errorf("%s, another pod: %v", rule, got)
			}
			r.node.Run(t, "ip", append([]string{family, "rule", "del", "table", "100"}, strings.Fields(rule)...)...)
		}
	})
}

// Packets of connections that the node translates take the stack in both directions.
func TestRootNAT(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.wanted())
	iptables := func(rule string, a ...any) {
		t.Helper()
		r.node.Run(t, "iptables-legacy", append([]string{"-t", "nat"}, strings.Fields(fmt.Sprintf(rule, a...))...)...)
	}
	iptables("-A POSTROUTING -s 10.1.1.0/24 -d 10.2.0.0/24 -j MASQUERADE")
	if got := r.grown(func() { exchange(t, r.a.NS, r.far.NS, netip.MustParseAddr("10.2.0.2"), 1000) }); len(got) != 1 || got["destination"] == 0 {
		t.Errorf("masqueraded: %v", got)
	}
	// A service's address leads to pod b, and a port of the node to pod a.
	service, port := netip.MustParseAddrPort("10.96.0.1:80"), netip.MustParseAddrPort("10.2.0.1:80")
	iptables("-A PREROUTING -d %s -p tcp --dport %d -j DNAT --to-destination %s:81", service.Addr(), service.Port(), r.b.V4)
	iptables("-A PREROUTING -d %s -p tcp --dport %d -j DNAT --to-destination %s:81", port.Addr(), port.Port(), r.a.V4)
	got := r.grown(func() { exchangeAt(t, r.a.NS, r.b.NS, service, netip.AddrPortFrom(r.b.V4, 81), 1000) })
	if names := keys(got); !slices.Equal(names, []string{"destination", "nat"}) {
		t.Errorf("a service on the node: %v", got)
	}
	got = r.grown(func() { exchangeAt(t, r.c.NS, r.a.NS, port, netip.AddrPortFrom(r.a.V4, 81), 1000) })
	if names := keys(got); !slices.Equal(names, []string{"nat"}) { // the other direction is for the node's own address
		t.Errorf("a port of the node: %v", got)
	}
	// Others are routed all the same.
	if got := r.grown(func() { exchange(t, r.c.NS, r.a.NS, r.a.V4, 1000) }); !slices.Equal(keys(got), []string{"pod-to-wire", "wire-to-pod"}) {
		t.Errorf("without NAT: %v", got)
	}
}

// A connection goes on in the stack although most of it was routed, and kube-proxy's rule drops what connection tracking calls
// invalid.
func TestRootStackAgain(t *testing.T) {
	r := newRig(t)
	r.open()
	for command, address := range map[string]func(*testenv.Pod) netip.Addr{
		"iptables-legacy": func(p *testenv.Pod) netip.Addr { return p.V4 }, "ip6tables-legacy": func(p *testenv.Pod) netip.Addr { return p.V6 },
	} {
		r.node.Run(t, command, "-I", "FORWARD", "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP")
		for to, way := range map[*testenv.Pod]string{r.b: "pod-to-pod", r.c: "pod-to-wire"} {
			l := to.Listen(t, "tcp", netip.AddrPortFrom(address(to), 5001).String())
			go serve(l, func(c net.Conn) { _, _ = io.Copy(c, c) })
			c := r.a.Dial(t, "tcp", l.Addr().String())
			send := func(when string, bytes int64) {
				t.Helper()
				if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
					t.Fatal(err)
				}
				go func() { _, _ = c.Write(make([]byte, bytes)) }()
				if n, err := io.CopyN(io.Discard, c, bytes); err != nil {
					t.Errorf("%s to %s, %s: %d of %d bytes came back: %v", way, l.Addr(), when, n, bytes, err)
				}
			}
			send("before", 1000)
			r.set(r.wanted())
			if got := r.grown(func() { send("routed", 8<<20) }); got[way] == 0 {
				t.Errorf("%s: %v", way, got)
			}
			r.set(&Wanted{})
			send("in the stack again", 1<<20)
			_ = c.Close()
			_ = l.Close()
		}
	}
}

// Whether a new connection is masqueraded depends on the networks: connection tracking does not know its first
// packet yet, which is routed with the pod's address if it goes to one of the networks (docs/pods.md). A connection
// that is masqueraded stays so when its destination becomes one of the networks.
func TestRootMasquerade(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.wanted())
	r.node.Run(t, "iptables-legacy", "-t", "nat", "-A", "POSTROUTING", "-s", r.node.V4.String(), "-o", "wire", "-j", "MASQUERADE")
	var server *net.UDPConn
	var err error
	r.far.Do(t, func() { server, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(10, 2, 0, 2)}) })
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := server.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	from := func(c net.Conn) netip.Addr {
		t.Helper()
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		_, sender, err := server.ReadFromUDPAddrPort(make([]byte, 1))
		if err != nil {
			t.Fatal(err)
		}
		return sender.Addr().Unmap()
	}
	dial := func() net.Conn {
		c := r.a.Dial(t, "udp", server.LocalAddr().String())
		t.Cleanup(func() { c.Close() })
		return c
	}
	node := netip.MustParseAddr("10.2.0.1")
	before := dial()
	if got := from(before); got != node {
		t.Errorf("outside of the networks: from %s, want %s", got, node)
	}
	w := r.wanted()
	w.Networks = append(w.Networks, netip.MustParsePrefix("10.2.0.0/24"))
	r.set(w)
	if got := from(before); got != node {
		t.Errorf("a connection of before: from %s, want %s", got, node)
	}
	if got := from(dial()); got != r.a.V4 {
		t.Errorf("in the networks: from %s, want %s", got, r.a.V4)
	}
}

func keys(m map[string]uint64) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Rules of netfilter's chain FORWARD do not apply to packets that are routed: docs/pods.md says so.
func TestRootBypassesNetfilter(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.wanted())
	r.node.Run(t, "iptables-legacy", "-P", "FORWARD", "DROP")
	exchange(t, r.a.NS, r.c.NS, r.c.V4, 1000)
	w := r.wanted()
	w.Pods[0].Route = false
	r.set(w)
	c := r.a.Dial(t, "udp", netip.AddrPortFrom(r.c.V4, 9).String())
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(c); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("a pod that is not routed: %v, want no answer", err)
	}
}

// Packets above 64 KB (BIG TCP), which carry an option if they are IPv6, are routed as others are.
func TestRootBigTCP(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.wanted())
	const sizes = " gso_max_size 180000 gro_max_size 180000"
	for device, n := range map[string]*testenv.NS{r.a.Host: r.node.NS, r.b.Host: r.node.NS} {
		n.IP(t, "link set "+device+sizes)
	}
	r.a.IP(t, "link set eth0"+sizes)
	r.b.IP(t, "link set eth0"+sizes)
	before := r.counts()["protocol"]
	largest := uint64(0)
	for range 20 {
		bytes, packets := sent(t, r.a)
		push(t, r.a.NS, r.b.NS, r.b.V6, 32<<20)
		moreBytes, morePackets := sent(t, r.a)
		if largest = max(largest, (moreBytes-bytes)/(morePackets-packets)); largest > 1<<16 {
			break
		}
	}
	if after := r.counts()["protocol"]; largest <= 1<<16 || after > before+5 { // neighbour discovery
		t.Errorf("packets of %d bytes on average; %d were left to the stack", largest, after-before)
	}
}

// sent is what a pod has sent, bytes and packets of any size.
func sent(t *testing.T, p *testenv.Pod) (bytes, packets uint64) {
	t.Helper()
	p.Do(t, func() {
		text, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			t.Fatal(err)
		}
		_, line, _ := strings.Cut(string(text), "eth0:")
		var skip uint64
		if _, err := fmt.Sscan(line, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &bytes, &packets); err != nil {
			t.Fatal(err)
		}
	})
	return bytes, packets
}

// push sends so many bytes by TCP.
func push(t *testing.T, from, to *testenv.NS, address netip.Addr, bytes int) {
	t.Helper()
	l := to.Listen(t, "tcp", netip.AddrPortFrom(address, 5003).String())
	defer l.Close()
	received := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			received <- 0
			return
		}
		defer c.Close()
		n, _ := io.Copy(io.Discard, c)
		received <- n
	}()
	c := from.Dial(t, "tcp", l.Addr().String())
	if _, err := c.Write(make([]byte, bytes)); err != nil {
		t.Error(err)
	}
	c.Close()
	if n := <-received; n != int64(bytes) {
		t.Errorf("%d of %d bytes arrived", n, bytes)
	}
}
