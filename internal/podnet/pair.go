package podnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/undo"
)

// The next hops of a pod's routes. No device has these addresses: the pod has a permanent neighbour
// entry for each, with the MAC address of the pair's end on the host.
var (
	gateway4 = netip.MustParseAddr("169.254.1.1")
	gateway6 = netip.MustParseAddr("fe80::1")
)

// Mode is a kind of device and how packets cross it.
type Mode struct {
	Device pod.Device
	L2     bool // packets have Ethernet headers; those of veth always have
}

// The modes of a pair.
var (
	Veth     = Mode{pod.Veth, true}
	Netkit   = Mode{pod.Netkit, false}
	NetkitL2 = Mode{pod.Netkit, true}
)

// Pair is a pod's interface and its other end, on the host.
type Pair struct {
	NetNS     string // path of the pod's network namespace
	Name      string // of the pod's end
	HostName  string // of the host's end: HostName of the attachment
	Modes     []Mode // the first that the kernel has is used
	MTU       int    // bytes
	Addresses []netip.Addr
	Routes    []Route // of the pod; the next hop is always the host
}

// Route is a route of a pod. Zero stands for the kernel's default in all members except Dst.
type Route struct {
	Dst                          netip.Prefix
	MTU, AdvMSS, Priority, Table int
}

// Made is what Make has made.
type Made struct {
	pod.Link
	MAC, HostMAC net.HardwareAddr // all zero, or empty, if packets have no Ethernet headers
}

// ErrExists says that the pod has an interface of that name, or the host has one of the other end's name.
var ErrExists = errors.New("the interface exists")

// ErrNoDevice says that the kernel supports none of the modes.
var ErrNoDevice = errors.New("the kernel has no such device")

// upTimeout bounds the wait until workers of the kernel have noticed that both ends are up (linkwatch), and have made
// IPv6 addresses local (addrconf_dad_work). Packets sent before are lost.
const upTimeout = 500 * time.Millisecond

// Make makes the pair, or nothing: it undoes what it has done if a step fails. One request creates both ends with
// their names in their namespaces, so that a process that is killed leaves a whole pair or none.
func Make(p *Pair) (m Made, err error) {
	inside, err := open(p.NetNS)
	if err != nil {
		return m, err
	}
	defer inside.Close()
	host, err := open(netns.Own)
	if err != nil {
		return m, err
	}
	defer host.Close()
	mode, outer, err := p.create(host, inside)
	if err != nil {
		return m, err
	}
	var u undo.Stack
	u.Push("delete "+p.HostName, func() error { return remove(host, outer) })
	defer func() {
		if err != nil {
			err = errors.Join(err, u.Run())
		}
	}()
	inner, err := inside.LinkByName(p.Name)
	if err != nil {
		return m, fmt.Errorf("find the new interface %s of the pod: %w", p.Name, err)
	}
	if mode == NetkitL2 {
		if inner, outer, err = p.setAddresses(inside, inner, host, outer); err != nil {
			return m, err
		}
	}
	if err := p.configureInside(inside, inner); err != nil {
		return m, err
	}
	if err := p.configureHost(host, outer); err != nil {
		return m, err
	}
	if err := errors.Join(awaitUp(inside, p.Name), awaitUp(host, p.HostName)); err != nil {
		return m, err
	}
	if err := p.addRoutes(inside, inner, host, outer, mode.L2); err != nil {
		return m, err
	}
	if err := p.awaitLocal(inside); err != nil {
		return m, err
	}
	m.Device, m.Index, m.HostIndex = mode.Device, inner.Attrs().Index, outer.Attrs().Index
	m.MAC, m.HostMAC = inner.Attrs().HardwareAddr, outer.Attrs().HardwareAddr
	for _, a := range p.Addresses {
		m.Addresses = append(m.Addresses, whole(a))
	}
	return m, nil
}

// CheckFree returns ErrExists if the pod has an interface of the name, or the host a device of hostName.
func CheckFree(ns, name, hostName string) error {
	if err := netns.In(ns, func() error { return isFree(name) }); err != nil {
		return err
	}
	return isFree(hostName)
}

// isFree returns ErrExists if the calling thread's namespace has a device of the name. It tries to bind a socket to
// the device: for that, unlike for a request of rtnetlink, the kernel does not take the lock RTNL, which other pods
// that come and go hold.
func isFree(name string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	defer unix.Close(fd)
	switch err := unix.BindToDevice(fd, name); {
	case errors.Is(err, unix.ENODEV):
		return nil
	case err != nil:
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	return fmt.Errorf("%w: %s", ErrExists, name)
}

// create makes the devices, in the first mode that the kernel has.
func (p *Pair) create(host, inside *handle) (mode Mode, outer netlink.Link, err error) {
	for _, mode = range p.Modes {
		outer = p.link(mode, inside)
		err = host.LinkAdd(outer)
		if !errors.Is(err, unix.EOPNOTSUPP) {
			break
		}
		err = fmt.Errorf("%w: %s", ErrNoDevice, mode.Device)
	}
	if errors.Is(err, unix.EEXIST) {
		err = fmt.Errorf("%w: %s or %s", ErrExists, p.Name, p.HostName)
	}
	if err != nil {
		return mode, nil, fmt.Errorf("make a pair of devices: %w", err)
	}
	if outer.Attrs().Index == 0 { // LinkAdd asks for the index, but ignores an error
		if outer, err = host.LinkByName(p.HostName); err != nil {
			return mode, nil, fmt.Errorf("find the new device %s: %w", p.HostName, err)
		}
	}
	return mode, outer, nil
}

func (p *Pair) link(mode Mode, inside *handle) netlink.Link {
	inner, outer := netlink.NewLinkAttrs(), netlink.NewLinkAttrs()
	outer.Name, outer.MTU = p.HostName, p.MTU
	inner.Name, inner.MTU, inner.Namespace = p.Name, p.MTU, netlink.NsFd(inside.ns.Fd())
	if mode.Device == pod.Netkit {
		// Both directions are open from the start: the runtime starts nothing in the pod before ADD has
		// returned, and ADD waits for the daemon.
		n := &netlink.Netkit{LinkAttrs: outer, Mode: netlink.NETKIT_MODE_L3, Scrub: netlink.NETKIT_SCRUB_DEFAULT, PeerScrub: netlink.NETKIT_SCRUB_DEFAULT}
		if mode.L2 {
			n.Mode = netlink.NETKIT_MODE_L2
		}
		n.SetPeerAttrs(&inner)
		return n
	}
	v := &netlink.Veth{LinkAttrs: outer, PeerName: inner.Name, PeerNamespace: inner.Namespace, PeerTxQLen: -1}
	v.PeerHardwareAddr, v.HardwareAddr = addressesOf(p.HostName)
	return v
}

// setAddresses gives the ends of a netkit pair the addresses that those of veth are made with:
// netkit refuses addresses when it is made.
func (p *Pair) setAddresses(inside *handle, inner netlink.Link, host *handle, outer netlink.Link) (i, o netlink.Link, err error) {
	in, out := addressesOf(p.HostName)
	if err := errors.Join(inside.LinkSetHardwareAddr(inner, in), host.LinkSetHardwareAddr(outer, out)); err != nil {
		return nil, nil, fmt.Errorf("set MAC addresses: %w", err)
	}
	if i, err = inside.LinkByName(p.Name); err == nil {
		o, err = host.LinkByName(p.HostName)
	}
	return i, o, err
}

func awaitUp(h *handle, name string) error {
	for end := time.Now().Add(upTimeout); ; time.Sleep(time.Millisecond) {
		l, err := h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		if l.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s is not up after %v, but %v", name, upTimeout, l.Attrs().OperState)
		}
	}
}

// awaitLocal waits until the pod's IPv6 addresses are local in the pod. Even without duplicate address detection,
// the kernel inserts the local route only when its worker has run: up to 20 ms later (measured).
func (p *Pair) awaitLocal(inside *handle) error {
	end := time.Now().Add(upTimeout)
	for _, a := range p.Addresses {
		if a.Is4() {
			continue // its route is there as soon as the address is
		}
		for ; ; time.Sleep(time.Millisecond) {
			r, err := inside.RouteGet(a.AsSlice())
			if err == nil && len(r) > 0 && r[0].Type == unix.RTN_LOCAL {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("address %s of the pod is not usable after %v: routes %v, error %v", a, upTimeout, r, err)
			}
		}
	}
	return nil
}

// whole is the prefix that contains only the address: /32 or /128.
func whole(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Gateway is the next hop of the routes of an address's family.
func Gateway(a netip.Addr) netip.Addr {
	if a.Is4() {
		return gateway4
	}
	return gateway6
}

// Families reports whether the pod has addresses of IPv4, and of IPv6.
func (p *Pair) Families() (v4, v6 bool) {
	return slices.ContainsFunc(p.Addresses, netip.Addr.Is4), slices.ContainsFunc(p.Addresses, netip.Addr.Is6)
}
