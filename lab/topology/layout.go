package topology

import (
	"fmt"
	"net/netip"
	"slices"
)

// Wire is a link that was built.
type Wire struct {
	Name     string
	From, To *End
}

// Layout is a Graph that was built.
type Layout struct {
	Net       *Net
	Graph     Graph
	Hosts     map[string]*Host
	Senders   []*Host // in the graph's order
	Receivers []*Host
	Wires     []*Wire // in the graph's order
	Pods      []*Pod  // in the graph's order
}

// Build makes the graph's hosts and links. Each link has an IPv4 /24 and an IPv6
// /48 of its own, so that each receiver is a path of its own with tcpilot's
// default prefixes. Senders and receivers have a default route; routers have a route
// to each of them. Pods have only lo until a subject connects them; routers have a route to
// the addresses of each node's pods.
func Build(n *Net, g Graph) (*Layout, error) {
	if err := g.Check(); err != nil {
		return nil, fmt.Errorf("build network: %w", err)
	}
	l := &Layout{Net: n, Graph: g, Hosts: map[string]*Host{}}
	for _, node := range g.Nodes {
		if err := l.addHost(node); err != nil {
			return nil, fmt.Errorf("build node %s: %w", node.Name, err)
		}
	}
	for i, e := range g.Edges {
		from, to, err := n.Wire(
			EndSpec{l.Hosts[e.From], e.Name, v4(i, 1), v6(i, 1)},
			EndSpec{l.Hosts[e.To], e.Name, v4(i, 2), v6(i, 2)})
		if err != nil {
			return nil, fmt.Errorf("build link %s: %w", e.Name, err)
		}
		l.Wires = append(l.Wires, &Wire{e.Name, from, to})
	}
	for _, h := range slices.Concat(l.Senders, l.Receivers) {
		if g.isPod(h.Name) {
			continue
		}
		if err := l.route(h); err != nil {
			return nil, fmt.Errorf("build routes of %s: %w", h.Name, err)
		}
	}
	if err := l.addPods(); err != nil {
		return nil, fmt.Errorf("build pods: %w", err)
	}
	return l, nil
}

func (l *Layout) addHost(node Node) error {
	h, err := l.Net.Host(node.Name)
	if err != nil {
		return err
	}
	l.Hosts[node.Name] = h
	switch node.Role {
	case Sender:
		l.Senders = append(l.Senders, h)
	case Receiver:
		l.Receivers = append(l.Receivers, h)
	case Router:
		return h.forward()
	}
	return nil
}

// route gives a sender or receiver its default route, and routers a route to it.
func (l *Layout) route(h *Host) error {
	end, gateway := l.access(h)
	for _, all := range []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)} {
		if err := h.route(all, gateway.addr(all)); err != nil {
			return err
		}
	}
	for _, to := range []netip.Prefix{end.Addr4.Masked(), end.Addr6.Masked()} {
		if err := l.routers(h, gateway.Host, to); err != nil {
			return err
		}
	}
	return nil
}

// routers adds a route for a prefix towards a host to every router. The router except, if
// not nil, is on the host's link and needs none.
func (l *Layout) routers(h, except *Host, to netip.Prefix) error {
	for name, step := range l.Graph.toward(h.Name) {
		router := l.Hosts[name]
		if router == except || !l.isRouter(router) {
			continue
		}
		_, gateway := l.hop(step).ends()
		if err := router.route(to, gateway.addr(to)); err != nil {
			return err
		}
	}
	return nil
}

func (l *Layout) isRouter(h *Host) bool {
	return slices.Contains(l.Graph.Nodes, Node{h.Name, Router})
}

// access returns a sender's or receiver's own end of its only wire, and the other end.
func (l *Layout) access(h *Host) (own, other *End) {
	for _, w := range l.Wires {
		switch h {
		case w.From.Host:
			return w.From, w.To
		case w.To.Host:
			return w.To, w.From
		}
	}
	return nil, nil
}

// Addr is a host's address; for a router, that of its first link; for a pod, the one that it
// was connected with, which is invalid while it is not connected.
func (l *Layout) Addr(h *Host, ipv6 bool) netip.Addr {
	if p := l.pod(h); p != nil {
		return p.addr(ipv6)
	}
	end, _ := l.access(h)
	if ipv6 {
		return end.Addr6.Addr()
	}
	return end.Addr4.Addr()
}

// Host finds a host by its name.
func (l *Layout) Host(name string) (*Host, error) {
	if h, ok := l.Hosts[name]; ok {
		return h, nil
	}
	return nil, fmt.Errorf("there is no host %q", name)
}

// Hop is a wire that packets cross.
type Hop struct {
	*Wire
	Backward bool // from its To to its From
}

// ends returns where packets enter and leave the wire.
func (h Hop) ends() (from, to *End) {
	if h.Backward {
		return h.To, h.From
	}
	return h.From, h.To
}

// Path returns the wires that packets from one host to another cross, in order.
func (l *Layout) Path(from, to *Host) ([]Hop, error) {
	steps, err := l.Graph.Path(from.Name, to.Name)
	if err != nil {
		return nil, err
	}
	hops := make([]Hop, len(steps))
	for i, s := range steps {
		hops[i] = l.hop(s)
	}
	return hops, nil
}

func (l *Layout) hop(s Step) Hop {
	return Hop{l.Wires[slices.Index(l.Graph.Edges, s.Edge)], s.Backward}
}

// addr is the end's address of the same family as the prefix.
func (e *End) addr(like netip.Prefix) netip.Addr {
	if like.Addr().Is4() {
		return e.Addr4.Addr()
	}
	return e.Addr6.Addr()
}

// v4 is the host's address in the wire's subnet 10.77.WIRE.0/24.
func v4(wire, host int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, byte(wire), byte(host)}), 24)
}

// v6 is the host's address in the wire's subnet fd77:0:WIRE::/64: a /48 for each wire.
func v6(wire, host int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x77, 5: byte(wire), 15: byte(host)}), 64)
}
