package podlink

import (
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// The meter of a pod that sends through a VXLAN device of its own counts the headers of the tunnel for each segment.
func TestRootBandwidthOfATunnel(t *testing.T) {
	const bytes = 8 << 20
	r := newRig(t)
	r.open()
	r.set(r.limitTo(pod.Bandwidth{Egress: 100e9}, pod.Bandwidth{}, false))
	// packets are those that the pod's device sends.
	packets := func() (n int) {
		for line := range strings.Lines(r.node.Run(t, "cat", "/proc/net/dev")) {
			if name, rest, _ := strings.Cut(strings.TrimSpace(line), ":"); name == r.a.Host {
				n, _ = strconv.Atoi(strings.Fields(rest)[1])
			}
		}
		return n
	}
	for v6, ip := range map[bool]int{false: 20, true: 40} {
		tunnel(t, r.a, r.b, v6)
		before, first := r.links.Meters(r.a.HostIndex).Egress.Passed, packets()
		sendThrough(t, r.a, r.b, bytes)
		passed, sent := float64(r.links.Meters(r.a.HostIndex).Egress.Passed-before), packets()-first
		// Ethernet, IP, UDP and VXLAN around Ethernet, IPv4, and TCP with timestamps; the outer IP packet has 1500 bytes.
		headers := 14 + ip + 8 + 8 + 14 + 20 + 32
		segments := bytes / (1514 - headers)
		want := float64(bytes + segments*headers)
		t.Logf("IPv6 %t: %.0f bytes in %d packets, want %.0f in %d segments", v6, passed, sent, want, segments)
		if sent > segments/3 {
			t.Errorf("IPv6 %t: %d packets and %d segments: the packets are not large", v6, sent, segments)
		}
		// Without the headers in the tunnel: 0.953. Retransmissions and short packets are more.
		if ratio := passed / want; ratio < 0.995 || ratio > 1.1 {
			t.Errorf("IPv6 %t: the meter counts %.3f of the bytes", v6, ratio)
		}
		r.a.Run(t, "ip", "link", "del", "vx")
		r.b.Run(t, "ip", "link", "del", "vx")
	}
}

// Packets of a tunnel whose segments are longer than the route's MTU with the inner headers, and not without them, take the stack, which
// fragments them.
func TestRootTunnelTooLong(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.wanted())
	tunnel(t, r.a, r.c, false) // the outer packets have 1500 bytes
	r.node.IP(t, "link set wire mtu 1450")
	r.far.IP(t, "link set wire mtu 1450")
	if got := r.grown(func() { sendThrough(t, r.a, r.c, 1<<20) }); got["too-long"] < 10 {
		t.Errorf("%v", got)
	}
}

// tunnel makes VXLAN devices in two pods, with the addresses 172.31.7.1 and 172.31.7.2.
func tunnel(t *testing.T, a, b *testenv.Pod, v6 bool) {
	t.Helper()
	for i, p := range []*testenv.Pod{a, b} {
		other := []*testenv.Pod{b, a}[i]
		local, remote := p.V4, other.V4
		if v6 {
			local, remote = p.V6, other.V6
		}
		// A kernel that lacks the device says so on standard error.
		out := p.Run(t, "sh", "-c", fmt.Sprintf("ip link add vx type vxlan id 7 dstport 4789 local %s remote %s 2>&1 || true", local, remote))
		if out != "" {
			testenv.Missing(t, "VXLAN devices: "+out)
		}
		p.IP(t, fmt.Sprintf("addr add 172.31.7.%d/24 dev vx\nlink set vx up", i+1))
	}
}

// sendThrough sends bytes through the tunnel by one connection.
func sendThrough(t *testing.T, from, to *testenv.Pod, bytes int64) {
	t.Helper()
	l := to.Listen(t, "tcp", "172.31.7.2:0")
	defer l.Close()
	c := from.Dial(t, "tcp", l.Addr().String())
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	go func() {
		defer c.Close()
		_, _ = c.Write(make([]byte, bytes))
	}()
	_ = s.SetDeadline(time.Now().Add(20 * time.Second))
	if n, err := io.Copy(io.Discard, s); err != nil || n != bytes {
		t.Fatalf("received %d bytes, %v", n, err)
	}
}

// header is bytes of a packet, and whether its length is in them.
type header struct {
	bytes []byte
	set   func(h []byte, rest int) // rest: bytes behind the header
}

func raw(b ...byte) header { return header{bytes: b} }

func ethernet(kind uint16) header {
	return header{bytes: binary.BigEndian.AppendUint16(make([]byte, 12), kind)}
}

func ipv4(protocol byte) header {
	h := make([]byte, 20)
	h[0], h[8], h[9] = 0x45, 64, protocol
	return header{h, func(h []byte, rest int) { binary.BigEndian.PutUint16(h[2:], uint16(20+rest)) }}
}

func ipv6(protocol byte) header {
	h := make([]byte, 40)
	h[0], h[6], h[7] = 0x60, protocol, 64
	return header{h, func(h []byte, rest int) { binary.BigEndian.PutUint16(h[4:], uint16(rest)) }}
}

func tcpHeader(options int) header {
	h := make([]byte, 20+options)
	h[12] = byte(len(h) / 4 << 4)
	return header{bytes: h}
}

// gsoPacket is headers with 3000 bytes behind them.
func gsoPacket(headers ...header) (data []byte, of int) {
	const payload = 3000
	for _, h := range headers {
		of += len(h.bytes)
	}
	for _, h := range headers {
		begin := len(data)
		data = append(data, h.bytes...)
		if h.set != nil {
			h.set(data[begin:], of+payload-len(data))
		}
	}
	return append(data, make([]byte, payload)...), of
}

// The headers of a GSO packet are counted for each of its segments, also those of a tunnel. Datagrams that only look like those of a tunnel have
// the headers of datagrams.
func TestRootBandwidthHeaders(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.limitTo(pod.Bandwidth{}, pod.Bandwidth{Egress: 100e9}, false))
	const ip4, ip6, teb = 0x0800, 0x86dd, 0x6558
	const ipip, tcp, udp, sit, gre = 4, 6, 17, 41, 47
	datagram := header{bytes: make([]byte, 8)}
	vxlan := raw(8, 0, 0, 0, 0, 0, 7, 0)
	for _, c := range []struct {
		name    string
		headers []header
		plain   int // headers that are not repeated, at the end
	}{
		{"TCP", []header{ethernet(ip4), ipv4(tcp), tcpHeader(12)}, 0},
		{"TCP over IPv6", []header{ethernet(ip6), ipv6(tcp), tcpHeader(0)}, 0},
		{"UDP", []header{ethernet(ip4), ipv4(udp), datagram}, 0},
		{"VXLAN", []header{ethernet(ip4), ipv4(udp), datagram, vxlan, ethernet(ip4), ipv4(tcp), tcpHeader(12)}, 0},
		{"VXLAN over IPv6", []header{ethernet(ip6), ipv6(udp), datagram, vxlan, ethernet(ip6), ipv6(tcp), tcpHeader(12)}, 0},
		{"VXLAN with UDP", []header{ethernet(ip4), ipv4(udp), datagram, vxlan, ethernet(ip4), ipv4(udp), datagram}, 0},
		{"VXLAN with a group", []header{ethernet(ip4), ipv4(udp), datagram, raw(0x88, 0, 0, 9, 0, 0, 7, 0), ethernet(ip4), ipv4(tcp), tcpHeader(12)}, 0},
		{"Geneve", []header{ethernet(ip4), ipv4(udp), datagram, raw(0, 0, 0x65, 0x58, 0, 0, 7, 0), ethernet(ip4), ipv4(tcp), tcpHeader(12)}, 0},
		{"Geneve with options", []header{ethernet(ip4), ipv4(udp), datagram, raw(2, 0, 0x08, 0, 0, 0, 7, 0, 1, 2, 3, 1, 5, 6, 7, 8), ipv4(tcp), tcpHeader(12)}, 0},
		{"GRE", []header{ethernet(ip4), ipv4(gre), raw(0, 0, 0x08, 0), ipv4(tcp), tcpHeader(12)}, 0},
		{"GRE with key and number", []header{ethernet(ip6), ipv6(gre), raw(0x30, 0, 0x86, 0xdd, 0, 0, 0, 1, 0, 0, 0, 2), ipv6(tcp), tcpHeader(12)}, 0},
		{"GRE with Ethernet", []header{ethernet(ip4), ipv4(gre), raw(0, 0, 0x65, 0x58), ethernet(ip6), ipv6(tcp), tcpHeader(12)}, 0},
		{"IP in IP", []header{ethernet(ip4), ipv4(ipip), ipv4(tcp), tcpHeader(12)}, 0},
		{"IPv6 in IP", []header{ethernet(ip4), ipv4(sit), ipv6(tcp), tcpHeader(12)}, 0},
		{"another length", []header{ethernet(ip4), ipv4(udp), datagram, vxlan, ethernet(ip4), {bytes: ipv4(tcp).bytes}, tcpHeader(12)}, 8 + 14 + 20 + 32},
		{"no flag", []header{ethernet(ip4), ipv4(udp), datagram, raw(0, 0, 0, 0, 0, 0, 7, 0), ethernet(ip4), ipv4(tcp), tcpHeader(12)}, 8 + 14 + 20 + 32},
		{"not IP", []header{ethernet(ip4), ipv4(udp), datagram, vxlan, ethernet(0x88b5), raw(make([]byte, 52)...)}, 8 + 14 + 52},
		{"other segments", []header{ethernet(ip4), ipv4(udp), datagram, vxlan, ethernet(ip4), ipv4(tcp), tcpHeader(12)}, 8 + 14 + 20 + 32},
	} {
		data, headers := gsoPacket(c.headers...)
		headers -= c.plain
		for i, size := range []int{100, 700, 1400} {
			segments := (len(data) - headers + size - 1) / size
			ctx := packetOf(r.b.HostIndex)
			binary.NativeEndian.PutUint32(ctx[176:], uint32(size)) // gso_size
			switch {
			case c.name == "other segments":
				binary.NativeEndian.PutUint32(ctx[164:], uint32(segments+1)) // gso_segs
			case i > 0: // otherwise the packet is of a program that leaves them to the kernel
				binary.NativeEndian.PutUint32(ctx[164:], uint32(segments))
			}
			before := r.links.Meters(r.b.HostIndex).Egress.Passed
			err := netns.Do(r.node.FD(), func() error {
				_, err := r.links.programs.podOut.prog.Run(&ebpf.RunOptions{Data: data, Context: ctx})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			want := uint64(len(data) + (segments-1)*headers)
			if got := r.links.Meters(r.b.HostIndex).Egress.Passed - before; got != want {
				t.Errorf("%s, segments of %d: %d bytes, want %d", c.name, size, got, want)
			}
		}
	}
}
