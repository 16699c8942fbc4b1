package class

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"sort"
)

// Full returns the set of the rules 0 to n-1.
func Full(n int) Set {
	var s Set
	for i := range s {
		switch {
		case n >= 64*(i+1):
			s[i] = ^uint64(0)
		case n > 64*i:
			s[i] = 1<<(n-64*i) - 1
		}
	}
	return s
}

// Classify returns the index of the first rule that c satisfies, or -1. It works as the
// datapath does with the same table: one look-up for each dimension in t.Dims.
func (t *Table) Classify(c *Conn) (rule int) {
	remote, local := c.Remote.Unmap(), c.Local.Unmap()
	s := Full(len(t.Classes))
	if t.Dims&DimRemote != 0 {
		s = s.and(longest(t.Remote, remote))
	}
	if t.Dims&DimLocal != 0 {
		s = s.and(longest(t.Local, local))
	}
	if t.Dims&DimRemotePort != 0 {
		s = s.and(portSet(t.RemotePort, c.RemotePort))
	}
	if t.Dims&DimLocalPort != 0 {
		s = s.and(portSet(t.LocalPort, c.LocalPort))
	}
	if t.Dims&DimCgroup != 0 {
		g := t.AnyCgroup
		for _, id := range c.Cgroups {
			g = g.Or(t.Cgroup[id])
		}
		s = s.and(g)
	}
	if t.Dims&DimNetNS != 0 {
		n, ok := t.NetNS[c.NetNS]
		if !ok {
			n = t.AnyNetNS
		}
		s = s.and(n)
	}
	if t.Dims&DimDirection != 0 {
		if c.Outgoing {
			s = s.and(t.Outgoing)
		} else {
			s = s.and(t.Incoming)
		}
	}
	if t.Dims&DimSamePrefix != 0 {
		g := t.AnySame
		for i := range t.Same {
			if t.Same[i].holds(remote, local) {
				g = g.Or(t.Same[i].Rules)
			}
		}
		s = s.and(g)
	}
	return s.first()
}

// holds reports whether both addresses are of p's family and have the same first p.Bits bits.
func (p *SamePrefix) holds(a, b netip.Addr) bool {
	return a.Is4() == p.V4 && b.Is4() == p.V4 && commonBits(a, b) >= p.Bits
}

// portSet finds the range that contains port; the ranges are in order, without gaps.
func portSet(rs []PortRange, port uint16) Set {
	i := sort.Search(len(rs), func(i int) bool { return rs[i].Last >= port })
	if i == len(rs) || rs[i].First > port {
		return Set{}
	}
	return rs[i].Rules
}

// longest returns the rules of a's longest match among rows.
//
// The last row that is not after a either contains a, or shares only some leading bits with
// it. In the second case, every row that contains a is a prefix of those bits, and the search
// continues with them: at most one step per prefix length.
func longest(rows []PrefixSet, a netip.Addr) Set {
	at, length := a, a.BitLen()
	for {
		i := sort.Search(len(rows), func(i int) bool {
			return ComparePrefix(rows[i].Prefix, netip.PrefixFrom(at, length)) > 0
		}) - 1
		if i < 0 {
			return Set{}
		}
		p := rows[i].Prefix
		if p.Contains(a) {
			return rows[i].Rules
		}
		if p.Addr().Is4() != a.Is4() {
			return Set{}
		}
		length = min(length-1, p.Bits(), commonBits(a, p.Addr()))
		if length < 0 {
			return Set{}
		}
		at = netip.PrefixFrom(a, length).Masked().Addr()
	}
}

// ComparePrefix orders prefixes as a Table's rows are: IPv4 before IPv6, then by
// address, then by length, so that a prefix comes before those inside it.
func ComparePrefix(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}

// commonBits counts the leading bits that two addresses of one family share.
func commonBits(a, b netip.Addr) int {
	if a.Is4() {
		x, y := a.As4(), b.As4()
		return bits.LeadingZeros32(binary.BigEndian.Uint32(x[:]) ^ binary.BigEndian.Uint32(y[:]))
	}
	x, y := a.As16(), b.As16()
	hi := binary.BigEndian.Uint64(x[:8]) ^ binary.BigEndian.Uint64(y[:8])
	if hi != 0 {
		return bits.LeadingZeros64(hi)
	}
	return 64 + bits.LeadingZeros64(binary.BigEndian.Uint64(x[8:])^binary.BigEndian.Uint64(y[8:]))
}
