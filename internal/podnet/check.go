package podnet

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
)

// Check returns what is missing of what Make made: the pair, addresses and routes. Chained plugins may
// have added more, and may have changed what Pair does not name.
func Check(p *Pair, made pod.Link) error {
	inside, err := open(p.NetNS)
	if err != nil {
		return err
	}
	defer inside.Close()
	host, err := open(netns.Own)
	if err != nil {
		return err
	}
	defer host.Close()
	found, err := Find(p.NetNS, p.Name)
	if err != nil {
		return err
	}
	if found.Index != made.Index || found.HostIndex != made.HostIndex || found.Device != made.Device {
		return fmt.Errorf("interface %s of the pod has index %d, its end on the host %d; ADD made %d and %d", p.Name, found.Index, found.HostIndex, made.Index, made.HostIndex)
	}
	inner, err := inside.LinkByIndex(made.Index)
	if err != nil {
		return fmt.Errorf("find interface %s of the pod: %w", p.Name, err)
	}
	if err := p.checkAddresses(inside, inner); err != nil {
		return err
	}
	if err := p.checkRoutes(inside, inner); err != nil {
		return err
	}
	for _, a := range p.Addresses {
		out, err := outgoing(host, a)
		if err != nil {
			return fmt.Errorf("find the host's route to %s: %w", a, err)
		}
		if out != made.HostIndex {
			return fmt.Errorf("the host's route to %s leads to the device with index %d, not to %s (index %d)", a, out, p.HostName, made.HostIndex)
		}
	}
	return nil
}

// outgoing is the index of the device that leads to an address.
func outgoing(h *handle, a netip.Addr) (int, error) {
	routes, err := h.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 {
		return 0, err
	}
	return routes[0].LinkIndex, nil
}

func (p *Pair) checkAddresses(inside *handle, inner netlink.Link) error {
	// The kernel has no request for a single IPv4 address; the list is that of one device.
	list, err := listed(func() ([]netlink.Addr, error) { return inside.AddrList(inner, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", p.Name, err)
	}
	have := make(map[netip.Prefix]bool, len(list))
	for _, a := range list {
		ip, _ := netip.AddrFromSlice(a.IP)
		ones, _ := a.Mask.Size()
		have[netip.PrefixFrom(ip.Unmap(), ones)] = true
	}
	for _, a := range p.Addresses {
		if !have[whole(a)] {
			return fmt.Errorf("%s of the pod does not have the address %s", p.Name, a)
		}
	}
	return nil
}

func (p *Pair) checkRoutes(inside *handle, inner netlink.Link) error {
	for _, want := range p.Routes {
		family, filter := netlink.FAMILY_V4, &netlink.Route{LinkIndex: inner.Attrs().Index, Table: want.Table}
		if want.Dst.Addr().Is6() {
			family = netlink.FAMILY_V6
		}
		mask := netlink.RT_FILTER_OIF
		if want.Table != 0 {
			mask |= netlink.RT_FILTER_TABLE
		}
		list, err := listed(func() ([]netlink.Route, error) { return inside.RouteListFiltered(family, filter, mask) })
		if err != nil {
			return fmt.Errorf("list routes of %s: %w", p.Name, err)
		}
		if !contains(list, want.Dst) {
			return fmt.Errorf("the pod does not have the route to %s by %s", want.Dst, p.Name)
		}
	}
	return nil
}

func contains(list []netlink.Route, dst netip.Prefix) bool {
	want, gw := ipNet(dst), Gateway(dst.Addr()).AsSlice()
	for _, r := range list {
		if r.Dst == nil {
			r.Dst = ipNet(netip.PrefixFrom(dst.Addr(), 0)) // a default route
			r.Dst.IP = r.Dst.IP.Mask(r.Dst.Mask)
		}
		if r.Dst.IP.Equal(want.IP) && bytes.Equal(r.Dst.Mask, want.Mask) && r.Gw.Equal(gw) {
			return true
		}
	}
	return false
}

// listed reads a list, and again, up to ten times, if it changed while it was read.
func listed[T any](list func() ([]T, error)) (all []T, err error) {
	for range 10 {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
