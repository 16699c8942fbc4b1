package topology

import (
	"fmt"
	"net/netip"
	"slices"
)

// Place is a pod and the node that it is on, which is a router of the graph.
type Place struct{ Pod, Node string }

// Pod is a sender or a receiver that has no link of its own. A subject connects it to its node,
// and sets its addresses (SetAddrs).
type Pod struct {
	*Host
	Node *Host
	// Net4 and Net6 are where addresses of the node's pods come from: 10.78.NODE.0/24 and
	// fd78:0:NODE::/64.
	Net4, Net6 netip.Prefix

	number       int // among the node's pods, from 0
	addr4, addr6 netip.Addr
}

// Addresses of all pods, in which each node has a part.
var (
	podNet4 = netip.MustParsePrefix("10.78.0.0/16")
	podNet6 = netip.MustParsePrefix("fd78::/32")
)

// maxNodes is the number of nodes that the third byte of the pods' IPv4 addresses can
// distinguish.
const maxNodes = 256

// checkPods checks the places of pods; links has the number of links of each node of the graph.
func (g Graph) checkPods(links map[string]int) error {
	for i, p := range g.Pods {
		at := slices.IndexFunc(g.Nodes, func(n Node) bool { return n.Name == p.Pod })
		switch {
		case at < 0 || g.Nodes[at].Role == Router:
			return fmt.Errorf("pod %q: it is no sender or receiver", p.Pod)
		case !slices.Contains(g.Nodes, Node{p.Node, Router}):
			return fmt.Errorf("pod %s: its node %q is no router", p.Pod, p.Node)
		case links[p.Pod] > 0:
			return fmt.Errorf("pod %s has a link: only its node has links", p.Pod)
		case slices.ContainsFunc(g.Pods[:i], func(o Place) bool { return o.Pod == p.Pod }):
			return fmt.Errorf("pod %s is on two nodes", p.Pod)
		case len(g.Pods) > maxNodes:
			return fmt.Errorf("%d pods, at most %d", len(g.Pods), maxNodes)
		}
	}
	return nil
}

func (g Graph) isPod(name string) bool { return g.place(name) != name }

// place is the node that a pod is on; for a node of the graph that is no pod, it is that
// node itself.
func (g Graph) place(name string) string {
	for _, p := range g.Pods {
		if p.Pod == name {
			return p.Node
		}
	}
	return name
}

// addPods finds the pods, and gives routers their routes to them.
func (l *Layout) addPods() error {
	var nodes []*Host
	for _, place := range l.Graph.Pods {
		p := &Pod{Host: l.Hosts[place.Pod], Node: l.Hosts[place.Node]}
		if !slices.Contains(nodes, p.Node) {
			nodes = append(nodes, p.Node)
		}
		n := byte(slices.Index(nodes, p.Node))
		p.Net4 = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 78, n, 0}), 24)
		p.Net6 = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x78, 5: n}), 64)
		for _, o := range l.Pods {
			if o.Node == p.Node {
				p.number++
			}
		}
		l.Pods = append(l.Pods, p)
		for _, h := range []*Host{p.Host, p.Node} {
			// Addresses that plugins give are usable at once, not after 1 s.
			if err := h.SetSysctl("net.ipv6.conf.default.accept_dad", "0"); err != nil {
				return err
			}
		}
		if p.number > 0 {
			continue
		}
		for _, all := range []netip.Prefix{p.Net4, p.Net6} {
			if err := l.routers(p.Node, nil, all); err != nil {
				return err
			}
		}
	}
	return nil
}

// pod returns the pod that a host is; nil if it is none.
func (l *Layout) pod(h *Host) *Pod {
	for _, p := range l.Pods {
		if p.Host == h {
			return p
		}
	}
	return nil
}

// Place returns the node that a pod is on; for a host that is no pod, the host itself.
func (l *Layout) Place(h *Host) *Host {
	if p := l.pod(h); p != nil {
		return p.Node
	}
	return h
}

// SetAddrs sets the addresses at which others reach the pod; invalid ones if it is not
// connected.
func (p *Pod) SetAddrs(addr4, addr6 netip.Addr) { p.addr4, p.addr6 = addr4, addr6 }

func (p *Pod) addr(ipv6 bool) netip.Addr {
	if ipv6 {
		return p.addr6
	}
	return p.addr4
}
