package podnet

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/sysctl"
)

// setting is a sysctl of one device.
type setting struct{ family, name, value string }

func apply(device string, settings []setting) error {
	for _, s := range settings {
		name := fmt.Sprintf("net.%s.conf.%s.%s", s.family, sysctl.Part(device), s.name)
		// Write only what differs. Writing is expensive when pods come and go: the kernel restarts the system call,
		// without sleeping, as long as another process changes devices (rtnl_trylock, restart_syscall).
		if value, err := sysctl.Read(name); err == nil && value == s.value {
			continue
		}
		if err := sysctl.Write(name, s.value); err != nil {
			return fmt.Errorf("set %s to %s: %w", name, s.value, err)
		}
	}
	return nil
}

// configureInside gives the pod's end its addresses and sets it up.
func (p *Pair) configureInside(inside *handle, inner netlink.Link) error {
	if _, v6 := p.Families(); v6 {
		err := netns.Do(int(inside.ns.Fd()), func() error {
			return apply(p.Name, []setting{
				{"ipv6", "disable_ipv6", "0"}, // runtimes disable it by default in a pod's namespace
				{"ipv6", "accept_ra", "0"},    // nobody on the link sends any
				{"ipv6", "accept_dad", "0"},   // no one else is on the link, and the address would be unusable for a second
			})
		})
		if err != nil {
			return err
		}
	}
	for _, a := range p.Addresses {
		addr := &netlink.Addr{IPNet: ipNet(whole(a))}
		if a.Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := inside.AddrAdd(inner, addr); err != nil {
			return fmt.Errorf("add address %s to %s: %w", a, p.Name, err)
		}
	}
	if err := inside.LinkSetUp(inner); err != nil {
		return fmt.Errorf("set %s of the pod up: %w", p.Name, err)
	}
	return nil
}

// configureHost prepares the host's end for the families that the pod has, and sets it up. It has no
// address: packets come to it by routes, and the pod sends to its MAC address.
func (p *Pair) configureHost(host *handle, outer netlink.Link) error {
	var settings []setting
	v4, v6 := p.Families()
	if v4 {
		settings = append(settings, setting{"ipv4", "forwarding", "1"})
	}
	if v6 {
		settings = append(settings,
			setting{"ipv6", "disable_ipv6", "0"},
			setting{"ipv6", "forwarding", "1"},
			setting{"ipv6", "accept_ra", "0"},     // a pod must not become the host's router
			setting{"ipv6", "addr_gen_mode", "1"}) // no link-local address
	} else if _, err := sysctl.Read("net.ipv6.conf.all.disable_ipv6"); err == nil {
		settings = append(settings, setting{"ipv6", "disable_ipv6", "1"})
	}
	if err := apply(p.HostName, settings); err != nil {
		return err
	}
	if err := host.LinkSetUp(outer); err != nil {
		return fmt.Errorf("set %s up: %w", p.HostName, err)
	}
	return nil
}

// addRoutes adds the host's routes to the pod's addresses, and the pod's routes. If l2, it adds permanent
// neighbour entries, so that neither side sends ARP requests or neighbour solicitations.
func (p *Pair) addRoutes(inside *handle, inner netlink.Link, host *handle, outer netlink.Link, l2 bool) error {
	in, out := inner.Attrs(), outer.Attrs()
	for _, a := range p.Addresses {
		if l2 {
			n := &netlink.Neigh{LinkIndex: in.Index, State: netlink.NUD_PERMANENT, IP: Gateway(a).AsSlice(), HardwareAddr: out.HardwareAddr}
			if err := inside.NeighSet(n); err != nil {
				return fmt.Errorf("add neighbour %s to %s of the pod: %w", Gateway(a), p.Name, err)
			}
			n = &netlink.Neigh{LinkIndex: out.Index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: in.HardwareAddr}
			if err := host.NeighSet(n); err != nil {
				return fmt.Errorf("add neighbour %s to %s: %w", a, p.HostName, err)
			}
		}
		r := &netlink.Route{LinkIndex: out.Index, Dst: ipNet(whole(a)), Scope: netlink.SCOPE_LINK}
		if a.Is6() {
			r.Scope = netlink.SCOPE_UNIVERSE // IPv6 has no scopes of routes
		}
		if err := host.RouteAdd(r); err != nil {
			return fmt.Errorf("add route to %s: %w", a, err)
		}
	}
	for _, route := range p.Routes {
		r := &netlink.Route{LinkIndex: in.Index, Dst: ipNet(route.Dst), Gw: Gateway(route.Dst.Addr()).AsSlice(), Flags: int(netlink.FLAG_ONLINK),
			MTU: route.MTU, AdvMSS: route.AdvMSS, Priority: route.Priority, Table: route.Table}
		if err := inside.RouteAdd(r); err != nil {
			return fmt.Errorf("add route to %s in the pod: %w", route.Dst, err)
		}
	}
	return nil
}
