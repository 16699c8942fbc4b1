package bigtcp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/rtnetlink"
)

// Path is the devices by which packets of pods leave the host, those below them included, and the largest packet
// that all of them can have, in bytes: at most Size.
type Path struct {
	Devices []rtnetlink.Link
	Size    uint32
	MTU     uint32 // the least of the devices and of the routes that were looked up; 0 without any
}

// PodMTU is the greatest MTU of IPv6, in bytes, for a pod whose device on the host is given. With this MTU, the
// segments that the pod sends and receives (its MSS follows from the MTU) leave room for the extension header of
// packets above 64 KB, so that the host's stack forwards such packets (see Goal.Forwards).
func (p *Path) PodMTU(host rtnetlink.Link) uint32 {
	mtu := host.MTU
	if p.MTU != 0 {
		mtu = min(mtu, p.MTU)
	}
	return mtu - min(mtu, jumbo)
}

// elsewhere are addresses for documentation (RFC 5737, RFC 3849). They stand for all addresses to which only a
// default route leads.
var elsewhere = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}

// tunnels are kinds of devices with Ethernet headers that encapsulate packets; encapsulated packets have at most
// 64 KB.
var tunnels = []string{"vxlan", "geneve", "gretap", "ip6gretap", "erspan", "ip6erspan", "bareudp"}

// stacked are kinds of devices that send by the device below them.
var stacked = []string{"vlan", "macvlan", "ipvlan", "macsec"}

// unfit are kinds of devices with several devices below, of which some may not support the sizes.
var unfit = []string{"bridge", "openvswitch"}

// FindPath finds the way of packets of pods to other hosts: by the devices with these names, and by those of the host's
// routes to networks and of its default routes. The error is why packets above 64 KB cannot take it.
func FindPath(names []string, networks []netip.Prefix) (Path, error) {
	if has, err := rtnetlink.HasIPsec(); err != nil {
		return Path{}, fmt.Errorf("find out whether there are policies of IPsec: %w", err)
	} else if has {
		return Path{}, errors.New("the host has policies of IPsec, and encrypted packets have at most 64 KB")
	}
	p := Path{Size: Size}
	for _, name := range names {
		d, err := rtnetlink.LinkByName(name)
		if errors.Is(err, unix.ENODEV) {
			continue // not there yet: a later call finds it
		}
		if err == nil {
			err = p.add(d)
		}
		if err != nil {
			return Path{}, fmt.Errorf("device %s: %w", name, err)
		}
	}
	to := slices.Clone(elsewhere)
	for _, n := range networks {
		to = append(to, addressOf(n))
	}
	for _, a := range to {
		if err := p.addRoute(a); err != nil {
			return Path{}, err
		}
	}
	return p, nil
}

// addressOf is an address of a network that is not this host's own, if one of the first four is not. Of an IPv6 network that the host is a
// router of, the first one is its own (anycast: RFC 4291, section 2.6.1), and the second one often as well.
func addressOf(n netip.Prefix) netip.Addr {
	a := n.Addr()
	for range 3 {
		if r, err := rtnetlink.RouteTo(a); err != nil || !r.Local || !n.Contains(a.Next()) {
			break
		}
		a = a.Next()
	}
	return a
}

func (p *Path) addRoute(a netip.Addr) error {
	r, err := rtnetlink.RouteTo(a)
	if err != nil {
		return fmt.Errorf("look up the route to %s: %w", a, err)
	}
	if r.Device == 0 {
		return nil
	}
	if r.Encapsulates {
		return fmt.Errorf("the route to %s encapsulates packets, and these have at most 64 KB then", a)
	}
	d, err := rtnetlink.LinkByIndex(r.Device)
	if err == nil && d.Hardware != unix.ARPHRD_LOOPBACK { // by loopback: the address is the host's own
		p.atMost(r.MTU)
		err = p.add(d)
	}
	if err != nil {
		return fmt.Errorf("device %s of the route to %s: %w", d.Name, a, err)
	}
	return nil
}

func (p *Path) atMost(mtu uint32) {
	if mtu != 0 && (p.MTU == 0 || mtu < p.MTU) {
		p.MTU = mtu
	}
}

// add adds a device and those below it.
func (p *Path) add(d rtnetlink.Link) error {
	if slices.ContainsFunc(p.Devices, func(have rtnetlink.Link) bool { return have.Index == d.Index }) {
		return nil
	}
	switch {
	case slices.Contains(tunnels, d.Kind):
		return fmt.Errorf("it is a tunnel (%s), whose packets have at most 64 KB", d.Kind)
	case d.Hardware != unix.ARPHRD_ETHER:
		return errors.New("it has no Ethernet headers, as tunnels do not")
	case slices.Contains(unfit, d.Kind):
		return fmt.Errorf("it is of the kind %s, whose other devices would segment each packet again", d.Kind)
	}
	if err := checkSize(d); err != nil {
		return err
	}
	p.Devices = append(p.Devices, d)
	p.Size = min(p.Size, d.MaxSize)
	p.atMost(d.MTU)
	if slices.Contains(stacked, d.Kind) {
		return p.addBelow(d)
	}
	if d.Kind == "bond" || d.Kind == "team" {
		return p.addMembers(d)
	}
	return nil
}

func checkSize(d rtnetlink.Link) error {
	switch {
	case d.MaxSize == 0:
		return errors.New("the kernel does not know packets above 64 KB: BIG TCP for IPv4 and IPv6 needs Linux 6.3")
	case d.MaxSize <= legacy:
		return fmt.Errorf("its driver does not support packets above 64 KB (tso_max_size is %d)", d.MaxSize)
	case d.GSO4 == 0 || d.GRO4 == 0:
		return ErrIgnored
	}
	return nil
}

func (p *Path) addBelow(d rtnetlink.Link) error {
	if d.BelowNS != rtnetlink.SameNS || d.Below == 0 {
		return errors.New("the device below it is in another network namespace")
	}
	below, err := rtnetlink.LinkByIndex(d.Below)
	if err == nil {
		err = p.add(below)
	}
	if err != nil {
		return fmt.Errorf("device %s below it: %w", below.Name, err)
	}
	return nil
}

func (p *Path) addMembers(d rtnetlink.Link) error {
	all, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	for _, i := range all {
		member, err := rtnetlink.LinkByIndex(i.Index)
		if err != nil || member.Master != d.Index {
			continue // another one, or it has gone meanwhile
		}
		if err := p.add(member); err != nil {
			return fmt.Errorf("device %s below it: %w", member.Name, err)
		}
	}
	return nil
}
