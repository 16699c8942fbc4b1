package podlink

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// packet is an IP packet with these addresses.
func packet(from, to netip.Addr, protocol byte, payload []byte) []byte {
	var h []byte
	if to.Is4() {
		h = []byte{0: 0x45, 8: 64, 9: protocol, 19: 0}
		binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(payload)))
		copy(h[12:], from.AsSlice())
		copy(h[16:], to.AsSlice())
	} else {
		h = []byte{0: 0x60, 6: protocol, 7: 64, 39: 0}
		binary.BigEndian.PutUint16(h[4:], uint16(len(payload)))
		copy(h[8:], from.AsSlice())
		copy(h[24:], to.AsSlice())
	}
	return append(h, payload...)
}

func datagram(from, to netip.Addr) []byte {
	return packet(from, to, unix.IPPROTO_UDP, []byte{0: 0x90, 3: 9, 5: 8, 7: 0})
}

// unreachable is an ICMP error about a packet.
func unreachable(from, to netip.Addr, about []byte) []byte {
	if to.Is4() {
		return packet(from, to, unix.IPPROTO_ICMP, append([]byte{0: 3, 7: 0}, about...))
	}
	return packet(from, to, unix.IPPROTO_ICMPV6, append([]byte{0: 1, 7: 0}, about...))
}

// arrives runs a program with a packet that arrives at a device of the node, and returns the counters that
// grew.
func (r *rig) arrives(p *program, device string, ip []byte) map[string]uint64 {
	r.t.Helper()
	frame := make([]byte, 14, 14+len(ip))
	binary.BigEndian.PutUint16(frame[12:], map[byte]uint16{4: unix.ETH_P_IP, 6: unix.ETH_P_IPV6}[ip[0]>>4])
	return r.grown(func() {
		err := netns.Do(r.node.FD(), func() error {
			d, err := net.InterfaceByName(device)
			if err != nil {
				return err
			}
			copy(frame, d.HardwareAddr)
			ctx := make([]byte, 192) // struct __sk_buff
			binary.NativeEndian.PutUint32(ctx[10*4:], uint32(d.Index))
			_, err = p.prog.Run(&ebpf.RunOptions{Data: append(frame, ip...), Context: ctx})
			return err
		})
		if err != nil {
			r.t.Error(err)
		}
	})
}

func (r *rig) expect(what string, got map[string]uint64, outcome string) {
	r.t.Helper()
	want := map[string]uint64{}
	if outcome != "" {
		want[outcome] = 1
	}
	if !maps.Equal(got, want) {
		r.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// addresses of nobody, to which the node has a route
var (
	elsewhere4 = netip.MustParseAddr("198.51.100.1")
	elsewhere6 = netip.MustParseAddr("2001:db8::1")
)

func (r *rig) defaultRoutes() {
	r.node.IP(r.t, "route add 0.0.0.0/0 via 10.2.0.2\nroute add ::/0 via fd02::2")
}

// An ICMP error is routed only if its own addresses are allowed like those of the connection that it is about,
// because a pod can write any packet into it.
func TestRootICMPErrors(t *testing.T) {
	r := newRig(t)
	r.open()
	r.set(r.wanted())
	r.defaultRoutes()
	out, in := &r.links.programs.podOut, &r.links.programs.wireIn
	forEach(t, func(t *testing.T, address func(*testenv.Pod) netip.Addr) {
		a, b, c, elsewhere := address(r.a), address(r.b), address(r.c), elsewhere4
		if a.Is6() {
			elsewhere = elsewhere6
		}
		r.expect("a datagram", r.arrives(out, r.a.Host, datagram(a, c)), "pod-to-wire")
		r.expect("an error", r.arrives(out, r.a.Host, unreachable(a, c, datagram(c, a))), "pod-to-wire")
		r.expect("an error on the node", r.arrives(out, r.a.Host, unreachable(a, b, datagram(b, a))), "pod-to-pod")
		r.expect("an error from an address that is not the pod's", r.arrives(out, r.a.Host, unreachable(elsewhere, c, datagram(c, a))), "source")
		r.expect("an error about another's packet", r.arrives(out, r.a.Host, unreachable(a, c, datagram(c, b))), "source")
		r.expect("an error to another than the sender", r.arrives(out, r.a.Host, unreachable(a, elsewhere, datagram(c, a))), "destination")
		r.expect("an error of a router", r.arrives(in, "wire", unreachable(elsewhere, a, datagram(a, c))), "wire-to-pod")
		r.expect("an error of a router to another than the sender", r.arrives(in, "wire", unreachable(elsewhere, b, datagram(a, c))), "")

		// Its route is that of its own addresses.
		family, prohibited := "-4", "prohibit"
		if a.Is6() {
			family, prohibited = "-6", "not-forwarded" // as bpf_fib_lookup says
		}
		for from, outcome := range map[netip.Addr]string{c: "wire-to-pod", elsewhere: prohibited} {
			r.node.Run(t, "ip", family, "rule", "add", "prohibit", "from", from.String(), "iif", "wire")
			r.expect("an error of a router, packets from "+from.String()+" prohibited", r.arrives(in, "wire", unreachable(elsewhere, a, datagram(a, c))), outcome)
			r.node.Run(t, "ip", family, "rule", "del", "prohibit", "from", from.String(), "iif", "wire")
		}
	})
}

// A network is of one family, also if its prefix contains the addresses of the other one, mapped; and no packet of
// IPv6 has such addresses.
func TestRootNetworksFamily(t *testing.T) {
	r := newRig(t)
	r.open()
	r.defaultRoutes()
	w := r.wanted()
	w.Networks = []netip.Prefix{netip.MustParsePrefix("::/0")}
	r.set(w)
	out := &r.links.programs.podOut
	r.expect("IPv6", r.arrives(out, r.a.Host, datagram(r.a.V6, elsewhere6)), "pod-to-wire")
	r.expect("IPv4", r.arrives(out, r.a.Host, datagram(r.a.V4, elsewhere4)), "destination")
	mapped := func(a netip.Addr) netip.Addr { return netip.AddrFrom16(a.As16()) }
	r.expect("mapped", r.arrives(out, r.a.Host, datagram(mapped(r.a.V4), mapped(elsewhere4))), "malformed")
	r.expect("mapped source", r.arrives(out, r.a.Host, datagram(mapped(r.a.V4), elsewhere6)), "malformed")
	w.Networks = append(w.Networks, netip.MustParsePrefix("0.0.0.0/0"))
	r.set(w)
	r.expect("IPv4, as a network", r.arrives(out, r.a.Host, datagram(r.a.V4, elsewhere4)), "pod-to-wire")
}

// A pod's address whose route leads to another host is treated as an address of that host: packets to it are routed
// only if it is in one of the networks.
func TestRootPodElsewhere(t *testing.T) {
	r := newRig(t)
	r.open()
	w := r.wanted()
	r.set(w)
	r.node.IP(t, fmt.Sprintf("route change %s via 10.2.0.2\nroute change %s via fd02::2", r.b.V4, r.b.V6))
	out := &r.links.programs.podOut
	for i, outcome := range []string{"destination", "pod-to-wire"} {
		r.expect("IPv4", r.arrives(out, r.a.Host, datagram(r.a.V4, r.b.V4)), outcome)
		r.expect("IPv6", r.arrives(out, r.a.Host, datagram(r.a.V6, r.b.V6)), outcome)
		if i == 0 {
			w.Networks = append(w.Networks, r.node.V4, r.node.V6)
			r.set(w)
		}
	}
}

// New networks replace the old ones, even if the map has no room for both at the same time.
func TestRootNetworksReplaced(t *testing.T) {
	r := newRig(t)
	r.open()
	for second := range byte(2) {
		w := &Wanted{}
		for i := range 600 { // of 1024
			w.Networks = append(w.Networks, netip.PrefixFrom(netip.AddrFrom4([4]byte{20 + second, byte(i >> 8), byte(i), 0}), 24))
		}
		r.set(w)
		if n := len(r.links.networks.rows); n != 600 {
			t.Errorf("%d networks", n)
		}
	}
}

// A device that got the index of a pod's device that is gone is not mistaken for the pod's.
func TestRootIndexAgain(t *testing.T) {
	r := newRig(t)
	r.open()
	w := r.wanted()
	r.set(w)
	d := testenv.NetNS(t)
	r.node.IP(t, fmt.Sprintf("link del %s\nlink add again index %d type veth peer name eth0 netns %s", r.a.Host, r.a.HostIndex, d.Path()))
	again := *r.a
	again.NS = d
	d.Do(t, func() {
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		again.Index = i.Index
	})
	again.V4, again.V6 = elsewhere4, elsewhere6
	old := w.Pods[0]
	w.Pods = []Pod{{Pod: record(t, &again), Route: true}, old}
	for range 2 {
		missing, err := r.links.Set(w)
		if err != nil || len(missing.Pods) != 1 || missing.Pods[old.Cookie] == nil {
			t.Errorf("%+v, %v, want only the pod whose device is gone", missing.Pods, err)
		}
		if mac := r.links.found[place{w.Pods[0].Cookie, again.HostIndex, again.Index}].pod.MAC; r.links.devices.rows[uint32(again.HostIndex)].Mac != mac {
			t.Error("the device has the row of the pod that had its index before")
		}
	}
}
