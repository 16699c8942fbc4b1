package topology

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// End is one end of a wire: a device of a host and its addresses.
type End struct {
	Host   *Host
	Device string
	Index  int
	Addr4  netip.Prefix
	Addr6  netip.Prefix

	mac net.HardwareAddr
}

// EndSpec describes one end of a wire to make; an invalid prefix means no address of
// that family.
type EndSpec struct {
	Host   *Host
	Device string
	Addr4  netip.Prefix
	Addr6  netip.Prefix
}

// Wire connects two hosts by a veth pair. Neighbour entries are permanent, so that
// loss on the wire cannot affect address resolution.
func (n *Net) Wire(a, b EndSpec) (ea, eb *End, err error) {
	veth := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: a.Device, Namespace: netlink.NsFd(a.Host.ns)},
		PeerName:      b.Device,
		PeerNamespace: netlink.NsFd(b.Host.ns),
	}
	// The request is sent from a's namespace: neither end is ever in ours.
	if err := a.Host.link.LinkAdd(veth); err != nil {
		return nil, nil, fmt.Errorf("add wire %s-%s: %w", a.Host.Name, b.Host.Name, err)
	}
	if ea, err = n.end(a); err != nil {
		return nil, nil, err
	}
	if eb, err = n.end(b); err != nil {
		return nil, nil, err
	}
	err = n.onClose(func() error {
		link, err := ea.Host.link.LinkByIndex(ea.Index)
		if err != nil {
			return nil // removed meanwhile
		}
		return ea.Host.link.LinkDel(link)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("add wire %s-%s: %w", a.Host.Name, b.Host.Name, err)
	}
	for _, pair := range [][2]*End{{ea, eb}, {eb, ea}} {
		if err := pair[0].neighbour(pair[1]); err != nil {
			return nil, nil, err
		}
	}
	return ea, eb, nil
}

// end gives a device its addresses and sets it up.
func (n *Net) end(s EndSpec) (*End, error) {
	link, err := s.Host.link.LinkByName(s.Device)
	if err != nil {
		return nil, fmt.Errorf("find %s of %s: %w", s.Device, s.Host.Name, err)
	}
	e := &End{Host: s.Host, Device: s.Device, Index: link.Attrs().Index, Addr4: s.Addr4, Addr6: s.Addr6,
		mac: link.Attrs().HardwareAddr}
	for _, p := range []netip.Prefix{s.Addr4, s.Addr6} {
		if !p.IsValid() {
			continue
		}
		// Without duplicate address detection an address is usable at once, not after 1 s.
		addr := &netlink.Addr{IPNet: ipNet(p), Flags: unix.IFA_F_NODAD}
		if err := s.Host.link.AddrAdd(link, addr); err != nil {
			return nil, fmt.Errorf("add address %s to %s: %w", p, s.Host.Name, err)
		}
	}
	if err := s.Host.link.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set %s of %s up: %w", s.Device, s.Host.Name, err)
	}
	return e, nil
}

// neighbour adds permanent neighbour entries for the other end's addresses.
func (e *End) neighbour(other *End) error {
	for _, p := range []netip.Prefix{other.Addr4, other.Addr6} {
		if !p.IsValid() {
			continue
		}
		n := &netlink.Neigh{LinkIndex: e.Index, IP: p.Addr().AsSlice(), HardwareAddr: other.mac,
			State: netlink.NUD_PERMANENT}
		if err := e.Host.link.NeighSet(n); err != nil {
			return fmt.Errorf("add neighbour %s to %s: %w", p.Addr(), e.Host.Name, err)
		}
	}
	return nil
}

// route sends a prefix through a gateway.
func (h *Host) route(to netip.Prefix, via netip.Addr) error {
	r := &netlink.Route{Dst: ipNet(to), Gw: via.AsSlice()}
	if err := h.link.RouteReplace(r); err != nil {
		return fmt.Errorf("add route %s via %s to %s: %w", to, via, h.Name, err)
	}
	return nil
}

// forward makes the host a router.
func (h *Host) forward() error {
	for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		if err := h.SetSysctl(key, "1"); err != nil {
			return err
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
