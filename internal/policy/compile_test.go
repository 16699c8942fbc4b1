package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func prefixes(list ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range list {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func setOf(rules ...int) (s class.Set) {
	for _, i := range rules {
		s.Add(i)
	}
	return s
}

func ids(n int) []uint32 {
	list := make([]uint32, n)
	for i := range list {
		list[i] = uint32(100 + i)
	}
	return list
}

func TestCompilePrefixRowsInherit(t *testing.T) {
	rules := []Rule{
		{Match: Match{Remote: prefixes("10.1.0.0/16", "fd00::/8")}},
		{Match: Match{Remote: prefixes("10.0.0.0/8", "10.1.2.0/24")}}, // the second is inside the first
		{},
		{Match: Match{Remote: prefixes("::/0")}}, // IPv6 only
	}
	table, _, err := Compile(rules, ids(4), Resolver{})
	if err != nil {
		t.Fatal(err)
	}
	want := []class.PrefixSet{
		{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Rules: setOf(2)},
		{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Rules: setOf(1, 2)},
		{Prefix: netip.MustParsePrefix("10.1.0.0/16"), Rules: setOf(0, 1, 2)},
		{Prefix: netip.MustParsePrefix("::/0"), Rules: setOf(2, 3)},
		{Prefix: netip.MustParsePrefix("fd00::/8"), Rules: setOf(0, 2, 3)},
	}
	if !reflect.DeepEqual(table.Remote, want) {
		t.Errorf("remote rows:\n got %v\nwant %v", table.Remote, want)
	}
	if table.Dims != class.DimRemote || table.Local != nil || table.RemotePort != nil {
		t.Errorf("a dimension that no rule cares about is compiled: %b", table.Dims)
	}
}

func TestCompilePortRangesAreMinimal(t *testing.T) {
	rules := []Rule{
		{Match: Match{LocalPort: []PortRange{{80, 80}, {443, 500}, {501, 600}}}},
		{Match: Match{LocalPort: []PortRange{{500, 65535}}}},
		{},
	}
	table, _, err := Compile(rules, ids(3), Resolver{})
	if err != nil {
		t.Fatal(err)
	}
	want := []class.PortRange{
		{First: 0, Last: 79, Rules: setOf(2)},
		{First: 80, Last: 80, Rules: setOf(0, 2)},
		{First: 81, Last: 442, Rules: setOf(2)},
		{First: 443, Last: 499, Rules: setOf(0, 2)},
		{First: 500, Last: 600, Rules: setOf(0, 1, 2)},
		{First: 601, Last: 65535, Rules: setOf(1, 2)},
	}
	if !reflect.DeepEqual(table.LocalPort, want) {
		t.Errorf("ranges:\n got %v\nwant %v", table.LocalPort, want)
	}
}

func TestCompileClassesAndWaiting(t *testing.T) {
	rules := []Rule{
		{Name: "watched", Match: Match{Cgroup: []string{"/a", "/gone"}}, Learn: &Learn{OwnScope: true},
			Watch: Watch{Events: class.WatchRTO, Share: 0.5}},
		{Name: "left", Match: Match{NetNS: []string{"13", "lost"}}, Leave: true, Watch: Watch{Events: 1, Share: 1}},
		{Name: "same", Match: Match{Same: Same{IPv6: 44, IPv4: 16}}, Set: params(tcp.InitCwnd, 40)},
	}
	table, waiting, err := Compile(rules, ids(3), worldResolver())
	if err != nil {
		t.Fatal(err)
	}
	wantWaiting := []Waiting{{"watched", "cgroup", "/gone"}, {"left", "netns", "lost"}}
	if !reflect.DeepEqual(waiting, wantWaiting) {
		t.Errorf("waiting: got %v, want %v", waiting, wantWaiting)
	}
	wantClasses := []class.Class{
		{ID: 100, OwnScope: true, Named: true, Watch: class.WatchRTO, WatchShare: 1 << 15},
		{ID: 101, Leave: true},
		{ID: 102},
	}
	if !reflect.DeepEqual(table.Classes, wantClasses) {
		t.Errorf("classes: got %+v, want %+v", table.Classes, wantClasses)
	}
	if want := map[uint64]class.Set{2: setOf(0, 1, 2)}; !reflect.DeepEqual(table.Cgroup, want) || table.AnyCgroup != setOf(1, 2) {
		t.Errorf("cgroups: %v, any %v", table.Cgroup, table.AnyCgroup)
	}
	if want := map[uint64]class.Set{13: setOf(0, 1, 2)}; !reflect.DeepEqual(table.NetNS, want) || table.AnyNetNS != setOf(0, 2) {
		t.Errorf("netns: %v, any %v", table.NetNS, table.AnyNetNS)
	}
	wantSame := []class.SamePrefix{{Bits: 44, Rules: setOf(0, 1, 2)}, {V4: true, Bits: 16, Rules: setOf(0, 1, 2)}}
	if !reflect.DeepEqual(table.Same, wantSame) || table.AnySame != setOf(0, 1) {
		t.Errorf("same: %v, any %v", table.Same, table.AnySame)
	}
	if want := class.DimCgroup | class.DimNetNS | class.DimSamePrefix; table.Dims != want {
		t.Errorf("dims: got %b, want %b", table.Dims, want)
	}
}

func TestCompileRefusesWhatDoesNotFit(t *testing.T) {
	var wide []Rule
	for n := range class.MaxSamePrefix + 1 {
		wide = append(wide, Rule{Match: Match{Same: Same{IPv6: n + 1}}})
	}
	var ports, nets Match
	for n := range 9000 {
		ports.LocalPort = append(ports.LocalPort, PortRange{uint16(2 * n), uint16(2 * n)})
		nets.Remote = append(nets.Remote, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), 0}), 24))
	}
	for _, c := range []struct {
		rules []Rule
		ids   []uint32
		want  string
	}{
		{make([]Rule, 257), ids(257), "257 rules, at most 256"},
		{make([]Rule, 2), ids(1), "1 class ids for 2 rules"},
		{[]Rule{{Match: ports}}, ids(1), "local port: 18000 port ranges, at most 513"},
		{[]Rule{{Match: nets}}, ids(1), "remote: 9002 prefixes, at most 8192"},
		{wide, ids(len(wide)), "9 same-prefix comparisons, at most 8"},
	} {
		if _, _, err := Compile(c.rules, c.ids, Resolver{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

func TestEmptyTableMatchesNothing(t *testing.T) {
	table, _, err := Compile(nil, nil, Resolver{})
	if err != nil {
		t.Fatal(err)
	}
	if got := table.Classify(&class.Conn{}); got != -1 {
		t.Errorf("got rule %d", got)
	}
}

func params(f tcp.Field, v uint64) (p tcp.Params) {
	p.Set(f, v)
	return p
}

// benchRules are n rules of which each cares about a prefix and a port, and the
// last one about nothing.
func benchRules(n int) []Rule {
	rules := make([]Rule, n)
	for i := range n - 1 {
		rules[i].Match = Match{
			Remote:    prefixes(fmt.Sprintf("10.%d.0.0/16", i)),
			LocalPort: []PortRange{{uint16(1000 + i), uint16(1000 + i)}},
			Direction: Outgoing,
		}
	}
	if n == 1 {
		rules[0].Match = Match{Remote: prefixes("10.0.0.0/8"), LocalPort: []PortRange{{1000, 1000}}, Direction: Outgoing}
	}
	return rules
}

func BenchmarkClassify(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	conns := make([]class.Conn, 1024)
	for i := range conns {
		n := byte(r.IntN(256))
		conns[i] = class.Conn{
			Remote: netip.AddrFrom4([4]byte{10, n, 1, 1}), Local: netip.AddrFrom4([4]byte{10, 0, 0, 1}),
			LocalPort: 1000 + uint16(n), Outgoing: true,
		}
	}
	var one float64
	for _, n := range []int{1, 256} {
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			table, _, err := Compile(benchRules(n), ids(n), Resolver{})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				table.Classify(&conns[i%len(conns)])
				i++
			}
			cost := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
			if n == 1 {
				one = cost
			} else if one > 0 {
				b.ReportMetric(cost/one, "x-of-1-rule")
			}
		})
	}
}

func BenchmarkCompile256(b *testing.B) {
	rules := benchRules(256)
	for b.Loop() {
		if _, _, err := Compile(rules, ids(256), Resolver{}); err != nil {
			b.Fatal(err)
		}
	}
}
