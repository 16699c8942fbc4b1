package topology

import (
	"fmt"
	"net/netip"
)

// Remote is a server behind the gateway of a Star.
type Remote struct {
	*Host
	// Near is the gateway's end of the wire, Far the server's own. Packets to the
	// server leave through Near and arrive at Far.
	Near, Far *End
	Addr4     netip.Addr
	Addr6     netip.Addr
}

// Star is a client, its one gateway, and any number of servers behind it, each
// in an IPv4 /24 and an IPv6 /48 of its own: different paths by tcpilot's
// default prefixes, the same path for whoever looks at the gateway.
type Star struct {
	Client  *Host
	Gateway *Host
	Remotes []*Remote
	// Access is the client's end of its wire, Entry the gateway's: packets from
	// the client arrive at Entry.
	Access, Entry *End
}

// maxRemotes is what fits the third byte of the addresses.
const maxRemotes = 200

// NewStar builds a client, a gateway and servers with these names.
func NewStar(n *Net, remotes ...string) (*Star, error) {
	if len(remotes) > maxRemotes {
		return nil, fmt.Errorf("build star: %d servers, at most %d", len(remotes), maxRemotes)
	}
	s := &Star{}
	var err error
	if s.Client, err = n.Host("client"); err != nil {
		return nil, err
	}
	if s.Gateway, err = n.Host("gateway"); err != nil {
		return nil, err
	}
	if err = s.Gateway.Forward(); err != nil {
		return nil, err
	}
	s.Access, s.Entry, err = n.Wire(
		EndSpec{s.Client, "eth0", v4(0, 2), v6(0, 2)},
		EndSpec{s.Gateway, "client", v4(0, 1), v6(0, 1)})
	if err != nil {
		return nil, err
	}
	if err := s.Client.defaultVia(s.Entry); err != nil {
		return nil, err
	}
	for i, name := range remotes {
		if err := s.add(n, i+1, name); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Star) add(n *Net, i int, name string) error {
	h, err := n.Host(name)
	if err != nil {
		return err
	}
	near, far, err := n.Wire(
		EndSpec{s.Gateway, fmt.Sprintf("remote%d", i), v4(i, 1), v6(i, 1)},
		EndSpec{h, "eth0", v4(i, 2), v6(i, 2)})
	if err != nil {
		return err
	}
	s.Remotes = append(s.Remotes, &Remote{Host: h, Near: near, Far: far,
		Addr4: far.Addr4.Addr(), Addr6: far.Addr6.Addr()})
	return h.defaultVia(near)
}

// defaultVia sends everything through the far end of a wire.
func (h *Host) defaultVia(gw *End) error {
	if err := h.Route(netip.MustParsePrefix("0.0.0.0/0"), gw.Addr4.Addr()); err != nil {
		return err
	}
	return h.Route(netip.MustParsePrefix("::/0"), gw.Addr6.Addr())
}

// v4 is host of the wire's subnet 10.77.WIRE.0/24.
func v4(wire, host int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, byte(wire), byte(host)}), 24)
}

// v6 is host of the wire's subnet fd77:0:WIRE::/64: a /48 for each wire.
func v6(wire, host int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x77, 4: 0, 5: byte(wire), 15: byte(host)}), 64)
}
