package podnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/poddevice"
	"github.com/tcpilot/tcpilot/internal/sysctl"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// The other end of a pair is found only if it is in the host's namespace, and the device below a
// macvlan is not taken for an other end.
func TestRootFind(t *testing.T) {
	host, inside, third := testenv.NetNS(t), testenv.NetNS(t), testenv.NetNS(t)
	host.Enter(t)
	if _, err := testenv.PodLink(inside.Path(), "eth0", "outer", netip.MustParsePrefix("10.9.0.5/24")); err != nil {
		t.Fatal(err)
	}
	third.Do(t, func() {
		if _, err := testenv.PodLink(inside.Path(), "net1", "outer", netip.MustParsePrefix("10.9.1.5/24")); err != nil {
			t.Error(err)
		}
	})
	inside.Run(t, "ip", "link", "add", "both0", "type", "veth", "peer", "name", "both1")
	outer, err := net.InterfaceByName("outer")
	if err != nil {
		t.Fatal(err)
	}
	macvlan := &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "mac0", ParentIndex: outer.Index, Namespace: netlink.NsFd(inside.FD())}, Mode: netlink.MACVLAN_MODE_BRIDGE}
	if err := netlink.LinkAdd(macvlan); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]pod.Link{
		"eth0":  {Device: pod.Veth, HostIndex: outer.Index},
		"net1":  {Device: pod.Veth},
		"both0": {Device: pod.Veth},
		"mac0":  {},
		"lo":    {},
		"eth1":  {},
	} {
		inside.Do(t, func() {
			if i, err := net.InterfaceByName(name); err == nil {
				want.Index = i.Index
			}
		})
		got, err := Find(inside.Path(), name)
		if err != nil || got.Device != want.Device || got.Index != want.Index || got.HostIndex != want.HostIndex {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
	if _, err := Find("/run/netns/none", "eth0"); err == nil {
		t.Error("no namespace: no error")
	}
}

// node is a host with pods, and a host outside that a wire leads to.
type node struct {
	*testing.T
	host, outside *testenv.NS
	wire          testenv.End // the outside's
}

// newNode makes the calling goroutine's thread that of the host.
func newNode(t *testing.T) *node {
	n := &node{T: t, host: testenv.NetNS(t), outside: testenv.NetNS(t)}
	n.host.Enter(t)
	// Without its link-local address, which is not usable before duplicate address detection has ended,
	// the host does not find neighbours on the wire.
	n.host.Run(t, "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.all.accept_dad=0")
	var own testenv.End
	own, n.wire = testenv.Veth(t, n.host, n.outside)
	for _, to := range [][]string{{"-4", n.wire.V4.String()}, {"-6", n.wire.V6.String()}} {
		n.host.Run(t, "ip", to[0], "route", "add", "default", "via", to[1], "dev", own.Name)
	}
	return n
}

func (n *node) pair(ns *testenv.NS, container string, addresses ...string) *Pair {
	p := &Pair{NetNS: ns.Path(), Name: "eth0", HostName: HostName(pod.Key{Container: container, Interface: "eth0"}), Modes: []Mode{Netkit, Veth}, MTU: 1400}
	for _, text := range addresses {
		a := netip.MustParseAddr(text)
		p.Addresses = append(p.Addresses, a)
		all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		if a.Is4() {
			all = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		}
		p.Routes = append(p.Routes, Route{Dst: all})
	}
	return p
}

func (n *node) make(p *Pair) Made {
	n.Helper()
	if _, err := Forward(p.Families()); err != nil {
		n.Fatal(err)
	}
	m, err := Make(p)
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() {
		if err := Remove(p.HostName); err != nil {
			n.Error(err)
		}
	})
	return m
}

// speaks sends a line over TCP from one namespace to an address of another, without waiting for
// anything first. It returns the client's address as the server sees it.
func (n *node) speaks(from, to *testenv.NS, address string) netip.Addr {
	n.Helper()
	return from.Speak(n, to, net.JoinHostPort(address, "0"), "", 900*time.Millisecond) // a SYN is sent again after a second
}

// Pods reach each other, the host and other hosts, in both families, with the first packet, and are
// reached from there. Nothing is left afterwards.
func TestRootPair(t *testing.T) {
	for _, mode := range modes(t) {
		t.Run(string(mode.Device)+map[bool]string{true: "-l2"}[mode.L2], func(t *testing.T) {
			n := newNode(t)
			before := state(t, n.host)
			a, b := testenv.NetNS(t), testenv.NetNS(t)
			pa, pb := n.pair(a, "a", "10.77.0.5", "fd77::5"), n.pair(b, "b", "10.77.0.6", "fd77::6")
			pa.Modes, pb.Modes = []Mode{mode}, []Mode{mode}
			ma := n.make(pa)
			n.make(pb)
			n.outside.Run(t, "ip", "-4", "route", "add", "10.77.0.0/24", "dev", n.wire.Name, "via", hostOf(n.wire.V4).String())
			n.outside.Run(t, "ip", "-6", "route", "add", "fd77::/64", "dev", n.wire.Name, "via", hostOf(n.wire.V6).String())
			for _, to := range []struct {
				from, to *testenv.NS
				address  string
				seen     string
			}{
				{a, b, "10.77.0.6", "10.77.0.5"}, {b, a, "fd77::5", "fd77::6"},
				{a, n.outside, n.wire.V4.String(), "10.77.0.5"}, {a, n.outside, n.wire.V6.String(), "fd77::5"},
				{n.outside, a, "10.77.0.5", n.wire.V4.String()}, {n.outside, b, "fd77::6", n.wire.V6.String()},
				{a, n.host, hostOf(n.wire.V4).String(), "10.77.0.5"}, {a, n.host, hostOf(n.wire.V6).String(), "fd77::5"},
				{n.host, a, "10.77.0.5", ""}, {n.host, a, "fd77::5", ""},
			} {
				if seen := n.speaks(to.from, to.to, to.address); to.seen != "" && seen.String() != to.seen {
					t.Errorf("to %s: from %s, want %s", to.address, seen, to.seen)
				}
			}
			if found, err := Find(pa.NetNS, "eth0"); err != nil || found.Index != ma.Index || found.HostIndex != ma.HostIndex || found.Device != mode.Device {
				t.Errorf("found %+v, %v; made %+v", found, err, ma)
			}
			if err := Check(pa, ma.Link); err != nil {
				t.Error(err)
			}
			if text := a.Run(t, "ip", "-o", "link", "show", "eth0"); !strings.Contains(text, "mtu 1400 ") || mode.L2 == strings.Contains(text, "NOARP") || !strings.Contains(text, "link/ether "+ma.MAC.String()) {
				t.Errorf("%s", text)
			}
			for _, p := range []*Pair{pa, pb} {
				for range 2 {
					if err := Remove(p.HostName); err != nil {
						t.Error(err)
					}
				}
			}
			if after := state(t, n.host); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// The first packet to a pod is not lost: its addresses are usable when Make returns.
func TestRootPairIsUsableAtOnce(t *testing.T) {
	n := newNode(t)
	for i := range 40 {
		p := n.pair(testenv.NetNS(t), fmt.Sprint("a", i), "10.77.0.5", "fd77::5")
		n.make(p)
		inside, err := open(p.NetNS)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range p.Addresses {
			if r, err := inside.RouteGet(a.AsSlice()); err != nil || r[0].Type != unix.RTN_LOCAL {
				t.Errorf("pod %d: %s is not local: %v, %v", i, a, r, err)
			}
		}
		inside.Close()
		if err := Remove(p.HostName); err != nil {
			t.Fatal(err)
		}
	}
}

// modes are those that the kernel has. Netkit is tried under other kernels (test/vm).
func modes(t *testing.T) (list []Mode) {
	testenv.Root(t)
	for _, s := range poddevice.Try() {
		switch {
		case s.Err != nil && s.Device == pod.Veth:
			t.Fatal(s.Err)
		case s.Err != nil:
			t.Logf("%v", s.Err)
		case s.Device == pod.Veth:
			list = append(list, Veth)
		case s.Device == pod.Netkit:
			list = append(list, Netkit, NetkitL2)
		}
	}
	return list
}

// hostOf is the host's address on the wire: testenv.Veth gives it 1, and 2 to the outside.
func hostOf(wire netip.Addr) netip.Addr {
	b := wire.AsSlice()
	b[len(b)-1] = 1
	a, _ := netip.AddrFromSlice(b)
	return a
}

// state is what a namespace has of links, addresses, routes, neighbours that are permanent, and nftables' tables.
func state(t *testing.T, ns *testenv.NS) string {
	t.Helper()
	var b strings.Builder
	for _, args := range []string{"-br link", "-br address", "-4 route", "-6 route", "neigh show nud permanent"} {
		b.WriteString(ns.Run(t, "ip", strings.Fields(args)...))
	}
	ns.Do(t, func() {
		c, err := nftables.New()
		if err != nil {
			t.Fatal(err)
		}
		tables, err := c.ListTables()
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range tables {
			b.WriteString("table " + table.Name + "\n")
		}
	})
	return b.String()
}

// Packets of pods to other hosts have the host's address. Those to pods and to exceptions, and those of pods without
// masquerading, have the pod's. The table is removed with its last pod.
func TestRootMasquerade(t *testing.T) {
	n := newNode(t)
	before := state(t, n.host)
	var pods []*testenv.NS
	var pairs []*Pair
	for _, last := range []string{"5", "6", "7"} {
		ns := testenv.NetNS(t)
		p := n.pair(ns, "c"+last, "10.77.0."+last, "fd77::"+last)
		n.make(p)
		pods, pairs = append(pods, ns), append(pairs, p)
	}
	n.outside.Run(t, "ip", "-4", "address", "add", "10.99.0.1/32", "dev", "lo")
	n.outside.Run(t, "ip", "-4", "route", "add", "10.77.0.0/24", "dev", n.wire.Name, "via", hostOf(n.wire.V4).String())
	except := []netip.Prefix{netip.MustParsePrefix("10.99.0.0/16")}
	for _, p := range pairs[:2] {
		for range 2 {
			if err := Masquerade("net", p.HostName, except); err != nil {
				t.Fatal(err)
			}
		}
	}
	expect := func(from, to *testenv.NS, address, want string) {
		t.Helper()
		if seen := n.speaks(from, to, address); seen.String() != want {
			t.Errorf("to %s: from %s, want %s", address, seen, want)
		}
	}
	outside := n.wire.V4.String()
	expect(pods[0], n.outside, outside, hostOf(n.wire.V4).String())
	expect(pods[1], n.outside, n.wire.V6.String(), hostOf(n.wire.V6).String())
	expect(pods[0], n.outside, "10.99.0.1", "10.77.0.5")
	expect(pods[0], pods[1], "10.77.0.6", "10.77.0.5")
	expect(pods[0], pods[1], "fd77::6", "fd77::5")
	expect(pods[2], n.outside, outside, "10.77.0.7")
	for range 2 {
		if err := Unmasquerade("net", pairs[0].HostName); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := Masqueraded("net"); err != nil || !slices.Equal(list, []string{pairs[1].HostName}) {
		t.Errorf("masqueraded %q, %v", list, err)
	}
	if list, err := Masqueraded("none"); err != nil || list != nil {
		t.Errorf("masqueraded %q, %v", list, err)
	}
	expect(pods[0], n.outside, outside, "10.77.0.5")
	expect(pods[1], n.outside, outside, hostOf(n.wire.V4).String())
	for range 2 {
		if err := Unmasquerade("net", pairs[1].HostName, pairs[2].HostName); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range pairs {
		if err := Remove(p.HostName); err != nil {
			t.Error(err)
		}
	}
	if after := state(t, n.host); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// The rules are written anew only if they differ from the wanted ones, because another pod's exceptions are in force,
// or because another program changed them.
func TestRootMasqueradeRewrites(t *testing.T) {
	host := testenv.NetNS(t)
	host.Enter(t)
	r, err := openRules("net")
	if err != nil {
		t.Fatal(err)
	}
	handles := func() (list []uint64) {
		for _, chain := range []*nftables.Chain{r.postrouting, r.masquerade} {
			rules, err := r.GetRules(r.table, chain)
			if err != nil {
				t.Fatal(err)
			}
			for _, rule := range rules {
				list = append(list, rule.Handle)
			}
		}
		return list
	}
	var before []uint64
	for i, step := range []struct {
		except string
		change func()
		rules  int
		same   bool
	}{
		{"10.0.0.0/8", nil, 6, false},
		{"10.0.0.0/8", nil, 6, true},
		{"10.0.0.0/9", nil, 6, false},
		{"10.0.0.0/9", nil, 6, true},
		{"10.0.0.0/9", func() { r.FlushChain(r.postrouting) }, 6, false},
		{"10.0.0.0/9", func() {
			r.AddRule(&nftables.Rule{Table: r.table, Chain: r.masquerade, Exprs: []expr.Any{&expr.Counter{}}})
		}, 6, false},
	} {
		if step.change != nil {
			step.change()
			if err := r.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		if err := Masquerade("net", fmt.Sprint("tcp", i), []netip.Prefix{netip.MustParsePrefix(step.except)}); err != nil {
			t.Fatal(err)
		}
		now := handles()
		if len(now) != step.rules || slices.Equal(now, before) != step.same {
			t.Errorf("step %d: rules %v, before %v", i, now, before)
		}
		before = now
		if list, err := Masqueraded("net"); err != nil || len(list) != i+1 {
			t.Errorf("step %d: %q, %v", i, list, err)
		}
	}
}

// CHECK notices if any part of the table that masquerades a pod is missing, and accepts the exceptions of a later pod.
func TestRootCheckMasquerade(t *testing.T) {
	testenv.NetNS(t).Enter(t)
	r, err := openRules("net")
	if err != nil {
		t.Fatal(err)
	}
	mine, later := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, []netip.Prefix{netip.MustParsePrefix("fd00::/8")}
	rules := func(chain *nftables.Chain) []*nftables.Rule {
		list, err := r.GetRules(r.table, chain)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	to, member := r.elements("tcp1")
	for _, c := range []struct {
		want   string
		change func() error
	}{
		{"", func() error { return nil }},
		{"", func() error { return Masquerade("net", "tcp2", later) }},
		{"", func() error { return Masquerade("net", "tcp2", nil) }},
		{"tcp1 is not in pods in nftables table inet tcpilot-net", func() error { return r.SetDeleteElements(r.pods, to) }},
		{"tcp1 is not in devices in nftables table inet tcpilot-net", func() error { return r.SetDeleteElements(r.devices, member) }},
		{"tcp1 is not in pods", func() error { r.FlushSet(r.pods); return nil }},
		{"chain postrouting in nftables table inet tcpilot-net has other rules", func() error { r.FlushChain(r.postrouting); return nil }},
		{"chain masquerade in nftables table inet tcpilot-net has other rules", func() error { r.FlushChain(r.masquerade); return nil }},
		{"chain masquerade", func() error { return r.DelRule(rules(r.masquerade)[3]) }},
		{"chain masquerade", func() error {
			r.AddRule(&nftables.Rule{Table: r.table, Chain: r.masquerade, Exprs: []expr.Any{&expr.Counter{}}})
			return nil
		}},
		{"chain postrouting", func() error { r.FlushTable(r.table); return nil }},
		{"does not have its chain postrouting", func() error { r.FlushChain(r.postrouting); r.DelChain(r.postrouting); return nil }},
		{"does not have its chain masquerade", func() error { r.FlushSet(r.pods); r.FlushChain(r.masquerade); r.DelChain(r.masquerade); return nil }},
		{"there is no nftables table inet tcpilot-net", func() error { r.DelTable(r.table); return nil }},
	} {
		if err := errors.Join(Masquerade("net", "tcp1", mine), c.change(), r.Flush()); err != nil {
			t.Fatalf("%s: %v", c.want, err)
		}
		err := CheckMasquerade("net", "tcp1", mine)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "the pod is not masqueraded: ")) {
			t.Errorf("%v, want %q", err, c.want)
		}
		if err := Unmasquerade("net", "tcp1", "tcp2"); err != nil {
			t.Logf("%s: %v", c.want, err)
		}
		r.AddTable(r.table)
		r.DelTable(r.table)
		if err := r.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}

// After another program has deleted all tables, pods are masqueraded again, with their exceptions. Rules that are whole are left
// alone, and devices that do not exist are left out.
func TestRootRemasquerade(t *testing.T) {
	n := newNode(t)
	ns, other := testenv.NetNS(t), testenv.NetNS(t)
	p, second := n.pair(ns, "c5", "10.77.0.5"), n.pair(other, "c6", "10.77.0.6")
	n.make(p)
	n.make(second)
	n.outside.Run(t, "ip", "-4", "address", "add", "10.99.0.1/32", "dev", "lo")
	n.outside.Run(t, "ip", "-4", "route", "add", "10.77.0.0/24", "dev", n.wire.Name, "via", hostOf(n.wire.V4).String())
	except := []netip.Prefix{netip.MustParsePrefix("10.99.0.0/16")}
	devices := []string{p.HostName, "tcp000000000000", second.HostName}
	for _, device := range []string{p.HostName, second.HostName} {
		if err := Masquerade("net", device, except); err != nil {
			t.Fatal(err)
		}
	}
	r, err := openRules("net")
	if err != nil {
		t.Fatal(err)
	}
	rules := func() string {
		var handles []uint64
		list, err := r.GetRules(r.table, r.masquerade)
		for _, rule := range list {
			handles = append(handles, rule.Handle)
		}
		return fmt.Sprint(handles, err)
	}
	to, _ := r.elements(second.HostName)
	for _, c := range []struct {
		want   string
		change func() error
	}{
		{"", func() error { return nil }},
		{"there is no nftables table inet tcpilot-net", func() error { r.FlushRuleset(); return nil }},
		{"", func() error { return nil }},
		{"chain postrouting", func() error { r.FlushChain(r.postrouting); return nil }},
		{second.HostName + " is not in pods", func() error { return r.SetDeleteElements(r.pods, to) }},
	} {
		if err := errors.Join(c.change(), r.Flush()); err != nil {
			t.Fatal(err)
		}
		before := rules()
		missing, err := Remasquerade("net", except, devices)
		if err != nil || (missing == nil) != (c.want == "") || missing != nil && !strings.Contains(missing.Error(), c.want) {
			t.Errorf("%q: missing %v, %v", c.want, missing, err)
		}
		if now := rules(); (now == before) != (c.want == "") {
			t.Errorf("%q: the rules were %s, and are %s", c.want, before, now)
		}
		list, err := Masqueraded("net")
		slices.Sort(list)
		if want := slices.Sorted(slices.Values([]string{p.HostName, second.HostName})); err != nil || !slices.Equal(list, want) {
			t.Errorf("%q: masqueraded %q, %v", c.want, list, err)
		}
		if seen := n.speaks(ns, n.outside, n.wire.V4.String()); seen != hostOf(n.wire.V4) {
			t.Errorf("%q: to the wire: from %s", c.want, seen)
		}
		if seen := n.speaks(ns, n.outside, "10.99.0.1"); seen != p.Addresses[0] {
			t.Errorf("%q: to an exception: from %s", c.want, seen)
		}
	}
	if r.FlushRuleset(); r.Flush() != nil {
		t.Fatal("not flushed")
	}
	if missing, err := Remasquerade("net", except, devices[1:2]); missing != nil || err != nil {
		t.Errorf("without devices: %v, %v", missing, err)
	}
	if list, err := Masqueraded("net"); list != nil || err != nil {
		t.Errorf("without devices: masqueraded %q, %v", list, err)
	}
}

// A pod whose DEL comes while its rules are written again leaves nothing: DEL finds no rules, and the device is gone afterwards.
func TestRootRemasqueradeDuringDel(t *testing.T) {
	testenv.NetNS(t).Enter(t)
	asked := map[string]int{}
	missing, err := remasquerade("net", nil, []string{"tcp1", "tcp2"}, func(device string) bool {
		asked[device]++
		return device == "tcp1" && asked[device] == 2
	})
	if list, failed := Masqueraded("net"); missing == nil || err != nil || failed != nil || !slices.Equal(list, []string{"tcp2"}) {
		t.Errorf("missing %v, %v; masqueraded %q, %v", missing, err, list, failed)
	}
}

// It is no error to take out a device that is not in the table, whether the list of devices is short enough to know
// that or not, or a device of a network whose name is too long for a table.
func TestRootUnmasqueradeAbsent(t *testing.T) {
	testenv.NetNS(t).Enter(t)
	if err := Unmasquerade(strings.Repeat("n", 300), "tcp0"); err != nil {
		t.Errorf("a long name: %v", err)
	}
	if list, err := Masqueraded(strings.Repeat("n", 300)); err != nil || list != nil {
		t.Errorf("a long name: %q, %v", list, err)
	}
	var devices []string
	for i := range maxExact + 1 {
		devices = append(devices, fmt.Sprint("tcp", i))
		if err := Masquerade("net", devices[i], nil); err != nil {
			t.Fatal(err)
		}
		if i < 2 || i >= maxExact-1 {
			if err := Unmasquerade("net", "absent"); err != nil {
				t.Errorf("beside %d devices: %v", i+1, err)
			}
			if list, err := Masqueraded("net"); err != nil || len(list) != i+1 {
				t.Errorf("beside %d devices: %q, %v", i+1, list, err)
			}
		}
	}
	if err := Unmasquerade("net", append(devices, "absent")...); err != nil {
		t.Error(err)
	}
	if list, err := Masqueraded("net"); err != nil || list != nil {
		t.Errorf("left %q, %v", list, err)
	}
}

// Tables of other programs and of other networks are not touched. When eight pods come and go at the same time, each
// finds the table of the others, or makes it.
func TestRootMasqueradeAtOnce(t *testing.T) {
	n := newNode(t)
	if err := Masquerade("other", "tcp000000000000", nil); err != nil {
		t.Fatal(err)
	}
	before := state(t, n.host)
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			n.host.Do(t, func() { // other threads are not in the namespace
				for i := range 20 {
					device := HostName(pod.Key{Container: fmt.Sprint("c", w), Interface: "eth0"})
					if err := Masquerade("net", device, nil); err != nil {
						t.Errorf("%d: %v", i, err)
					}
					if err := Unmasquerade("net", device); err != nil {
						t.Errorf("%d: %v", i, err)
					}
				}
			})
		})
	}
	workers.Wait()
	if after := state(t, n.host); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if err := Unmasquerade("other", "tcp000000000000"); err != nil {
		t.Error(err)
	}
}

// Forward turns forwarding on where it is off, and reports that. It keeps the router that the host knows from
// an advertisement, which the kernel would forget.
func TestRootForward(t *testing.T) {
	for _, careful := range []bool{true, false} {
		host, router := testenv.NetNS(t), testenv.NetNS(t)
		for _, ns := range []*testenv.NS{host, router} {
			ns.Run(t, "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.all.accept_dad=0")
		}
		host.Run(t, "sysctl", "-qw", "net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0", "net.ipv6.conf.default.accept_ra=1")
		inner, outer := testenv.Veth(t, host, router)
		learned := func() bool { return strings.Contains(host.Run(t, "ip", "-6", "route", "show", "default"), "proto ra") }
		for end := time.Now().Add(10 * time.Second); !learned() && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			advertise(t, router, outer) // until the sender has its link-local address
		}
		if !learned() {
			t.Fatal("the host has not learned the router")
		}
		host.Do(t, func() {
			if !careful {
				if err := sysctl.Write(forward6, "1"); err != nil {
					t.Fatal(err)
				}
				return
			}
			changed, err := Forward(true, true)
			if want := []string{forward4 + "=1", "net.ipv6.conf." + inner.Name + ".accept_ra=2", forward6 + "=1"}; err != nil || changed[0] != want[0] ||
				!slices.Contains(changed, want[1]) || changed[len(changed)-1] != want[2] {
				t.Errorf("changed %q, %v; want %q", changed, err, want)
			}
			if changed, err := Forward(true, true); err != nil || changed != nil {
				t.Errorf("again: changed %q, %v", changed, err)
			}
		})
		if learned() != careful {
			t.Errorf("careful %v: the router is known: %v", careful, learned())
		}
	}
}

// advertise sends an advertisement of a router (RFC 4861, section 4.2) from one end of a pair.
func advertise(t *testing.T, ns *testenv.NS, end testenv.End) {
	t.Helper()
	ns.Do(t, func() {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		packet := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0} // a router for 30 min
		to := &unix.SockaddrInet6{ZoneId: uint32(end.Index), Addr: netip.MustParseAddr("ff02::1").As16()}
		if err := errors.Join(
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, end.Index),
			unix.Sendto(fd, packet, 0, to)); err != nil {
			t.Fatal(err)
		}
	})
}

// The MTU is that of the default routes' devices.
func TestRootMTU(t *testing.T) {
	n := newNode(t)
	n.host.Run(t, "ip", "link", "set", strings.Replace(n.wire.Name, "vb", "va", 1), "mtu", "1420")
	if mtu, err := MTU(true, true); err != nil || mtu != 1420 {
		t.Errorf("%d, %v", mtu, err)
	}
	n.host.Run(t, "ip", "-6", "route", "del", "default")
	for _, families := range [][2]bool{{true, true}, {true, false}} {
		if mtu, err := MTU(families[0], families[1]); err != nil || mtu != 1420 {
			t.Errorf("%v: %d, %v", families, mtu, err)
		}
	}
	if mtu, err := MTU(false, true); err != nil || mtu != defaultMTU {
		t.Errorf("without a route: %d, %v", mtu, err)
	}
	n.host.Run(t, "ip", "address", "add", outside4.String()+"/24", "dev", "lo")
	if mtu, err := MTU(true, false); err != nil || mtu != defaultMTU {
		t.Errorf("the address asked for is the host's own: %d, %v", mtu, err)
	}
	n.host.Run(t, "ip", "address", "del", outside4.String()+"/24", "dev", "lo")
	n.host.Run(t, "ip", "-4", "route", "del", "default")
	for _, kind := range []string{"unreachable", "prohibit", "blackhole"} {
		n.host.Run(t, "ip", "-4", "route", "replace", kind, "default")
		n.host.Run(t, "ip", "-6", "route", "replace", kind, "default")
		if mtu, err := MTU(true, true); err != nil || mtu != defaultMTU {
			t.Errorf("%s: %d, %v", kind, mtu, err)
		}
		n.host.Run(t, "ip", "-6", "route", "del", kind, "default")
	}
}

// A route that could not be looked up is not taken for no route: the pod would get a guessed MTU.
func TestMTUWithoutAnAnswer(t *testing.T) {
	for _, of := range []netip.Addr{outside4, outside6} {
		mtu, err := leastMTU(true, true, func(a netip.Addr) (int, error) {
			if a == of {
				return 0, unix.ENOBUFS
			}
			return 0, unix.ENETUNREACH
		}, nil)
		if mtu != 0 || !errors.Is(err, unix.ENOBUFS) {
			t.Errorf("%v: %d, %v", of, mtu, err)
		}
	}
}

// CHECK notices what is missing, and accepts what another plugin has added.
func TestRootCheck(t *testing.T) {
	n := newNode(t)
	a := testenv.NetNS(t)
	p := n.pair(a, "a", "10.77.0.5", "fd77::5")
	p.Routes = append(p.Routes, Route{Dst: netip.MustParsePrefix("10.55.0.0/16"), Table: 7})
	m := n.make(p)
	a.Run(t, "ip", "address", "add", "10.78.0.1/24", "dev", "eth0")
	a.Run(t, "ip", "link", "set", "eth0", "mtu", "1300")
	if err := Check(p, m.Link); err != nil {
		t.Error(err)
	}
	other := m.Link
	other.HostIndex++
	if err := Check(p, other); err == nil || !strings.Contains(err.Error(), "ADD made") {
		t.Errorf("another index: %v", err)
	}
	for _, c := range []struct {
		ns         *testenv.NS
		del, again string
		want       string
	}{
		{a, "route del default", "route add default via 169.254.1.1 dev eth0 onlink", "route to 0.0.0.0/0"},
		{a, "route del 10.55.0.0/16 table 7", "route add 10.55.0.0/16 via 169.254.1.1 dev eth0 onlink table 7", "route to 10.55.0.0/16"},
		{a, "-6 route del default", "-6 route add default via fe80::1 dev eth0 onlink", "route to ::/0"},
		{a, "address del fd77::5/128 dev eth0", "address add fd77::5/128 dev eth0 nodad", "address fd77::5"},
		{n.host, "route replace 10.77.0.5/32 dev lo", "route replace 10.77.0.5/32 dev " + p.HostName, "route to 10.77.0.5 leads to"},
		{a, "address del 10.77.0.5/32 dev eth0", "address add 10.77.0.5/32 dev eth0", "address 10.77.0.5"},
	} {
		c.ns.Run(t, "ip", strings.Fields(c.del)...)
		if err := Check(p, m.Link); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.del, err)
		}
		c.ns.Run(t, "ip", strings.Fields(c.again)...)
	}
	a.Run(t, "ip", "link", "del", "eth0")
	if err := Check(p, m.Link); err == nil {
		t.Error("the interface is gone: no error")
	}
}
