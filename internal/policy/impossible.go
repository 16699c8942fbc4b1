package policy

import (
	"fmt"
	"net/netip"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Impossible says why no connection can match m; empty if one can.
func (m *Match) Impossible() string {
	v4, v6 := m.families()
	if !v4 && !v6 {
		return "remote and local (and same_prefix) ask for different address families"
	}
	if m.Same == (Same{}) {
		return ""
	}
	if v4 && canShare(m.Remote, m.Local, true, m.Same.IPv4) || v6 && canShare(m.Remote, m.Local, false, m.Same.IPv6) {
		return ""
	}
	return fmt.Sprintf("no remote prefix shares the first bits (same prefix %s) with a local one", m.Same)
}

// families returns the address families of the connections that m asks for.
func (m *Match) families() (v4, v6 bool) {
	v4, v6 = true, true
	if m.Same != (Same{}) {
		v4, v6 = m.Same.IPv4 != 0, m.Same.IPv6 != 0
	}
	for _, list := range [][]netip.Prefix{m.Remote, m.Local} {
		if len(list) == 0 {
			continue
		}
		var has4, has6 bool
		for _, p := range list {
			has4 = has4 || p.Addr().Is4()
			has6 = has6 || p.Addr().Is6()
		}
		v4, v6 = v4 && has4, v6 && has6
	}
	return v4, v6
}

// canShare reports whether an address of remote and one of local, both of one
// family, can have the same first n bits. An empty list is every address.
func canShare(remote, local []netip.Prefix, v4 bool, n int) bool {
	if len(remote) == 0 || len(local) == 0 {
		return true
	}
	for _, r := range remote {
		for _, l := range local {
			if r.Addr().Is4() != v4 || l.Addr().Is4() != v4 {
				continue
			}
			if cut(r, n).Overlaps(cut(l, n)) {
				return true
			}
		}
	}
	return false
}

// cut shortens p to at most n bits.
func cut(p netip.Prefix, n int) netip.Prefix {
	return netip.PrefixFrom(p.Addr(), min(p.Bits(), n)).Masked()
}

// CannotApply says why field f has no effect on any connection of m; empty if it
// can have one.
func (m *Match) CannotApply(f tcp.Field) string {
	v4, v6 := m.families()
	switch {
	case m.Direction == Incoming && (f == tcp.SynRTO || f == tcp.SynCount):
		return "acts on outgoing connections only"
	case m.Direction == Outgoing && (f == tcp.SynAckRTO || f == tcp.SaveSyn):
		return "acts on incoming connections only"
	case f == tcp.TOS && !v4:
		return "acts on IPv4 only"
	case f == tcp.TClass && !v6:
		return "acts on IPv6 only"
	}
	return ""
}
