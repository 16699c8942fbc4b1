package policy

import (
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/class"
)

// Shadow is a rule that can never match, because the earlier rules in By match every
// connection that it would match.
type Shadow struct {
	Rule int
	By   []int
}

// Shadows finds rules that can never match. It finds every rule that one earlier rule
// covers. It also finds rules that several earlier rules cover together in one dimension (for
// example an outgoing and an incoming one), if each of them covers all other dimensions. It
// does not find rules covered by a combination over several dimensions.
func Shadows(rules []Rule) []Shadow {
	var found []Shadow
	for j := range rules {
		if by := shadowedBy(rules, j); by != nil {
			found = append(found, Shadow{Rule: j, By: by})
		}
	}
	return found
}

const allDims = class.DimSamePrefix<<1 - 1

func shadowedBy(rules []Rule, j int) []int {
	uncovered := make([]class.Dim, j) // by earlier rule: where it asks for more than rule j
	for i := range j {
		uncovered[i] = uncoveredDims(&rules[i].Match, &rules[j].Match)
		if uncovered[i] == 0 {
			return []int{i}
		}
	}
	for dim := class.Dim(1); dim < allDims; dim <<= 1 {
		var by []int
		for i := range j {
			// Of several rules, only names of namespaces are united, not pods.
			if uncovered[i] == dim && (dim != class.DimNetNS || podsCover(&rules[i].Match, &rules[j].Match)) {
				by = append(by, i)
			}
		}
		if len(by) < 2 {
			continue
		}
		if coverTogether(rules, by, j, dim) {
			return fewest(rules, by, j, dim)
		}
	}
	return nil
}

// coverTogether reports whether the rules in by together match, in dim, everything that
// rule j matches.
func coverTogether(rules []Rule, by []int, j int, dim class.Dim) bool {
	union := unite(rules, by, dim)
	return uncoveredDims(&union, &rules[j].Match)&dim == 0
}

// fewest drops the rules that are not needed to cover rule j.
func fewest(rules []Rule, by []int, j int, dim class.Dim) []int {
	for k := len(by) - 1; k >= 0; k-- {
		without := slices.Delete(slices.Clone(by), k, k+1)
		if len(without) > 0 && coverTogether(rules, without, j, dim) {
			by = without
		}
	}
	return by
}

// unite returns a Match that matches, in dim, what any of the rules matches.
func unite(rules []Rule, by []int, dim class.Dim) Match {
	var u Match
	var outgoing, incoming bool
	for _, i := range by {
		m := &rules[i].Match
		u.Remote = append(u.Remote, m.Remote...)
		u.Local = append(u.Local, m.Local...)
		u.RemotePort = append(u.RemotePort, m.RemotePort...)
		u.LocalPort = append(u.LocalPort, m.LocalPort...)
		u.Cgroup = append(u.Cgroup, m.Cgroup...)
		u.NetNS = append(u.NetNS, m.NetNS...)
		outgoing = outgoing || m.Direction == Outgoing
		incoming = incoming || m.Direction == Incoming
		u.Same.IPv4 = shorter(u.Same.IPv4, m.Same.IPv4)
		u.Same.IPv6 = shorter(u.Same.IPv6, m.Same.IPv6)
	}
	if dim == class.DimDirection && !(outgoing && incoming) {
		u.Direction = rules[by[0]].Match.Direction
	}
	return u
}

// shorter returns the lesser of two prefix lengths; 0 is none.
func shorter(a, b int) int {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// uncoveredDims returns the dimensions in which m does not match everything that o matches.
func uncoveredDims(m, o *Match) class.Dim {
	var d class.Dim
	check := func(dim class.Dim, covered bool) {
		if !covered {
			d |= dim
		}
	}
	check(class.DimRemote, prefixesCover(m.Remote, o.Remote))
	check(class.DimLocal, prefixesCover(m.Local, o.Local))
	check(class.DimRemotePort, portsCover(m.RemotePort, o.RemotePort))
	check(class.DimLocalPort, portsCover(m.LocalPort, o.LocalPort))
	check(class.DimCgroup, namesCover(m.Cgroup, o.Cgroup, below))
	check(class.DimNetNS, namesCover(m.NetNS, o.NetNS, func(a, b string) bool { return a == b }) && podsCover(m, o))
	check(class.DimDirection, m.Direction == Either || m.Direction == o.Direction)
	check(class.DimSamePrefix, sameCovers(m.Same, o.Same))
	return d
}

// podsCover reports whether m does not ask for pods, or selects all that o selects.
func podsCover(m, o *Match) bool { return m.Pod == nil || o.Pod != nil && m.Pod.Covers(o.Pod) }

func namesCover(m, o []string, covers func(a, b string) bool) bool {
	if len(m) == 0 {
		return true
	}
	for _, b := range o {
		if !slices.ContainsFunc(m, func(a string) bool { return covers(a, b) }) {
			return false
		}
	}
	return len(o) != 0
}

// below reports whether cgroup b is a or inside of it.
func below(a, b string) bool {
	a, b = path.Clean(a), path.Clean(b)
	return a == b || a == "/" || strings.HasPrefix(b, a+"/")
}

func sameCovers(m, o Same) bool {
	if m == (Same{}) {
		return true
	}
	covers := func(m, o int) bool { return o == 0 || (m != 0 && m <= o) }
	return o != Same{} && covers(m.IPv4, o.IPv4) && covers(m.IPv6, o.IPv6)
}

// portsCover reports whether the ranges of m contain all ports of o.
func portsCover(m, o []PortRange) bool {
	if len(m) == 0 {
		return true
	}
	if len(o) == 0 {
		o = []PortRange{{0, 65535}}
	}
	m = slices.Clone(m)
	slices.SortFunc(m, func(a, b PortRange) int { return int(a.First) - int(b.First) })
	for _, p := range o {
		next := int(p.First) // first port of p not yet found in m
		for _, q := range m {
			if int(q.First) <= next {
				next = max(next, int(q.Last)+1)
			}
		}
		if next <= int(p.Last) {
			return false
		}
	}
	return true
}

// prefixesCover reports whether the prefixes of m contain all addresses of o.
func prefixesCover(m, o []netip.Prefix) bool {
	if len(m) == 0 {
		return true
	}
	if len(o) == 0 {
		o = roots
	}
	for _, p := range o {
		if !covered(p, m) {
			return false
		}
	}
	return true
}

// covered reports whether the prefixes of m together contain all of p. It halves p only as
// long as some prefix of m lies within it.
func covered(p netip.Prefix, m []netip.Prefix) bool {
	var inside []netip.Prefix
	for _, q := range m {
		switch {
		case !q.Overlaps(p):
		case q.Bits() <= p.Bits():
			return true
		default:
			inside = append(inside, q)
		}
	}
	if len(inside) < 2 {
		return false
	}
	low, high := halves(p)
	return covered(low, inside) && covered(high, inside)
}

// halves splits a prefix that is shorter than its address.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	b := p.Addr().AsSlice()
	n := p.Bits()
	b[n/8] |= 0x80 >> (n % 8)
	addr, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(p.Addr(), n+1), netip.PrefixFrom(addr, n+1)
}
