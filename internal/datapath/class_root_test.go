package datapath

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// world is the material of random rules and random connections.
type world struct {
	addrs  []netip.Addr // all on lo
	ports  []uint16     // servers'
	ns     []*testenv.NS
	netns  []uint64
	groups []*testenv.CG // each below the one before
}

// rule is one rule of the property test: the predicate itself. The table is compiled from
// it, and checked against it.
type rule struct {
	remote, local   netip.Prefix // not valid: any
	rports, lports  [2]uint16    // 0, 0: any
	cgroup, netns   uint64       // 0: any
	direction       int          // 0 any, 1 outgoing, 2 incoming
	same            class.SamePrefix
	bySame          bool
	dims            class.Dim
	leave, ownScope bool
}

func newWorldOf(t *testing.T, r *rig) *world {
	t.Helper()
	w := &world{ns: []*testenv.NS{r.ns, testenv.NetNS(t)}, ports: []uint16{80, 443, 1024, 65535}}
	for _, a := range []string{"127.0.0.1", "127.0.0.2", "127.1.0.1", "127.255.255.254", "::1", "fd00::1", "fd00::8000:0:0:1", "fd00:0:0:1::1", "fdff:ffff::1"} {
		w.addrs = append(w.addrs, netip.MustParseAddr(a))
	}
	for _, ns := range w.ns {
		for _, a := range w.addrs {
			if a.Is6() && !a.IsLoopback() {
				ns.Run(t, "ip", "addr", "add", a.String()+"/128", "dev", "lo", "nodad")
			}
		}
		ns.Run(t, "sh", "-c", "echo 1024 60999 > /proc/sys/net/ipv4/ip_local_port_range")
		w.netns = append(w.netns, netnsOf(t, ns))
	}
	g := r.cg
	for range 4 {
		w.groups = append(w.groups, g)
		g = g.Child(t)
	}
	return w
}

func pick[T any](rnd *rand.Rand, from []T) T { return from[rnd.IntN(len(from))] }

func (w *world) rule(rnd *rand.Rand) rule {
	var r rule
	prefix := func() netip.Prefix {
		a := pick(rnd, w.addrs)
		p, _ := a.Prefix(pick(rnd, []int{0, 1, 8, 9, 16, 31, 32, a.BitLen() - 1, a.BitLen(), rnd.IntN(a.BitLen() + 1)}))
		return p
	}
	ports := func() [2]uint16 {
		a := pick(rnd, w.ports) + uint16(rnd.IntN(3)) - 1
		return [2]uint16{a, a + uint16(rnd.IntN(int(65536-uint32(a))))}
	}
	// Few dimensions per rule, because otherwise nothing would ever match.
	for range rnd.IntN(3) {
		switch d := class.Dim(1) << rnd.IntN(8); d {
		case class.DimRemote:
			r.remote = prefix()
			r.dims |= d
		case class.DimLocal:
			r.local = prefix()
			r.dims |= d
		case class.DimRemotePort:
			r.rports = ports()
			r.dims |= d
		case class.DimLocalPort:
			r.lports = ports()
			r.dims |= d
		case class.DimCgroup:
			r.cgroup = pick(rnd, w.groups).ID
			r.dims |= d
		case class.DimNetNS:
			r.netns = pick(rnd, w.netns)
			r.dims |= d
		case class.DimDirection:
			r.direction = 1 + rnd.IntN(2)
			r.dims |= d
		case class.DimSamePrefix:
			v4 := rnd.IntN(2) == 0
			r.same = class.SamePrefix{V4: v4, Bits: pick(rnd, []int{0, 8, 16, 31, 32})}
			if !v4 {
				r.same.Bits = pick(rnd, []int{0, 16, 44, 64, 65, 128})
			}
			r.bySame = true
			r.dims |= d
		}
	}
	r.leave, r.ownScope = rnd.IntN(8) == 0, rnd.IntN(8) == 0
	return r
}

// matches applies the rule itself, without any table.
func (r *rule) matches(c *class.Conn) bool {
	remote, local := c.Remote.Unmap(), c.Local.Unmap()
	in := func(p uint16, r [2]uint16) bool { return r == [2]uint16{} || p >= r[0] && p <= r[1] }
	switch {
	case r.remote.IsValid() && !r.remote.Contains(remote), r.local.IsValid() && !r.local.Contains(local),
		!in(c.RemotePort, r.rports), !in(c.LocalPort, r.lports),
		r.cgroup != 0 && !slices.Contains(c.Cgroups, r.cgroup), r.netns != 0 && r.netns != c.NetNS,
		r.direction == 1 && !c.Outgoing, r.direction == 2 && c.Outgoing:
		return false
	}
	if !r.bySame {
		return true
	}
	p := netip.PrefixFrom(local, r.same.Bits).Masked()
	return remote.Is4() == r.same.V4 && local.Is4() == r.same.V4 && p.Contains(remote)
}

// compileRules is a slow, simple compiler: for every value at which the result may
// change, it asks every rule.
func compileRules(rules []rule, firstID uint32) class.Table {
	t := class.Table{Cgroup: map[uint64]class.Set{}, NetNS: map[uint64]class.Set{}}
	of := func(ok func(*rule) bool) (s class.Set) {
		for i := range rules {
			if ok(&rules[i]) {
				s.Add(i)
			}
		}
		return s
	}
	for i := range rules {
		t.Dims |= rules[i].dims
		t.Classes = append(t.Classes, class.Class{ID: firstID + uint32(i), Leave: rules[i].leave, OwnScope: rules[i].ownScope})
	}
	prefixes := func(get func(*rule) netip.Prefix) (rows []class.PrefixSet) {
		all := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
		for i := range rules {
			if p := get(&rules[i]); p.IsValid() {
				all = append(all, p)
			}
		}
		slices.SortFunc(all, class.ComparePrefix)
		for _, p := range slices.Compact(all) {
			rows = append(rows, class.PrefixSet{Prefix: p, Rules: of(func(r *rule) bool {
				q := get(r)
				return !q.IsValid() || q.Bits() <= p.Bits() && q.Contains(p.Addr())
			})})
		}
		return rows
	}
	t.Remote = prefixes(func(r *rule) netip.Prefix { return r.remote })
	t.Local = prefixes(func(r *rule) netip.Prefix { return r.local })
	ports := func(get func(*rule) [2]uint16) (rows []class.PortRange) {
		for p := range 1 << 16 {
			s := of(func(r *rule) bool { g := get(r); return g == [2]uint16{} || p >= int(g[0]) && p <= int(g[1]) })
			if n := len(rows); n > 0 && rows[n-1].Rules == s {
				rows[n-1].Last = uint16(p)
			} else {
				rows = append(rows, class.PortRange{First: uint16(p), Last: uint16(p), Rules: s})
			}
		}
		return rows
	}
	if t.Dims&class.DimRemotePort != 0 {
		t.RemotePort = ports(func(r *rule) [2]uint16 { return r.rports })
	}
	if t.Dims&class.DimLocalPort != 0 {
		t.LocalPort = ports(func(r *rule) [2]uint16 { return r.lports })
	}
	for i := range rules {
		if id := rules[i].cgroup; id != 0 {
			t.Cgroup[id] = of(func(r *rule) bool { return r.cgroup == 0 || r.cgroup == id })
		}
		if id := rules[i].netns; id != 0 {
			t.NetNS[id] = of(func(r *rule) bool { return r.netns == 0 || r.netns == id })
		}
		if s := rules[i].same; rules[i].bySame && !slices.ContainsFunc(t.Same, func(o class.SamePrefix) bool { return o.V4 == s.V4 && o.Bits == s.Bits }) {
			s.Rules = of(func(r *rule) bool { return r.bySame && r.same == (class.SamePrefix{V4: s.V4, Bits: s.Bits}) })
			t.Same = append(t.Same, s)
		}
	}
	t.AnyCgroup = of(func(r *rule) bool { return r.cgroup == 0 })
	t.AnyNetNS = of(func(r *rule) bool { return r.netns == 0 })
	t.AnySame = of(func(r *rule) bool { return !r.bySame })
	if t.Dims&class.DimDirection != 0 {
		t.Outgoing = of(func(r *rule) bool { return r.direction != 2 })
		t.Incoming = of(func(r *rule) bool { return r.direction != 1 })
	}
	return t
}

// TestRootClassifyAsTable compares, for random rules and real connections, the class that
// the programs find with class.Table and with the rules themselves.
func TestRootClassifyAsTable(t *testing.T) {
	r := newRig(t)
	w := newWorldOf(t, r)
	rnd := rand.New(rand.NewPCG(7, 9))
	listeners := map[*testenv.NS]map[uint16]net.Listener{}
	for _, ns := range w.ns {
		listeners[ns] = map[uint16]net.Listener{}
		for _, p := range w.ports {
			listeners[ns][p] = listen(t, ns, fmt.Sprintf("[::]:%d", p), nil)
		}
	}
	matched, begun := 0, time.Now()
	id := uint32(100)
	for round := range 20 {
		n := pick(rnd, []int{1, 3, 20, 60, 255, 256})
		rules := make([]rule, n)
		for i := range rules {
			for rules[i] = w.rule(rnd); rules[i].dims == 0 && i < n-1; {
				rules[i] = w.rule(rnd) // a rule for everything only at the end
			}
		}
		sames := map[class.SamePrefix]bool{}
		for i := range rules {
			if rules[i].bySame && len(sames) == class.MaxSamePrefix && !sames[rules[i].same] {
				rules[i] = rule{direction: 1, dims: class.DimDirection}
			} else if rules[i].bySame {
				sames[rules[i].same] = true
			}
		}
		tab := compileRules(rules, id)
		id += uint32(n)
		r.rules(t, tab)
		must(t, r.SetLease(time.Minute))
		for range 18 {
			matched += w.connect(t, r, rnd, rules, &tab, listeners)
		}
		if t.Failed() {
			t.Fatalf("in round %d with %d rules, dimensions %b", round, n, tab.Dims)
		}
	}
	t.Logf("%d ends of connections matched a rule, in %v", matched, time.Since(begun))
	if matched < 300 {
		t.Error("the rules are too narrow to test anything")
	}
}

// connect makes one connection and checks both of its ends. It returns how many
// matched some rule.
func (w *world) connect(t *testing.T, r *rig, rnd *rand.Rand, rules []rule, tab *class.Table, ls map[*testenv.NS]map[uint16]net.Listener) (matched int) {
	t.Helper()
	i := rnd.IntN(len(w.ns))
	depth := rnd.IntN(len(w.groups))
	local, remote := pick(rnd, w.addrs), pick(rnd, w.addrs)
	for local.Is4() != remote.Is4() {
		local = pick(rnd, w.addrs)
	}
	port := pick(rnd, w.ports)
	var c net.Conn
	var err error
	w.groups[depth].Do(t, func() {
		c, err = dialErr(t, w.ns[i], netip.AddrPortFrom(local, 0).String(), netip.AddrPortFrom(remote, port).String(), nil)
	})
	must(t, err)
	s := accept(t, ls[w.ns[i]][port])
	isClient, isServer := ofConn(c), ofConn(s)
	lport := addrPort(c.LocalAddr()).Port()
	closeAll(t, c, s)
	ids := func(n int) (ids []uint64) {
		for _, g := range w.groups[:n+1] {
			ids = append(ids, g.ID)
		}
		return ids
	}
	client := class.Conn{Remote: remote, Local: local, RemotePort: port, LocalPort: lport, Cgroups: ids(depth), NetNS: w.netns[i], Outgoing: true}
	server := class.Conn{Remote: local, Local: remote, RemotePort: lport, LocalPort: port, Cgroups: ids(0), NetNS: w.netns[i]}
	for _, end := range []struct {
		conn   class.Conn
		is     func(*tcp.Sample) bool
		cgroup uint64
	}{{client, isClient, w.groups[depth].ID}, {server, isServer, w.groups[0].ID}} {
		want := slices.IndexFunc(rules, func(r rule) bool { return r.matches(&end.conn) })
		if got := tab.Classify(&end.conn); got != want {
			t.Errorf("%+v: the table says rule %d, the rules %d", end.conn, got, want)
		}
		if want < 0 || rules[want].leave {
			continue
		}
		matched++
		got := r.find(t, fmt.Sprintf("%+v", end.conn), end.is)
		if got.Class != tab.Classes[want].ID || got.Cgroup != end.cgroup || got.NetNS != end.conn.NetNS {
			t.Errorf("%+v: rule %d, want %d, %+v; sample %+v", end.conn, int(got.Class)-int(tab.Classes[0].ID), want, rules[want], got)
		}
	}
	r.mu.Lock()
	if n := len(r.samples); n > 200 {
		r.samples = slices.Delete(r.samples, 0, n-50)
	}
	r.mu.Unlock()
	return matched
}

// TestRootRulesSwitchWhole replaces the rules under load: no connection may ever see a
// partial table.
func TestRootRulesSwitchWhole(t *testing.T) {
	r := newRig(t)
	wide := netip.MustParsePrefix("127.0.0.0/8")
	tables := make([]class.Table, 2)
	for i := range tables {
		// 200 rules that match nothing here, and one that always does.
		var rules []rule
		for j := range 200 {
			rules = append(rules, rule{remote: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), byte(j), 0}), 24), dims: class.DimRemote})
		}
		rules = append(rules, rule{remote: wide, rports: [2]uint16{1, 65535}, dims: class.DimRemote | class.DimRemotePort})
		tables[i] = compileRules(rules, uint32(1+1000*i))
	}
	r.rules(t, tables[0])
	l := listen(t, r.ns, "127.0.0.1:0", nil)
	stop := make(chan struct{})
	done := make(chan int)
	var dialled atomic.Int32
	go func() {
		n := 0
		defer func() { done <- n }()
		for ; ; n++ {
			dialled.Store(int32(n))
			select {
			case <-stop:
				return
			default:
			}
			time.Sleep(time.Millisecond) // or the ring overflows
			c, err := dialErr(t, r.ns, "", l.Addr().String(), nil)
			if err != nil {
				return
			}
			s, err := l.Accept()
			if err == nil {
				_ = s.Close()
			}
			_ = c.Close()
		}
	}()
	// At least 20 times, and until there are connections enough; the last is tables[1].
	for i, begun := 0, time.Now(); i < 20 || i%2 == 1 || dialled.Load() < 20 && time.Since(begun) < 20*time.Second; i++ {
		r.rules(t, tables[i%2])
		time.Sleep(5 * time.Millisecond)
	}
	close(stop)
	n := <-done
	r.count(t, 2*n, func(*tcp.Sample) bool { return true })
	r.count(t, 2*n, func(s *tcp.Sample) bool { return s.Class == 201 || s.Class == 1201 })
	c, err := r.Counters()
	must(t, err)
	if c.Decisions["no-rule"] != 0 || n < 20 {
		t.Errorf("%d of %d connections met no rule", c.Decisions["no-rule"], 2*n)
	}
	if last, err := r.LastClass(); err != nil || last != 1201 {
		t.Errorf("the last class is %d, %v", last, err)
	}
}

// TestRootPathMatch finds policies by class, scope and longest prefix.
func TestRootPathMatch(t *testing.T) {
	r := newRig(t)
	other := testenv.NetNS(t)
	cookie := netnsOf(t, r.ns)
	later := time.Now().Add(time.Minute)
	want := map[string]uint32{}
	add := func(name string, k path.Key) { want[name] = r.policyOf(t, k, later, nil) }
	add("root", path.Root(1, 0))
	add("/8", path.Of(1, 0, netip.MustParseAddr("127.0.0.0"), 8))
	add("/24", path.Of(1, 0, netip.MustParseAddr("127.0.2.0"), 24))
	add("host", path.Of(1, 0, netip.MustParseAddr("127.0.2.9"), 32))
	add("v6", path.Of(1, 0, netip.MustParseAddr("::1"), 48))
	add("own scope", path.Of(2, cookie, netip.MustParseAddr("127.0.0.0"), 8))
	add("shared", path.Root(2, 0))
	add("other class", path.Of(3, 0, netip.MustParseAddr("127.0.2.9"), 32))
	check := func(ns *testenv.NS, own bool, address, name string) {
		t.Helper()
		r.rules(t, class.Table{Classes: []class.Class{{ID: map[bool]uint32{false: 1, true: 2}[own], OwnScope: own}}})
		l := listen(t, ns, net.JoinHostPort(address, "0"), nil)
		c := dial(t, ns, l.Addr().String(), nil)
		s := accept(t, l)
		is := ofConn(c)
		closeAll(t, c, s)
		if got := r.find(t, "client", is); got.PolicyID != want[name] {
			t.Errorf("%s has policy %d, want %d of %s", address, got.PolicyID, want[name], name)
		}
	}
	check(r.ns, false, "127.0.0.1", "/8")
	check(r.ns, false, "127.0.2.1", "/24")
	check(r.ns, false, "127.0.2.9", "host")
	check(r.ns, false, "::1", "v6")
	check(r.ns, true, "127.0.2.9", "own scope")
	check(r.ns, true, "::1", "shared")
	check(other, true, "127.0.2.9", "shared")

	if id, at, ok, err := r.rowOf(path.Of(1, 0, netip.MustParseAddr("127.0.2.77"), 32)); err != nil || !ok || id != want["/24"] || at.Sub(later).Abs() > time.Second {
		t.Errorf("looked up: %d until %v, %v, %v", id, at, ok, err)
	}
	must(t, r.DeletePolicies([]path.Key{path.Of(1, 0, netip.MustParseAddr("127.0.2.9"), 32), path.Of(9, 0, netip.MustParseAddr("127.0.2.9"), 32)}, false))
	check(r.ns, false, "127.0.2.9", "/24")
	must(t, r.DeletePoliciesExcept(func(class uint32) bool { return class != 1 }))
	check(r.ns, false, "127.0.2.9", "none")
	check(r.ns, true, "127.0.2.9", "own scope")
	if _, _, ok, err := r.rowOf(path.Of(4, 0, netip.MustParseAddr("127.0.2.77"), 32)); err != nil || ok {
		t.Errorf("a class without policies: %v, %v", ok, err)
	}
	c, err := r.Counters()
	must(t, err)
	if c.Decisions["no-policy"] == 0 {
		t.Error("no-policy was not counted")
	}
}

// TestRootManyPolicies writes and removes more rows than one batch has.
func TestRootManyPolicies(t *testing.T) {
	r := newRig(t)
	const n = batchSize + 100
	entries := make([]path.Entry, n)
	keys := make([]path.Key, n)
	for i := range entries {
		keys[i] = path.Of(1, 0, netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 1}), 32)
		entries[i] = path.Entry{Key: keys[i], ID: uint32(i + 1), Expires: time.Now().Add(time.Minute).UnixNano()}
	}
	begun := time.Now()
	must(t, r.WritePolicies(entries))
	t.Logf("wrote %d policies in %v", n, time.Since(begun))
	for _, i := range []int{0, 1, batchSize - 1, batchSize, n - 1} {
		if id, _, ok, err := r.rowOf(keys[i]); err != nil || !ok || id != uint32(i+1) {
			t.Errorf("policy %d is %d, %v, %v", i+1, id, ok, err)
		}
	}
	must(t, r.DeletePolicies(keys[:100], false))
	must(t, r.DeletePoliciesExcept(func(uint32) bool { return false }))
	if _, _, ok, _ := r.rowOf(keys[n-1]); ok {
		t.Error("a policy is left")
	}
	bad := slices.Concat(entries[:3], []path.Entry{{Key: path.Key{Class: 1}}})
	if err := r.WritePolicies(bad); err == nil {
		t.Error("a policy without prefix was written")
	}
}

// TestRootRequestKnowsNoCgroup: on a request socket it is unknown whether a rule that
// names a cgroup matches. Then the programs give no answer, rather than that of a later
// rule.
func TestRootRequestKnowsNoCgroup(t *testing.T) {
	r := newRig(t)
	testenv.Sysctl(t, r.ns, "net.ipv4.tcp_ecn", "0")
	r.policy(t, set(tcp.ECN, 1))
	child := r.cg.Child(t)
	agreed := func() bool {
		t.Helper()
		c, s := r.pair(t, "127.0.0.1:0")
		is := ofConn(s)
		closeAll(t, c, s)
		got := r.find(t, "server", is)
		return got.Has(tcp.FlagECN)
	}
	everything := rule{dims: class.DimRemote, remote: netip.MustParsePrefix("127.0.0.0/8")}
	for _, c := range []struct {
		name  string
		rules []rule
		want  bool
	}{
		{"no rule names a cgroup", []rule{everything}, true},
		{"a rule before names one", []rule{{dims: class.DimCgroup, cgroup: child.ID}, everything}, false},
		{"a rule after names one", []rule{everything, {dims: class.DimCgroup, cgroup: child.ID}}, true},
		{"a rule before names one, for other connections", []rule{
			{dims: class.DimCgroup | class.DimRemote, cgroup: child.ID, remote: netip.MustParsePrefix("10.0.0.0/8")}, everything}, true},
	} {
		tab := compileRules(c.rules, 1)
		for i := range tab.Classes {
			tab.Classes[i].ID = 1
		}
		r.rules(t, tab)
		if got := agreed(); got != c.want {
			t.Errorf("%s: ECN %v", c.name, got)
		}
	}
}

// rowOf returns the row that the kernel would use for a connection; ok is false if there is
// none.
func (d *Datapath) rowOf(k path.Key) (id uint32, expires time.Time, ok bool, err error) {
	key, err := encodeKey(k)
	if err != nil {
		return 0, time.Time{}, false, err
	}
	var p abiPathPolicy
	if err := d.maps.PathPolicies.Lookup(&key, &p); errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, time.Time{}, false, nil
	} else if err != nil {
		return 0, time.Time{}, false, fmt.Errorf("look up policy of %s: %w", k, err)
	}
	return p.Id, time.Unix(0, int64(p.ExpiresNs)+wallOffset()), true, nil
}
