package testenv

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// End is one end of a veth pair.
type End struct {
	NS     *NS
	Name   string
	Index  int
	V4, V6 netip.Addr
}

// pairs numbers the pairs of this process: each has its own subnets, so that one namespace
// may have ends of several pairs.
var pairs atomic.Uint32

// Veth joins two namespaces by a veth pair that is up on both sides. a has the
// addresses 10.N.N.1/24 and fd00:N::1/64, b those that end in 2. N differs for
// each pair of the process.
func Veth(t testing.TB, a, b *NS) (End, End) {
	t.Helper()
	n := pairs.Add(1)
	if n > 250 {
		t.Fatal("veth pairs: all 250 subnets used")
	}
	ha, hb := a.netlink(t), b.netlink(t)
	defer ha.Close()
	defer hb.Close()
	ea := End{NS: a, Name: fmt.Sprintf("va%d", n)}
	eb := End{NS: b, Name: fmt.Sprintf("vb%d", n)}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = ea.Name
	err := ha.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: eb.Name, PeerNamespace: netlink.NsFd(b.FD())})
	if err != nil {
		t.Fatalf("add veth: %v", err)
	}
	// A veth pair ends with either namespace, but other descriptors may keep the
	// namespaces: delete it.
	t.Cleanup(func() {
		h := a.netlink(t)
		defer h.Close()
		if l, err := h.LinkByName(ea.Name); err == nil {
			if err := h.LinkDel(l); err != nil {
				t.Errorf("delete veth: %v", err)
			}
		}
	})
	ea.configure(t, ha, n, 1)
	eb.configure(t, hb, n, 2)
	ea.awaitUp(t, ha)
	eb.awaitUp(t, hb)
	return ea, eb
}

// awaitUp waits until the kernel's link watch has seen the carrier; a SYN sent
// before that is lost, and is retransmitted only a second later.
func (e *End) awaitUp(t testing.TB, h *netlink.Handle) {
	t.Helper()
	for range 3000 {
		l, err := h.LinkByName(e.Name)
		if err != nil {
			t.Fatalf("find veth: %v", err)
		}
		if l.Attrs().OperState == netlink.OperUp {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("%s is not up after 3 s", e.Name)
}

func (e *End) configure(t testing.TB, h *netlink.Handle, pair uint32, host byte) {
	t.Helper()
	l, err := h.LinkByName(e.Name)
	if err != nil {
		t.Fatalf("find veth: %v", err)
	}
	n := byte(pair)
	e.Index = l.Attrs().Index
	e.V4 = netip.AddrFrom4([4]byte{10, n, n, host})
	e.V6 = netip.AddrFrom16([16]byte{0: 0xfd, 3: n, 15: host})
	for _, p := range []netip.Prefix{netip.PrefixFrom(e.V4, 24), netip.PrefixFrom(e.V6, 64)} {
		addr := &netlink.Addr{
			IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
			// Without this, the address is tentative, and so unusable, for a second.
			Flags: unix.IFA_F_NODAD,
		}
		if p.Addr().Is4() {
			addr.Flags = 0
		}
		if err := h.AddrAdd(l, addr); err != nil {
			t.Fatalf("add address %s: %v", p, err)
		}
	}
	if err := h.LinkSetUp(l); err != nil {
		t.Fatalf("set veth up: %v", err)
	}
}
