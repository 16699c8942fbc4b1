package topology

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Join is a way to connect pods that needs no plugin.
type Join string

// The ways.
const (
	// JoinHost connects two pods by one veth pair, as a wire joins two hosts: no node is in between.
	JoinHost Join = "host"
	// JoinVeth and JoinNetkit give each pod a pair to its node, which routes.
	JoinVeth   Join = "veth"
	JoinNetkit Join = "netkit"
	// JoinBridge gives each pod a veth pair to a bridge of its node. The bridge is the gateway.
	JoinBridge Join = "bridge"
)

// Joins are all ways.
var Joins = []Join{JoinHost, JoinVeth, JoinNetkit, JoinBridge}

const (
	podDevice    = "eth0"  // a pod's end of its pair
	bridgeDevice = "pods0" // the bridge of a node
)

// Gateways of routed pods: addresses that no device has. Permanent neighbour entries
// resolve them.
var gateways = []netip.Addr{netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::1")}

// Addresses within a node's network: that of the bridge, and of the first pod.
const (
	bridgeHost   = 1
	firstPodHost = 10
)

// Join connects all pods. KeepLinks undoes it.
func (l *Layout) Join(how Join) error {
	if how == JoinHost {
		return l.joinDirectly()
	}
	for _, p := range l.Pods {
		join := map[Join]func() error{JoinVeth: p.joinVeth, JoinNetkit: p.joinNetkit, JoinBridge: p.joinBridge}[how]
		if join == nil {
			return fmt.Errorf("connect pods: no way %q", how)
		}
		if err := join(); err != nil {
			return fmt.Errorf("connect pod %s by %s: %w", p.Name, how, err)
		}
		p.SetAddrs(nth(p.Net4, firstPodHost+p.number).Addr(), nth(p.Net6, firstPodHost+p.number).Addr())
	}
	return nil
}

// joinDirectly joins two pods by one veth pair, as a wire joins two hosts.
func (l *Layout) joinDirectly() error {
	if len(l.Pods) != 2 {
		return fmt.Errorf("connect pods directly: there are %d, want 2", len(l.Pods))
	}
	var ends [2]EndSpec
	for i, p := range l.Pods {
		a4, a6 := nth(p.Net4, firstPodHost+p.number), nth(p.Net6, firstPodHost+p.number)
		// With the prefix length of the network of all pods, so that each finds the other
		// on the link.
		ends[i] = EndSpec{p.Host, podDevice, netip.PrefixFrom(a4.Addr(), podNet4.Bits()), netip.PrefixFrom(a6.Addr(), podNet6.Bits())}
		p.SetAddrs(a4.Addr(), a6.Addr())
	}
	_, _, err := l.Net.Wire(ends[0], ends[1])
	return err
}

// hostDevice is the name of the node's end.
func (p *Pod) hostDevice() string { return fmt.Sprint("pod", p.number) }

// pair makes the pair of devices, sets both ends up, and returns them.
func (p *Pod) pair(pair netlink.Link) (inner, outer netlink.Link, err error) {
	if err := p.Node.link.LinkAdd(pair); err != nil {
		return nil, nil, fmt.Errorf("add %s: %w", pair.Type(), err)
	}
	if outer, err = p.Node.link.LinkByName(p.hostDevice()); err != nil {
		return nil, nil, fmt.Errorf("find %s: %w", p.hostDevice(), err)
	}
	if inner, err = p.link.LinkByName(podDevice); err != nil {
		return nil, nil, fmt.Errorf("find %s: %w", podDevice, err)
	}
	return inner, outer, errors.Join(p.link.LinkSetUp(inner), p.Node.link.LinkSetUp(outer))
}

func (p *Pod) veth() *netlink.Veth {
	return &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: p.hostDevice()}, PeerName: podDevice, PeerNamespace: netlink.NsFd(p.ns)}
}

func (p *Pod) joinVeth() error {
	inner, outer, err := p.pair(p.veth())
	if err != nil {
		return err
	}
	return p.routed(inner, outer, func(gateway netip.Addr) error {
		return p.link.NeighSet(&netlink.Neigh{LinkIndex: inner.Attrs().Index, IP: gateway.AsSlice(),
			HardwareAddr: outer.Attrs().HardwareAddr, State: netlink.NUD_PERMANENT})
	})
}

// joinNetkit makes devices of layer 3, which have no neighbours.
func (p *Pod) joinNetkit() error {
	pair := &netlink.Netkit{LinkAttrs: netlink.LinkAttrs{Name: p.hostDevice()}, Mode: netlink.NETKIT_MODE_L3,
		Policy: netlink.NETKIT_POLICY_FORWARD, PeerPolicy: netlink.NETKIT_POLICY_FORWARD}
	pair.SetPeerAttrs(&netlink.LinkAttrs{Name: podDevice, Namespace: netlink.NsFd(p.ns)})
	inner, outer, err := p.pair(pair)
	if err != nil {
		return err
	}
	return p.routed(inner, outer, func(netip.Addr) error { return nil })
}

// routed gives the pod single addresses, a default route by resolved gateways, and the node routes
// to it.
func (p *Pod) routed(inner, outer netlink.Link, resolve func(netip.Addr) error) error {
	for i, part := range []netip.Prefix{p.Net4, p.Net6} {
		own := nth(part, firstPodHost+p.number)
		own = netip.PrefixFrom(own.Addr(), own.Addr().BitLen())
		all := netip.PrefixFrom(nth(part, 0).Addr(), 0).Masked()
		if err := p.address(inner, own); err != nil {
			return err
		}
		if err := resolve(gateways[i]); err != nil {
			return fmt.Errorf("add neighbour %s: %w", gateways[i], err)
		}
		to := &netlink.Route{LinkIndex: inner.Attrs().Index, Dst: ipNet(all), Scope: netlink.SCOPE_LINK}
		if inner.Type() != "netkit" {
			to.Gw, to.Scope, to.Flags = gateways[i].AsSlice(), netlink.SCOPE_UNIVERSE, int(netlink.FLAG_ONLINK)
		}
		if err := p.link.RouteReplace(to); err != nil {
			return fmt.Errorf("add default route: %w", err)
		}
		back := &netlink.Route{LinkIndex: outer.Attrs().Index, Dst: ipNet(own), Scope: netlink.SCOPE_LINK}
		if err := p.Node.link.RouteReplace(back); err != nil {
			return fmt.Errorf("add route to %s: %w", own, err)
		}
		if err := p.neighbourOfNode(inner, outer, own.Addr()); err != nil {
			return err
		}
	}
	return nil
}

// neighbourOfNode resolves the pod's address at the node's end.
func (p *Pod) neighbourOfNode(inner, outer netlink.Link, own netip.Addr) error {
	if inner.Type() == "netkit" {
		return nil
	}
	err := p.Node.link.NeighSet(&netlink.Neigh{LinkIndex: outer.Attrs().Index, IP: own.AsSlice(),
		HardwareAddr: inner.Attrs().HardwareAddr, State: netlink.NUD_PERMANENT})
	if err != nil {
		return fmt.Errorf("add neighbour %s: %w", own, err)
	}
	return nil
}

func (p *Pod) joinBridge() error {
	bridge, err := p.Node.link.LinkByName(bridgeDevice)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		bridge, err = p.makeBridge()
	}
	if err != nil {
		return err
	}
	inner, outer, err := p.pair(p.veth())
	if err != nil {
		return err
	}
	if err := p.Node.link.LinkSetMaster(outer, bridge); err != nil {
		return fmt.Errorf("add %s to the bridge: %w", p.hostDevice(), err)
	}
	for _, part := range []netip.Prefix{p.Net4, p.Net6} {
		if err := p.address(inner, nth(part, firstPodHost+p.number)); err != nil {
			return err
		}
		if err := p.route(netip.PrefixFrom(part.Addr(), 0).Masked(), nth(part, bridgeHost).Addr()); err != nil {
			return err
		}
	}
	return nil
}

// makeBridge makes the node's bridge, which is the pods' gateway.
func (p *Pod) makeBridge() (netlink.Link, error) {
	err := p.Node.link.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeDevice}})
	if err != nil {
		return nil, fmt.Errorf("add bridge: %w", err)
	}
	bridge, err := p.Node.link.LinkByName(bridgeDevice)
	if err != nil {
		return nil, fmt.Errorf("find bridge: %w", err)
	}
	for _, part := range []netip.Prefix{p.Net4, p.Net6} {
		addr := &netlink.Addr{IPNet: ipNet(nth(part, bridgeHost)), Flags: unix.IFA_F_NODAD}
		if err := p.Node.link.AddrAdd(bridge, addr); err != nil {
			return nil, fmt.Errorf("add address to the bridge: %w", err)
		}
	}
	return bridge, p.Node.link.LinkSetUp(bridge)
}

func (p *Pod) address(inner netlink.Link, a netip.Prefix) error {
	addr := &netlink.Addr{IPNet: ipNet(a), Flags: unix.IFA_F_NODAD}
	if err := p.link.AddrAdd(inner, addr); err != nil {
		return fmt.Errorf("add address %s: %w", a, err)
	}
	return nil
}

// nth is address number n, at most 255, of a network, with the network's prefix length.
func nth(network netip.Prefix, n int) netip.Prefix {
	all := network.Addr().AsSlice()
	all[len(all)-1] = byte(n)
	addr, _ := netip.AddrFromSlice(all)
	return netip.PrefixFrom(addr, network.Bits())
}

// KeepLinks remembers the devices of pods and nodes. restore removes those that were added
// later, with their addresses, routes and neighbours, and clears the addresses of the pods.
func (l *Layout) KeepLinks() (restore func() error, err error) {
	before := map[*Host][]int{}
	for _, p := range l.Pods {
		for _, h := range []*Host{p.Host, p.Node} {
			links, err := h.links()
			if err != nil {
				return nil, err
			}
			for _, link := range links {
				before[h] = append(before[h], link.Attrs().Index)
			}
		}
	}
	return func() error {
		for _, p := range l.Pods {
			p.SetAddrs(netip.Addr{}, netip.Addr{})
		}
		var errs []error
		for h, kept := range before {
			errs = append(errs, h.removeLinks(kept))
		}
		return errors.Join(errs...)
	}, nil
}

// removeLinks removes all devices but those to keep.
func (h *Host) removeLinks(keep []int) error {
	links, err := h.links()
	if err != nil {
		return err
	}
	var errs []error
	for _, link := range links {
		if slices.Contains(keep, link.Attrs().Index) {
			continue
		}
		// It may be gone already, because removing one end of a pair removes the other.
		if err := h.link.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("remove %s of %s: %w", link.Attrs().Name, h.Name, err))
		}
	}
	return errors.Join(errs...)
}

// links lists the host's devices. It repeats that if a device came or went meanwhile.
func (h *Host) links() (list []netlink.Link, err error) {
	for range 10 {
		if list, err = h.link.LinkList(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list devices of %s: %w", h.Name, err)
	}
	return list, nil
}

const (
	reachTry  = 200 * time.Millisecond // timeout of one connect
	reachWait = 10 * time.Second       // of all tries together
	// discard is the port of the discard service (RFC 863), at which nothing of the lab
	// listens.
	discard = 9
)

// AwaitPods waits until the senders reach the receivers: a device that is new may drop packets
// until the kernel has noticed that it is up, and neighbours have to be found.
func (l *Layout) AwaitPods() error {
	for _, from := range l.Senders {
		for _, to := range l.Receivers {
			for _, ipv6 := range []bool{false, true} {
				if err := from.awaitReach(netip.AddrPortFrom(l.Addr(to, ipv6), discard)); err != nil {
					return fmt.Errorf("reach %s from %s: %w", to.Name, from.Name, err)
				}
			}
		}
	}
	return nil
}

// awaitReach waits until a host refuses connections to a port.
func (h *Host) awaitReach(to netip.AddrPort) error {
	deadline := time.Now().Add(reachWait)
	for {
		err := h.Do(func() error {
			c, err := net.DialTimeout("tcp", to.String(), reachTry)
			if err == nil {
				c.Close()
			}
			return err
		})
		if err == nil || errors.Is(err, unix.ECONNREFUSED) {
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}
