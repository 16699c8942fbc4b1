package testenv

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// Node is a network namespace that stands for a host with pods, as a CNI plugin makes it. It forwards.
type Node struct {
	*NS
	number, pods int
	V4, V6       netip.Prefix // of its pods: 10.1.N.0/24 and fd01:N::/64
}

// Pod is a pod of a node: a pair of devices, host addresses (/32, /128), and with veth devices a gateway
// with a permanent neighbour entry.
type Pod struct {
	*NS
	V4, V6           netip.Addr
	Host             string // name of the host's end
	HostIndex, Index int    // of the host's end and the pod's
}

// NewNode makes the node with a number, 1 to 250.
func NewNode(t testing.TB, number int) *Node {
	t.Helper()
	n := &Node{NS: NetNS(t), number: number}
	n.V4 = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(number), 0}), 24)
	n.V6 = netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 1, 3: byte(number)}), 64)
	Sysctl(t, n.NS, "net.ipv4.ip_forward", "1")
	Sysctl(t, n.NS, "net.ipv6.conf.all.forwarding", "1")
	noDAD(t, n.NS)
	return n
}

// AddPod adds a pod with a veth pair to the node.
func (n *Node) AddPod(t testing.TB) *Pod {
	t.Helper()
	return n.addPod(t, func(p *Pod) string {
		if _, err := PodLink(p.Path(), "eth0", p.Host, netip.PrefixFrom(p.V4, 32)); err != nil {
			t.Fatal(err)
		}
		outer, err := net.InterfaceByName(p.Host)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`route add 169.254.1.1 dev eth0
			route add 0.0.0.0/0 via 169.254.1.1 dev eth0
			neigh add 169.254.1.1 lladdr %s dev eth0 nud permanent
			route add ::/0 via fe80::1 dev eth0
			neigh add fe80::1 lladdr %[1]s dev eth0 nud permanent`, outer.HardwareAddr)
	})
}

// AddNetkitPod adds a pod with a pair of netkit devices to the node, which have no MAC addresses.
func (n *Node) AddNetkitPod(t testing.TB) *Pod {
	t.Helper()
	return n.addPod(t, func(p *Pod) string {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = p.Host
		pair := &netlink.Netkit{LinkAttrs: attrs, Mode: netlink.NETKIT_MODE_L3, Policy: netlink.NETKIT_POLICY_FORWARD, PeerPolicy: netlink.NETKIT_POLICY_FORWARD}
		pair.SetPeerAttrs(&netlink.LinkAttrs{Name: "eth0", Namespace: netlink.NsFd(p.FD())})
		if err := netlink.LinkAdd(pair); err != nil {
			t.Fatalf("add netkit devices: %v", err)
		}
		n.IP(t, "link set "+p.Host+" up")
		return fmt.Sprintf("addr add %s/32 dev eth0\nlink set eth0 up\nroute add 0.0.0.0/0 dev eth0\nroute add ::/0 dev eth0", p.V4)
	})
}

// addPod adds a pod. join makes its pair, in the node's namespace, and returns commands of ip(8) for the pod's
// namespace.
func (n *Node) addPod(t testing.TB, join func(*Pod) string) *Pod {
	t.Helper()
	n.pods++
	v4, v6 := n.V4.Addr().As4(), n.V6.Addr().As16()
	v4[3], v6[15] = byte(n.pods), byte(n.pods)
	p := &Pod{NS: NetNS(t), V4: netip.AddrFrom4(v4), V6: netip.AddrFrom16(v6), Host: fmt.Sprint("pod", n.pods)}
	noDAD(t, p.NS)
	var commands string
	n.Do(t, func() { commands = join(p) })
	p.IP(t, commands+fmt.Sprintf("\naddr add %s/128 dev eth0 nodad", p.V6))
	p.HostIndex, p.Index = n.index(t, p.Host), p.index(t, "eth0")
	n.IP(t, fmt.Sprintf("route add %s dev %s\nroute add %s dev %[2]s", p.V4, p.Host, p.V6))
	n.awaitUp(t, p.Host)
	p.awaitUp(t, "eth0")
	return p
}

// index is the interface index of a device.
func (n *NS) index(t testing.TB, device string) (index int) {
	t.Helper()
	n.Do(t, func() {
		i, err := net.InterfaceByName(device)
		if err != nil {
			t.Fatal(err)
		}
		index = i.Index
	})
	return index
}

// Wire joins two nodes by a veth pair that is called wire at both ends, with routes to each other's
// pods. The nodes have the addresses 10.2.0.N and fd02::N there.
func Wire(t testing.TB, a, b *Node) {
	t.Helper()
	a.Do(t, func() {
		if _, err := PodLink(b.Path(), "wire", "wire", b.wireV4()); err != nil {
			t.Fatal(err)
		}
	})
	a.IP(t, fmt.Sprintf("addr add %s dev wire", a.wireV4()))
	for n, far := range map[*Node]*Node{a: b, b: a} {
		n.IP(t, fmt.Sprintf("addr add %s dev wire nodad", n.wireV6()))
		n.awaitUp(t, "wire")
		n.IP(t, fmt.Sprintf("route add %s via %s\nroute add %s via %s", far.V4, far.wireV4().Addr(), far.V6, far.wireV6().Addr()))
	}
}

// wireV4 is the node's address on a Wire, with the prefix length.
func (n *Node) wireV4() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 2, 0, byte(n.number)}), 24)
}

// wireV6 is wireV4 for IPv6.
func (n *Node) wireV6() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 2, 15: byte(n.number)}), 64)
}

// noDAD turns duplicate address detection off, so that link-local addresses, from which neighbour solicitations
// are sent, are usable at once.
func noDAD(t testing.TB, n *NS) { Sysctl(t, n, "net.ipv6.conf.default.accept_dad", "0") }

// IP runs commands of ip(8) in the namespace, one a line.
func (n *NS) IP(t testing.TB, commands string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "commands")
	if err := os.WriteFile(file, []byte(commands+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Run(t, "ip", "-batch", file)
}

// awaitUp waits until a device has its carrier: what is sent before is lost.
func (n *NS) awaitUp(t testing.TB, device string) {
	t.Helper()
	h := n.netlink(t)
	defer h.Close()
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		l, err := h.LinkByName(device)
		if err != nil {
			t.Fatalf("find %s: %v", device, err)
		}
		if l.Attrs().OperState.String() == "up" {
			return
		}
		if time.Since(begun) > 3*time.Second {
			t.Fatalf("%s is not up after 3 s", device)
		}
	}
}
