package policy

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/pod"
)

// The world of the random tests: few of everything, so that rules meet.
var (
	worldCgroups = map[string]uint64{"/": 1, "/a": 2, "/a/b": 3, "/c": 4} // /gone does not exist
	worldPaths   = []string{"/", "/a", "/a/b", "/c", "/gone"}
	worldMembers = [][]uint64{nil, {1}, {1, 2}, {1, 2, 3}, {1, 4}}
	worldNetNS   = map[string]uint64{"blue": 11, "/proc/7/ns/net": 12}
	worldNames   = []string{"blue", "/proc/7/ns/net", "13", "gone"}
	worldPods    = []pod.Pod{{Cookie: 11, Namespace: "shop", Name: "web-1"}, {Cookie: 12, Namespace: "shop", Name: "db", Annotations: map[string]string{"p": "bulk"}},
		{Cookie: 14, Namespace: "prod", Name: "web-1"}}
	worldSelectors = []*pod.Match{{}, {Namespace: []string{"shop"}}, {Name: []string{"web-*"}}, {Name: []string{"*"}, Annotations: map[string]string{"p": "bulk"}},
		{Namespace: []string{"prod", "shop"}}, {Namespace: []string{"gone"}}}
)

func worldResolver() Resolver {
	return Resolver{
		Cgroup: func(path string) []uint64 {
			if id, ok := worldCgroups[path]; ok {
				return []uint64{id}
			}
			return nil
		},
		NetNS: func(name string) (uint64, bool) {
			cookie, ok := worldNetNS[name]
			return cookie, ok
		},
		Pods: pod.NewSet(worldPods).Cookies,
	}
}

func randomAddr(r *rand.Rand, v4 bool) netip.Addr {
	if v4 {
		b := [4]byte{10, byte(r.IntN(2)) << 7, byte(r.IntN(3)), byte(r.IntN(256))}
		if r.IntN(8) == 0 {
			b[0] = byte(r.IntN(256))
		}
		return netip.AddrFrom4(b)
	}
	b := [16]byte{0: 0xfd, 4: byte(r.IntN(3)) << 4, 5: byte(r.IntN(2)), 7: byte(r.IntN(3)), 8: byte(r.IntN(2)), 15: byte(r.IntN(256))}
	switch r.IntN(8) {
	case 0:
		b[0] = byte(r.IntN(256))
	case 1: // next to, but not, the v4-mapped addresses
		b = [16]byte{10: 0xff, 11: 0xfe, 15: byte(r.IntN(4))}
	}
	return netip.AddrFrom16(b)
}

func some[T any](r *rand.Rand, of func() T) []T {
	var list []T
	for range r.IntN(4) {
		list = append(list, of())
	}
	return list
}

func randomMatch(r *rand.Rand) Match {
	prefix := func() netip.Prefix {
		a := randomAddr(r, r.IntN(2) == 0)
		p, _ := a.Prefix(r.IntN(a.BitLen() + 1))
		return p
	}
	ports := func() PortRange {
		first := uint16(r.IntN(12))
		if r.IntN(4) == 0 {
			return PortRange{first, 65535}
		}
		return PortRange{first, first + uint16(r.IntN(4))}
	}
	var m Match
	if r.IntN(2) == 0 {
		m.Remote = some(r, prefix)
	}
	if r.IntN(3) == 0 {
		m.Local = some(r, prefix)
	}
	if r.IntN(3) == 0 {
		m.RemotePort = some(r, ports)
	}
	if r.IntN(3) == 0 {
		m.LocalPort = some(r, ports)
	}
	if r.IntN(3) == 0 {
		m.Cgroup = some(r, func() string { return worldPaths[r.IntN(len(worldPaths))] })
	}
	if r.IntN(4) == 0 {
		m.NetNS = some(r, func() string { return worldNames[r.IntN(len(worldNames))] })
	}
	if r.IntN(4) == 0 {
		m.Pod = worldSelectors[r.IntN(len(worldSelectors))]
	}
	if r.IntN(4) == 0 {
		m.Direction = Direction(r.IntN(3))
	}
	if r.IntN(4) == 0 {
		m.Same = Same{IPv4: []int{0, 8, 9, 24}[r.IntN(4)], IPv6: []int{0, 8, 36, 61}[r.IntN(4)]}
	}
	return m
}

func randomConn(r *rand.Rand) class.Conn {
	v4 := r.IntN(2) == 0
	c := class.Conn{
		Remote: randomAddr(r, v4), Local: randomAddr(r, v4),
		RemotePort: uint16(r.IntN(16)), LocalPort: uint16(r.IntN(16)),
		Cgroups:  worldMembers[r.IntN(len(worldMembers))],
		NetNS:    uint64(10 + r.IntN(5)),
		Outgoing: r.IntN(2) == 0,
	}
	if r.IntN(8) == 0 {
		c.RemotePort = 65535
	}
	if v4 && r.IntN(2) == 0 { // a dual-stack socket
		c.Remote, c.Local = netip.AddrFrom16(c.Remote.As16()), netip.AddrFrom16(c.Local.As16())
	}
	return c
}

// naive is what a rule's match means, condition by condition.
func naive(m *Match, c *class.Conn) bool {
	remote, local := c.Remote.Unmap(), c.Local.Unmap()
	in := func(list []netip.Prefix, a netip.Addr) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	port := func(list []PortRange, n uint16) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(p PortRange) bool { return p.First <= n && n <= p.Last })
	}
	cgroup := len(m.Cgroup) == 0 || slices.ContainsFunc(m.Cgroup, func(p string) bool {
		id, ok := worldCgroups[p]
		return ok && slices.Contains(c.Cgroups, id)
	})
	netns := len(m.NetNS) == 0 || slices.ContainsFunc(m.NetNS, func(n string) bool {
		cookie, ok := worldNetNS[n]
		if number, err := strconv.ParseUint(n, 10, 64); err == nil {
			cookie, ok = number, true
		}
		return ok && cookie == c.NetNS
	})
	ofPod := m.Pod == nil || slices.ContainsFunc(worldPods, func(p pod.Pod) bool { return p.Cookie == c.NetNS && m.Pod.Match(&p) })
	same := m.Same == Same{}
	if !same {
		n := m.Same.IPv6
		if remote.Is4() {
			n = m.Same.IPv4
		}
		if n != 0 && remote.Is4() == local.Is4() {
			p, _ := remote.Prefix(n)
			same = p.Contains(local)
		}
	}
	direction := m.Direction == Either || (m.Direction == Outgoing) == c.Outgoing
	return in(m.Remote, remote) && in(m.Local, local) && port(m.RemotePort, c.RemotePort) &&
		port(m.LocalPort, c.LocalPort) && cgroup && netns && ofPod && same && direction
}

func naiveFirst(rules []Rule, c *class.Conn) int {
	return slices.IndexFunc(rules, func(r Rule) bool { return naive(&r.Match, c) })
}

func randomRules(r *rand.Rand, n int) ([]Rule, []uint32) {
	rules, ids := make([]Rule, n), make([]uint32, n)
	for i := range rules {
		rules[i] = Rule{Name: "r" + strconv.Itoa(i), Match: randomMatch(r)}
		ids[i] = uint32(i + 1)
	}
	return rules, ids
}

// checkWorld compares the compiled table with the naive evaluation, and the
// claim that a rule is never reached with which rules are.
func checkWorld(t *testing.T, seed uint64, conns int) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	n := 1 + r.IntN(12)
	if r.IntN(8) == 0 {
		n = class.MaxRules
	}
	rules, ids := randomRules(r, n)
	table, _, err := Compile(rules, ids, worldResolver())
	if err != nil {
		// More same-prefix comparisons than fit is the only thing that can be wrong.
		t.Fatalf("seed %d: %v", seed, err)
	}
	if err := table.Check(); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	never := make(map[int]bool)
	for _, s := range Shadows(rules) {
		never[s.Rule] = true
		if len(s.By) == 0 || slices.Max(s.By) >= s.Rule {
			t.Fatalf("seed %d: rule %d shadowed by %v", seed, s.Rule, s.By)
		}
	}
	for range conns {
		c := randomConn(r)
		got, want := table.Classify(&c), naiveFirst(rules, &c)
		if got != want {
			t.Fatalf("seed %d: %+v: got rule %d, want %d", seed, c, got, want)
		}
		if want >= 0 && never[want] {
			t.Fatalf("seed %d: %+v: rule %d matches (%s), and is reported never to match", seed, c, want, rules[want].Match.String())
		}
		if want >= 0 && rules[want].Match.Impossible() != "" {
			t.Fatalf("seed %d: %+v: rule %d matches, and is reported to be impossible: %s", seed, c, want, rules[want].Match.Impossible())
		}
	}
}

func TestCompiledTableDoesWhatTheRulesSay(t *testing.T) {
	for seed := range uint64(1500) {
		checkWorld(t, seed, 60)
	}
}

func FuzzCompiledTable(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { checkWorld(t, seed, 40) })
}
