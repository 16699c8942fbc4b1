package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/kubeapi"
	"github.com/tcpilot/tcpilot/internal/rtnetlink"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// theRoutes are the node's routes of tcpilot's protocol.
func theRoutes(t *testing.T, ns *testenv.NS) (list []string) {
	t.Helper()
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(ns.Run(t, "ip", family, "route", "show", "proto", "84")) {
			f := strings.Fields(line)
			list = append(list, strings.Join(f[:min(len(f), 5)], " "))
		}
	}
	slices.Sort(list)
	return list
}

// There are exactly the routes that the nodes ask for; others' routes stay, also those to the same networks.
func TestRootNodeRoutes(t *testing.T) {
	ns := testenv.NetNS(t)
	ns.Enter(t)
	ns.IP(t, `link add eth0 type veth peer name wire
link set wire up
address add 192.0.2.1/24 dev eth0
address add 2001:db8::1/64 dev eth0 nodad
link set eth0 up
route add default via 192.0.2.254
route add 10.1.7.0/24 via 192.0.2.7
route add 10.1.8.0/24 via 192.0.2.8 proto 84 metric 5
route add blackhole 10.1.9.0/24
route add 10.1.10.0/24 via 192.0.2.10 table 77`)
	others := func() string { // without the kernel's, of which some come late
		return ns.Run(t, "sh", "-c", "(ip -4 route show table all; ip -6 route show table all) | grep -v 'proto kernel' | sort")
	}
	n := &nodeRoutes{log: slog.New(slog.DiscardHandler), changed: make(chan struct{}, 1), routeTo: rtnetlink.RouteTo}
	if removed, err := removeNodeRoutes(); err != nil || removed != 1 {
		t.Fatalf("removed %d, %v", removed, err)
	}
	before := others()
	self := aNode("a", "10.1.0.0/24 fd00:1::/64 | 192.0.2.1 2001:db8::1")
	round := func(nodes ...kubeapi.Node) string {
		t.Helper()
		n.round("a", append([]kubeapi.Node{self}, nodes...))
		v := n.shown.Load()
		if v.failed != nil {
			t.Error(v.failed)
		}
		if v.made != len(theRoutes(t, ns)) {
			t.Errorf("made %d", v.made)
		}
		return fmt.Sprint(v.missing)
	}
	expect := func(want ...string) {
		t.Helper()
		if got := theRoutes(t, ns); !slices.Equal(got, want) {
			t.Errorf("routes %q, want %q", got, want)
		}
	}
	b := aNode("b", "10.1.1.0/24 fd00:1:0:1::/64 | 192.0.2.2 2001:db8::2")
	if missing := round(b, aNode("t", "10.1.10.0/24 | 192.0.2.10")); missing != "[]" {
		t.Error(missing)
	}
	const b4, b6 = "10.1.1.0/24 via 192.0.2.2 dev eth0", "fd00:1:0:1::/64 via 2001:db8::2 dev eth0"
	expect(b4, "10.1.10.0/24 via 192.0.2.10 dev eth0", b6) // another table is another matter
	missing := round(b, aNode("c", "10.1.2.0/24 | 198.51.100.3"), aNode("d", "10.1.7.0/24 | 192.0.2.4"), aNode("e", "10.1.9.0/24 | 192.0.2.5"), aNode("f", "10.1.3.0/24 | 192.0.2.1"))
	for _, want := range []string{"10.1.2.0/24 of node c: the node's address 198.51.100.3 is behind a router", "10.1.7.0/24 of node d: somebody else has a route to it (proto 3)",
		"10.1.9.0/24 of node e: somebody else has a route", "10.1.3.0/24 of node f: the node's address 192.0.2.1 is one of this host"} {
		if !strings.Contains(missing, want) {
			t.Errorf("missing %s, want %q", missing, want)
		}
	}
	expect(b4, b6)
	// The node gets another address.
	round(aNode("b", "10.1.1.0/24 fd00:1:0:1::/64 | 192.0.2.22 2001:db8::2"))
	expect("10.1.1.0/24 via 192.0.2.22 dev eth0", b6)
	round(b)
	expect(b4, b6)
	// What cannot be found out changes nothing.
	n.routeTo = func(netip.Addr) (rtnetlink.Route, error) { return rtnetlink.Route{}, unix.EMFILE }
	n.round("a", []kubeapi.Node{self, b})
	if v := n.shown.Load(); !errors.Is(v.failed, unix.EMFILE) || v.made != 2 || len(v.missing) != 0 {
		t.Errorf("%+v", v)
	}
	n.routeTo = rtnetlink.RouteTo
	expect(b4, b6)
	// Somebody else makes a route to the same network: this one goes, and comes back when that is gone.
	ns.IP(t, "route add 10.1.1.0/24 via 192.0.2.9 metric 100")
	if missing := round(b); !strings.Contains(missing, "somebody else has a route") {
		t.Error(missing)
	}
	expect(b6)
	if left := ns.Run(t, "ip", "route", "show", "10.1.1.0/24"); !strings.Contains(left, "192.0.2.9") {
		t.Errorf("left %q", left)
	}
	ns.IP(t, "route del 10.1.1.0/24 via 192.0.2.9 metric 100")
	round(b)
	expect(b4, b6)
	// The device goes down, with which the kernel removes the routes.
	ns.IP(t, "link set eth0 down")
	if missing := round(b); !strings.Contains(missing, "no route to the node's address 192.0.2.2") {
		t.Error(missing)
	}
	ns.IP(t, `link set eth0 up
address replace 2001:db8::1/64 dev eth0 nodad
route replace default via 192.0.2.254
route replace 10.1.7.0/24 via 192.0.2.7
route replace 10.1.10.0/24 via 192.0.2.10 table 77`)
	round(b)
	expect(b4, b6)
	// On request they are removed, and stay so until the configuration is read again.
	if err := n.detach(); err != nil {
		t.Error(err)
	}
	n.round("a", []kubeapi.Node{self, b})
	expect()
	if f := n.feature(); f.Active || !strings.Contains(f.Why, "detached on request") {
		t.Errorf("%+v", f)
	}
	n.reload()
	round(b)
	expect(b4, b6)
	// The node goes.
	round()
	expect()
	if after := others(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}
