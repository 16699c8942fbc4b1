package topology

import "net/netip"

// Remote is a server behind the gateway of a Star.
type Remote struct {
	*Host
	// Near is the gateway's end of the wire, Far the server's own. Packets to the
	// server leave through Near and arrive at Far.
	Near, Far *End
	Addr4     netip.Addr
	Addr6     netip.Addr
}

// Star is a Layout for tests that address its parts by name: a client, its gateway,
// and servers behind it. With tcpilot's default prefixes each server is a path of its
// own, seen from the client as from the gateway.
type Star struct {
	*Layout
	Client  *Host
	Gateway *Host
	Remotes []*Remote
	// Access is the client's end of its wire, Entry the gateway's: packets from
	// the client arrive at Entry.
	Access, Entry *End
}

// NewStar builds a client, a gateway and servers with these names.
func NewStar(n *Net, remotes ...string) (*Star, error) {
	g := Graph{
		Nodes: []Node{{"client", Sender}, {"gateway", Router}},
		Edges: []Edge{{"client", "client", "gateway"}},
	}
	for _, name := range remotes {
		g.Nodes = append(g.Nodes, Node{name, Receiver})
		g.Edges = append(g.Edges, Edge{name, "gateway", name})
	}
	l, err := Build(n, g)
	if err != nil {
		return nil, err
	}
	s := &Star{Layout: l, Client: l.Senders[0], Gateway: l.Hosts["gateway"],
		Access: l.Wires[0].From, Entry: l.Wires[0].To}
	for i, w := range l.Wires[1:] {
		s.Remotes = append(s.Remotes, &Remote{Host: l.Receivers[i], Near: w.From, Far: w.To,
			Addr4: w.To.Addr4.Addr(), Addr6: w.To.Addr6.Addr()})
	}
	return s, nil
}
