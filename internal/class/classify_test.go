package class

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func setOf(rules ...int) (s Set) {
	for _, i := range rules {
		s.Add(i)
	}
	return s
}

func TestFull(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 65, 128, 255, 256} {
		s := Full(n)
		for i := range MaxRules {
			if has := s[i/64]&(1<<(i%64)) != 0; has != (i < n) {
				t.Fatalf("Full(%d) has %d: %v", n, i, has)
			}
		}
	}
	if Full(0).first() != -1 || setOf(200, 130).first() != 130 {
		t.Error("First is wrong")
	}
}

func TestSamePrefixHolds(t *testing.T) {
	for _, c := range []struct {
		p    SamePrefix
		a, b string
		want bool
	}{
		{SamePrefix{Bits: 44}, "2401:db00:21:1::1", "2401:db00:2f::9", true}, // 44 bits end inside the third group
		{SamePrefix{Bits: 44}, "2401:db00:21::1", "2401:db00:31::1", false},
		{SamePrefix{Bits: 128}, "fd00::1", "fd00::1", true},
		{SamePrefix{Bits: 128}, "fd00::1", "fd00::2", false},
		{SamePrefix{Bits: 65}, "fd00::8000:0:0:0", "fd00::", false},
		{SamePrefix{Bits: 64}, "fd00::8000:0:0:0", "fd00::", true},
		{SamePrefix{Bits: 44}, "10.0.0.1", "10.0.0.1", false}, // only IPv6 has a length here
		{SamePrefix{V4: true, Bits: 16}, "10.1.0.1", "10.1.255.1", true},
		{SamePrefix{V4: true, Bits: 16}, "10.1.0.1", "10.2.0.1", false},
		{SamePrefix{V4: true, Bits: 16}, "10.1.0.1", "fd00::1", false},
		{SamePrefix{V4: true, Bits: 16}, "fd00::1", "fd00::1", false},
	} {
		if got := c.p.holds(netip.MustParseAddr(c.a), netip.MustParseAddr(c.b)); got != c.want {
			t.Errorf("%+v of %s and %s: got %v", c.p, c.a, c.b, got)
		}
	}
}

// table has a rule 0 that matches on every dimension and a rule 1 that matches on none; the
// connection satisfies both.
func table() (*Table, Conn) {
	all := Full(2)
	rest := setOf(1)
	t := &Table{
		Classes:    make([]Class, 2),
		Remote:     []PrefixSet{{netip.MustParsePrefix("0.0.0.0/0"), rest}, {netip.MustParsePrefix("10.0.0.0/8"), all}, {netip.MustParsePrefix("::/0"), rest}},
		RemotePort: []PortRange{{0, 442, rest}, {443, 443, all}, {444, 65535, rest}},
		Cgroup:     map[uint64]Set{7: all}, AnyCgroup: rest,
		NetNS: map[uint64]Set{8: all}, AnyNetNS: rest,
		Outgoing: all, Incoming: rest,
		Same: []SamePrefix{{V4: true, Bits: 8, Rules: all}}, AnySame: rest,
	}
	t.Local, t.LocalPort = t.Remote, t.RemotePort
	a := netip.MustParseAddr("10.1.2.3")
	return t, Conn{Remote: a, Local: a, RemotePort: 443, LocalPort: 443, Cgroups: []uint64{1, 7, 9}, NetNS: 8, Outgoing: true}
}

func TestClassifyByEachDimension(t *testing.T) {
	elsewhere := netip.MustParseAddr("11.0.0.1")
	for _, c := range []struct {
		dim    Dim
		change func(*Conn)
	}{
		{DimRemote, func(c *Conn) { c.Remote = elsewhere }},
		{DimLocal, func(c *Conn) { c.Local = elsewhere }},
		{DimRemotePort, func(c *Conn) { c.RemotePort = 444 }},
		{DimLocalPort, func(c *Conn) { c.LocalPort = 442 }},
		{DimCgroup, func(c *Conn) { c.Cgroups = []uint64{1, 9} }},
		{DimNetNS, func(c *Conn) { c.NetNS = 9 }},
		{DimDirection, func(c *Conn) { c.Outgoing = false }},
		{DimSamePrefix, func(c *Conn) { c.Local = elsewhere }},
	} {
		tab, conn := table()
		c.change(&conn)
		if got := tab.Classify(&conn); got != 0 {
			t.Errorf("dimension %b is looked up though it is not in Dims", c.dim)
		}
		tab.Dims = c.dim
		if got := tab.Classify(&conn); got != 1 {
			t.Errorf("dimension %b: got rule %d, want 1", c.dim, got)
		}
		_, conn = table()
		if got := tab.Classify(&conn); got != 0 {
			t.Errorf("dimension %b: got rule %d, want 0", c.dim, got)
		}
		conn.Remote, conn.Local = netip.AddrFrom16(conn.Remote.As16()), netip.AddrFrom16(conn.Local.As16())
		if got := tab.Classify(&conn); got != 0 {
			t.Errorf("dimension %b: v4-mapped addresses got rule %d", c.dim, got)
		}
	}
}

func TestLongestMatchAgainstAllRows(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	addr := func() netip.Addr {
		if r.IntN(2) == 0 {
			return netip.AddrFrom4([4]byte{byte(r.IntN(3)) << 6, byte(r.IntN(3)), 0, byte(r.IntN(4))})
		}
		return netip.AddrFrom16([16]byte{0: byte(r.IntN(3)) << 6, 7: byte(r.IntN(3)), 8: byte(r.IntN(2)), 15: byte(r.IntN(4))})
	}
	for range 2000 {
		var rows []PrefixSet
		for range r.IntN(20) {
			a := addr()
			p, _ := a.Prefix(r.IntN(a.BitLen() + 1))
			if !slices.ContainsFunc(rows, func(s PrefixSet) bool { return s.Prefix == p }) {
				rows = append(rows, PrefixSet{p, setOf(len(rows))})
			}
		}
		slices.SortFunc(rows, func(a, b PrefixSet) int { return ComparePrefix(a.Prefix, b.Prefix) })
		for range 20 {
			a := addr()
			var want Set
			bits := -1
			for _, row := range rows {
				if row.Prefix.Contains(a) && row.Prefix.Bits() > bits {
					want, bits = row.Rules, row.Prefix.Bits()
				}
			}
			if got := longest(rows, a); got != want {
				t.Fatalf("%s in %v: got rule %d, want %d", a, rows, got.first(), want.first())
			}
		}
	}
}

func TestClassifyDoesNotAllocate(t *testing.T) {
	tab, conn := table()
	tab.Dims = DimSamePrefix<<1 - 1
	if n := testing.AllocsPerRun(100, func() { tab.Classify(&conn) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

func TestCheck(t *testing.T) {
	prefix := netip.MustParsePrefix
	for _, c := range []struct {
		want  string
		spoil func(*Table)
	}{
		{"", func(*Table) {}},
		{"257 classes", func(t *Table) { t.Classes = make([]Class, 257) }},
		{"9 same-prefix", func(t *Table) { t.Same = make([]SamePrefix, 9) }},
		{"8193 prefixes", func(t *Table) { t.Remote = make([]PrefixSet, MaxPrefixes+1) }},
		{"514 port ranges", func(t *Table) { t.LocalPort = make([]PortRange, MaxPortRanges+1) }},
		{"no row for every address", func(t *Table) { t.Remote = t.Remote[1:] }},
		{"out of order", func(t *Table) { t.Local = []PrefixSet{t.Local[1], t.Local[0]} }},
		{"bits set beyond", func(t *Table) { t.Local = []PrefixSet{{Prefix: prefix("10.0.0.1/8")}} }},
		{"v4-mapped", func(t *Table) { t.Local = []PrefixSet{{Prefix: prefix("::ffff:0:0/96")}} }},
		{"want one from 0", func(t *Table) { t.RemotePort = t.RemotePort[1:] }},
		{"ranges end at 443", func(t *Table) { t.LocalPort = t.LocalPort[:2] }},
		{"same rules as", func(t *Table) { t.LocalPort = []PortRange{{0, 1, Set{}}, {2, 65535, Set{}}} }},
	} {
		tab, _ := table()
		tab.Dims = DimSamePrefix<<1 - 1
		c.spoil(tab)
		switch err := tab.Check(); {
		case c.want == "" && err != nil:
			t.Errorf("sound table: %v", err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

func TestUndirected(t *testing.T) {
	three := []Class{{ID: 1}, {ID: 2}, {ID: 3}}
	for _, c := range []struct {
		table Table
		want  int
	}{
		{Table{}, 0},
		{Table{Classes: three}, 3},
		{Table{Classes: three, Dims: DimDirection, Outgoing: Set{0b111}, Incoming: Set{0b111}}, 3},
		{Table{Classes: three, Dims: DimDirection, Outgoing: Set{0b111}, Incoming: Set{0b101}}, 1},
		{Table{Classes: three, Dims: DimDirection, Outgoing: Set{0b110}, Incoming: Set{0b111}}, 0},
	} {
		if got := c.table.Undirected(); got != c.want {
			t.Errorf("%+v: %d, want %d", c.table, got, c.want)
		}
	}
}
