package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/pod"
)

// Resolver looks up the kernel's ids of cgroups, network namespaces and pods.
type Resolver struct {
	// Cgroup returns the ids of the cgroups at a path; none if it does not exist yet.
	Cgroup func(path string) []uint64
	// NetNS returns the cookie of a network namespace by name or path; ok is
	// false if it does not exist yet.
	NetNS func(name string) (cookie uint64, ok bool)
	// Pods returns the cookies of the network namespaces of the pods that m selects now, in
	// ascending order.
	Pods func(m *pod.Match) []uint64
}

// Waiting is a name in a rule that does not exist yet. Until it does, the rule
// matches nothing through it.
type Waiting struct {
	Rule string `json:"rule"`
	Kind string `json:"kind"` // cgroup or netns
	Name string `json:"name"`
}

// Compile turns rules into the table that the datapath executes. ids are the
// class ids by rule. Names that do not exist yet are returned, and are not an error:
// compile again when they appear. A rule that selects no pods now matches nothing. That is usual, so
// it is not returned.
func Compile(rules []Rule, ids []uint32, r Resolver) (*class.Table, []Waiting, error) {
	if len(rules) > class.MaxRules {
		return nil, nil, fmt.Errorf("compile rules: %d rules, at most %d fit", len(rules), class.MaxRules)
	}
	if len(ids) != len(rules) {
		return nil, nil, fmt.Errorf("compile rules: %d class ids for %d rules", len(ids), len(rules))
	}
	t := &class.Table{Classes: make([]class.Class, len(rules))}
	for i := range rules {
		t.Classes[i] = classOf(&rules[i], ids[i])
	}
	t.Remote = prefixRows(rules, func(m *Match) []netip.Prefix { return m.Remote })
	t.Local = prefixRows(rules, func(m *Match) []netip.Prefix { return m.Local })
	t.RemotePort = portRows(rules, func(m *Match) []PortRange { return m.RemotePort })
	t.LocalPort = portRows(rules, func(m *Match) []PortRange { return m.LocalPort })
	compileDirection(t, rules)
	waiting := compileCgroup(t, rules, r)
	waiting = append(waiting, compileNetNS(t, rules, r)...)
	compileSame(t, rules)
	for i := range rules {
		t.Dims |= dims(&rules[i].Match)
	}
	if err := t.Check(); err != nil {
		return nil, nil, fmt.Errorf("compile rules: %w", err)
	}
	return t, waiting, nil
}

// dims returns the dimensions in which m has conditions.
func dims(m *Match) class.Dim {
	var d class.Dim
	add := func(cares bool, dim class.Dim) {
		if cares {
			d |= dim
		}
	}
	add(len(m.Remote) != 0, class.DimRemote)
	add(len(m.Local) != 0, class.DimLocal)
	add(len(m.RemotePort) != 0, class.DimRemotePort)
	add(len(m.LocalPort) != 0, class.DimLocalPort)
	add(len(m.Cgroup) != 0, class.DimCgroup)
	add(m.namesNetNS(), class.DimNetNS)
	add(m.Direction != Either, class.DimDirection)
	add(m.Same != Same{}, class.DimSamePrefix)
	return d
}

func classOf(r *Rule, id uint32) class.Class {
	c := class.Class{ID: id, Leave: r.Leave}
	if !r.Leave {
		c.Named = r.Match.Named()
		c.PeerAny = len(r.Match.Remote) != 0
		c.Switch = r.Learn != nil && r.Learn.SwitchRunning
		c.OwnScope = r.Learn != nil && r.Learn.OwnScope
		c.Watch, c.WatchShare = r.Watch.Events, shareOf(r.Watch.Share)
		c.Limit = r.LimitKey()
		if o := r.OnRTO; o != (OnRTO{}) {
			c.Timeouts = class.Timeouts{CC: o.CC, After: uint32(o.After), Share: shareOf(o.Share)}
		}
	}
	if c.Watch == 0 {
		c.WatchShare = 0
	}
	return c
}

var roots = []netip.Prefix{
	netip.PrefixFrom(netip.IPv4Unspecified(), 0),
	netip.PrefixFrom(netip.IPv6Unspecified(), 0),
}

// prefixRows compiles one prefix dimension; nil if no rule has conditions in it.
//
// Sorted prefixes form a tree, each parent right before the prefixes that it contains. They
// are walked with a stack of the open parents, and each row includes the rules of its
// parent. A row that adds no rule is left out, because its parent's row is the same.
func prefixRows(rules []Rule, of func(*Match) []netip.Prefix) []class.PrefixSet {
	var indifferent class.Set
	named := make(map[netip.Prefix]class.Set)
	for i := range rules {
		prefixes := of(&rules[i].Match)
		if len(prefixes) == 0 {
			indifferent.Add(i)
		}
		for _, p := range prefixes {
			s := named[p]
			s.Add(i)
			named[p] = s
		}
	}
	if len(named) == 0 {
		return nil
	}
	for _, p := range roots {
		named[p] = named[p].Or(indifferent)
	}
	order := make([]netip.Prefix, 0, len(named))
	for p := range named {
		order = append(order, p)
	}
	slices.SortFunc(order, class.ComparePrefix)

	var rows, open []class.PrefixSet
	for _, p := range order {
		row := class.PrefixSet{Prefix: p, Rules: named[p]}
		for len(open) > 0 && !open[len(open)-1].Prefix.Contains(p.Addr()) {
			open = open[:len(open)-1]
		}
		if len(open) > 0 {
			parent := open[len(open)-1].Rules
			row.Rules = row.Rules.Or(parent)
			if row.Rules == parent {
				continue
			}
		}
		open = append(open, row)
		rows = append(rows, row)
	}
	return rows
}

// portRows compiles one port dimension; nil if no rule has conditions in it. The set of
// rules changes only at the first port of a range and after the last one.
func portRows(rules []Rule, of func(*Match) []PortRange) []class.PortRange {
	starts := []int{0}
	for i := range rules {
		for _, p := range of(&rules[i].Match) {
			starts = append(starts, int(p.First), int(p.Last)+1)
		}
	}
	if len(starts) == 1 {
		return nil
	}
	slices.Sort(starts)
	starts = slices.Compact(starts)
	if starts[len(starts)-1] != 1<<16 {
		starts = append(starts, 1<<16)
	}
	var rows []class.PortRange
	for n := range len(starts) - 1 {
		row := class.PortRange{First: uint16(starts[n]), Last: uint16(starts[n+1] - 1)}
		for i := range rules {
			ranges := of(&rules[i].Match)
			in := func(p PortRange) bool { return p.First <= row.First && row.Last <= p.Last }
			if len(ranges) == 0 || slices.ContainsFunc(ranges, in) {
				row.Rules.Add(i)
			}
		}
		if last := len(rows) - 1; last >= 0 && rows[last].Rules == row.Rules {
			rows[last].Last = row.Last
			continue
		}
		rows = append(rows, row)
	}
	return rows
}

func compileDirection(t *class.Table, rules []Rule) {
	for i := range rules {
		if d := rules[i].Match.Direction; d != Incoming {
			t.Outgoing.Add(i)
		}
		if d := rules[i].Match.Direction; d != Outgoing {
			t.Incoming.Add(i)
		}
	}
}

func compileCgroup(t *class.Table, rules []Rule, r Resolver) (waiting []Waiting) {
	t.Cgroup = make(map[uint64]class.Set)
	for i := range rules {
		paths := rules[i].Match.Cgroup
		if len(paths) == 0 {
			t.AnyCgroup.Add(i)
		}
		for _, path := range paths {
			var ids []uint64
			if r.Cgroup != nil {
				ids = r.Cgroup(path)
			}
			if len(ids) == 0 {
				waiting = append(waiting, Waiting{Rule: rules[i].Name, Kind: "cgroup", Name: path})
			}
			for _, id := range ids {
				s := t.Cgroup[id]
				s.Add(i)
				t.Cgroup[id] = s
			}
		}
	}
	for id, s := range t.Cgroup {
		t.Cgroup[id] = s.Or(t.AnyCgroup)
	}
	return waiting
}

func compileNetNS(t *class.Table, rules []Rule, r Resolver) (waiting []Waiting) {
	t.NetNS = make(map[uint64]class.Set)
	for i := range rules {
		m := &rules[i].Match
		if !m.namesNetNS() {
			t.AnyNetNS.Add(i)
			continue
		}
		var cookies []uint64
		for _, name := range m.NetNS {
			if cookie, ok := netnsCookie(name, r); ok {
				cookies = append(cookies, cookie)
			} else {
				waiting = append(waiting, Waiting{Rule: rules[i].Name, Kind: "netns", Name: name})
			}
		}
		for _, cookie := range ofPods(m, cookies, r) {
			s := t.NetNS[cookie]
			s.Add(i)
			t.NetNS[cookie] = s
		}
	}
	for cookie, s := range t.NetNS {
		t.NetNS[cookie] = s.Or(t.AnyNetNS)
	}
	return waiting
}

// ofPods returns the cookies of the network namespaces that m asks for: named are those of its
// names. If it asks for pods as well, a namespace has to be of both.
func ofPods(m *Match, named []uint64, r Resolver) []uint64 {
	if m.Pod == nil {
		return named
	}
	if r.Pods == nil {
		return nil
	}
	pods := r.Pods(m.Pod)
	if len(m.NetNS) == 0 {
		return pods
	}
	return slices.DeleteFunc(named, func(cookie uint64) bool { return !slices.Contains(pods, cookie) })
}

// namesNetNS reports whether m asks for network namespaces, by name or as those of pods.
func (m *Match) namesNetNS() bool { return len(m.NetNS) != 0 || m.Pod != nil }

// Named reports whether m names a network namespace, a pod or a cgroup: such a rule has priority
// over the settings of the namespace.
func (m *Match) Named() bool { return m.namesNetNS() || len(m.Cgroup) != 0 }

// netnsCookie parses a cookie, which is a plain number, or looks up the cookie of a name.
func netnsCookie(name string, r Resolver) (cookie uint64, ok bool) {
	if cookie, err := strconv.ParseUint(name, 10, 64); err == nil {
		return cookie, true
	}
	if r.NetNS == nil {
		return 0, false
	}
	return r.NetNS(name)
}

func compileSame(t *class.Table, rules []Rule) {
	add := func(v4 bool, bits, rule int) {
		if bits == 0 {
			return
		}
		at := slices.IndexFunc(t.Same, func(p class.SamePrefix) bool { return p.V4 == v4 && p.Bits == bits })
		if at < 0 {
			at = len(t.Same)
			t.Same = append(t.Same, class.SamePrefix{V4: v4, Bits: bits, Rules: t.AnySame})
		}
		t.Same[at].Rules.Add(rule)
	}
	for i := range rules {
		if rules[i].Match.Same == (Same{}) {
			t.AnySame.Add(i)
		}
	}
	for i := range rules {
		add(false, rules[i].Match.Same.IPv6, i)
		add(true, rules[i].Match.Same.IPv4, i)
	}
}
