package daemon

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// routed is a namespace with some routes.
func routed(t *testing.T) *testenv.NS {
	t.Helper()
	ns := profiled(t)
	for _, command := range []string{"link add d0 type veth peer name p0", "link set p0 up", "addr add 10.1.0.1/24 dev d0", "link set d0 up",
		"route add default via 10.1.0.9", "route add 10.7.0.0/16 via 10.1.0.9 initcwnd 20", "-6 route add fd07::/32 dev d0"} {
		ip(t, ns, command)
	}
	// The kernel adds routes of IPv6 once it has noticed that both ends are up.
	for begun := time.Now(); strings.Count(routesIn(t, ns), "local fe80::") < 2; time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > 10*time.Second {
			t.Fatalf("routes:\n%s", routesIn(t, ns))
		}
	}
	return ns
}

func ip(t *testing.T, ns *testenv.NS, command string) (shown string) {
	t.Helper()
	ns.Do(t, func() {
		out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput()
		if shown = string(out); err != nil {
			t.Errorf("ip %s: %s%v", command, out, err)
		}
	})
	return shown
}

func routesIn(t *testing.T, ns *testenv.NS) string {
	t.Helper()
	return ip(t, ns, "-d -4 route show table all") + ip(t, ns, "-d -6 route show table all")
}

func newRoutesProfileIn(t *testing.T, cfg *config.Config, ns *testenv.NS) *profile {
	t.Helper()
	p := newProfileIn(t, cfg, ns)
	p.routes = newRouteProfile(cfg, p.log)
	if p.routes.unsupported != nil {
		testenv.Missing(t, "the kernel has no timestamps in microseconds: "+p.routes.unsupported.Error())
	}
	return p
}

// Routes within the prefixes get timestamps in microseconds, those that come later as well. They are restored, unless
// somebody else has changed them meanwhile, after a crash as well.
func TestRootRouteProfile(t *testing.T) {
	testenv.Root(t)
	cfg := config.Default()
	cfg.StateDir = t.TempDir()
	cfg.Host = config.Host{NetNS: "all", UsecTimestamps: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"),
		netip.MustParsePrefix("172.16.0.0/12")}}
	own, other := routed(t), routed(t)
	p := newRoutesProfileIn(t, cfg, own)
	before := routesIn(t, own)
	poll := func(p *profile, observe bool) { own.Do(t, func() { p.due = true; p.poll(time.Now(), observe) }) }
	want := func(when string, p *profile, ownRoutes, otherRoutes string) {
		t.Helper()
		var got []string
		for _, h := range p.routeState() {
			got = append(got, strings.Join(h.Routes, " "))
		}
		if text := strings.Join(got, ";"); text != ownRoutes+";"+otherRoutes && text != otherRoutes+";"+ownRoutes || p.problem != "" {
			t.Errorf("%s %q is changed, want %q and %q; problem %q", when, got, ownRoutes, otherRoutes, p.problem)
		}
	}
	const all = "10.1.0.0/24 10.7.0.0/16 fd07::/32"
	poll(p, true)
	if routesIn(t, own) != before {
		t.Error("mode observe has changed routes")
	}
	poll(p, false)
	want("at first", p, all, all)
	if n := p.counts(); n == nil || n.Routes != 6 {
		t.Errorf("metrics count %+v, want 6 routes", n)
	}
	if s := p.routeState(); !slices.ContainsFunc([]string{s[0].NetNS, s[len(s)-1].NetNS}, func(name string) bool { return name == "" }) {
		t.Errorf("none is the daemon's own: %+v", s)
	}
	ip(t, own, "route add 10.8.0.0/16 via 10.1.0.9")
	ip(t, other, "route del 10.7.0.0/16")
	poll(p, false)
	want("after changes", p, "10.1.0.0/24 10.7.0.0/16 10.8.0.0/16 fd07::/32", "10.1.0.0/24 fd07::/32")
	ip(t, own, "route del 10.8.0.0/16")

	// A route of another device with the same destination does not matter, and has to stay.
	ip(t, own, "link add d1 type veth peer name p1")
	ip(t, own, "link set d1 up")
	ip(t, own, "addr add 10.1.0.2/24 dev d1 noprefixroute")
	ip(t, own, "route append 10.1.0.0/24 dev d1")
	poll(p, false)
	want("beside another route", p, all, "10.1.0.0/24 fd07::/32")
	ip(t, own, "link del d1")

	// Somebody else replaces a route: it is changed again, but not for ever.
	for range maxReplaced {
		ip(t, other, "route replace 10.1.0.0/24 dev d0 scope link src 10.1.0.1 proto kernel")
		poll(p, false)
		want("after another program", p, all, "10.1.0.0/24 fd07::/32")
	}
	ip(t, other, "route replace 10.1.0.0/24 dev d0 scope link src 10.1.0.1 proto kernel")
	poll(p, false)
	want("after another program, too often,", p, all, "fd07::/32")
	left := func(p *profile) (list []string) {
		for _, h := range p.routeState() {
			list = append(list, h.Left...)
		}
		return list
	}
	if l := left(p); len(l) != 2 || !strings.Contains(strings.Join(l, "\n"), "again and again") || !strings.Contains(strings.Join(l, "\n"), "172.16.0.0/12: no route") {
		t.Errorf("left: %q", l)
	}

	// A crash: the next process takes all back, then changes it again.
	next := newRoutesProfileIn(t, cfg, own)
	own.Do(t, func() {
		undone, err := next.adoptAndRestore()
		if err != nil || len(undone) != 4 {
			t.Errorf("taken back %q, %v", undone, err)
		}
	})
	if after := routesIn(t, own); after != before {
		t.Errorf("routes afterwards:\n%sbefore:\n%s", after, before)
	}
	if next.routes.journal.exists() {
		t.Error("the journal is still there")
	}
	poll(next, false)
	want("in the next process", next, all, "10.1.0.0/24 fd07::/32")
	// An administrator's change stays.
	ip(t, own, "route replace 10.7.0.0/16 via 10.1.0.8")
	poll(next, true)
	if after := routesIn(t, own); !strings.Contains(after, "10.7.0.0/16 via 10.1.0.8") || strings.Contains(after, "0x10") || strings.Contains(after, "usec") {
		t.Errorf("after another route, and mode observe:\n%s", after)
	}
	if len(next.routeState()) != 0 {
		t.Errorf("status shows %+v at the end", next.routeState())
	}
}
