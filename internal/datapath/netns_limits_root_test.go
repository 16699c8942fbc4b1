package datapath

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/limit"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// Two addresses of each family, on one device: connections between them are not loopback's to tcpilot.
const twoAddresses = `addr add 192.0.2.1/32 dev lo
addr add 192.0.2.2/32 dev lo
addr add 2001:db8::1/128 dev lo nodad
addr add 2001:db8::2/128 dev lo nodad`

// addAddresses gives a namespace two addresses of each family.
func addAddresses(t testing.TB, ns *testenv.NS) {
	t.Helper()
	ns.IP(t, twoAddresses)
	for _, to := range []string{"[2001:db8::1]:9", "[2001:db8::2]:9"} { // the kernel adds routes of IPv6 addresses later (addrconf_dad_work)
		eventually(t, func() (err error) {
			ns.Do(t, func() {
				var c net.Conn
				if c, err = net.Dial("udp", to); err == nil {
					err = c.Close()
				}
			})
			return err
		})
	}
}

// pairIn makes a connection in a namespace, from one of its addresses to another one, or the same one.
func pairIn(t testing.TB, ns *testenv.NS, from, to string, f control) (ends [2]net.Conn) {
	t.Helper()
	l := listen(t, ns, net.JoinHostPort(to, "0"), nil)
	c, err := dialErr(t, ns, net.JoinHostPort(from, "0"), l.Addr().String(), f)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return [2]net.Conn{c, accept(t, l)}
}

func pairV4(t testing.TB, ns *testenv.NS) [2]net.Conn {
	return pairIn(t, ns, "192.0.2.2", "192.0.2.1", nil)
}

// wantPacing checks the pacing rates of both ends.
func wantPacing(t *testing.T, what string, ends [2]net.Conn, want uint32) {
	t.Helper()
	if a, b := pacingOf(t, ends[0]), pacingOf(t, ends[1]); a != want || b != want {
		t.Errorf("%s: pacing rates %d and %d, want %d", what, a, b, want)
	}
}

// netnsRig is a rig whose namespace has two addresses of each family, with the namespace's cookie.
func netnsRig(t *testing.T) (*rig, uint64) {
	r := newRig(t)
	addAddresses(t, r.ns)
	cookie, err := netns.Cookie(r.ns.Path())
	must(t, err)
	return r, cookie
}

// Tables of rules: none; one that leaves connections alone; one for all; one that depends on who opened the connection.
var (
	noRules    = class.Table{}
	leaveTable = class.Table{Classes: []class.Class{{ID: 1, Leave: true}}}
	allTable   = class.Table{Classes: []class.Class{{ID: 1}}}
	outgoing   = class.Table{Dims: class.DimDirection, Classes: []class.Class{{ID: 1}}, Outgoing: class.Set{1}}
)

// All connections of a network namespace are under its limit, whatever rules say, but for those that stay within it; those of other
// namespaces are not. An application's lower rate stays.
func TestRootLimitOfNetNS(t *testing.T) {
	r, cookie := netnsRig(t)
	other := testenv.NetNS(t)
	addAddresses(t, other)
	limited := class.Table{Classes: []class.Class{{ID: 1, Limit: limitKey}}}
	for what, c := range map[string]struct {
		rules class.Table
		rule  uint64 // limit of the rule
		want  uint32
	}{"no rule": {noRules, 0, 3e6}, "left alone": {leaveTable, 0, 3e6}, "a rule": {allTable, 0, 3e6}, "a rule for one end": {outgoing, 0, 3e6},
		"a rule with less": {limited, 2e6, 2e6}, "a rule with more": {limited, 4e6, 3e6}} {
		r.rules(t, c.rules)
		rules := map[uint64]limit.Limit{}
		if c.rule != 0 {
			rules[limitKey] = limit.Limit{Connection: c.rule}
		}
		must(t, r.SetLimits(rules, map[uint64]limit.Limit{cookie: {Connection: 3e6}}))
		wantPacing(t, what, pairV4(t, r.ns), c.want)
	}
	r.rules(t, noRules)
	wantPacing(t, "IPv6", pairIn(t, r.ns, "2001:db8::2", "2001:db8::1", nil), 3e6)
	wantPacing(t, "loopback", pairIn(t, r.ns, "127.0.0.1", "127.0.0.2", nil), noPacing)
	wantPacing(t, "loopback, IPv6", pairIn(t, r.ns, "::1", "::1", nil), noPacing)
	wantPacing(t, "to loopback, as after REDIRECT", pairIn(t, r.ns, "192.0.2.1", "127.0.0.1", nil), noPacing)
	wantPacing(t, "from loopback, as of a proxy", pairIn(t, r.ns, "127.0.0.6", "192.0.2.1", nil), noPacing)
	wantPacing(t, "from loopback, IPv6", pairIn(t, r.ns, "::1", "2001:db8::1", nil), noPacing)
	wantPacing(t, "to its own address", pairIn(t, r.ns, "2001:db8::1", "2001:db8::1", nil), noPacing)
	wantPacing(t, "another namespace", pairV4(t, other), noPacing)
	own := pairIn(t, r.ns, "192.0.2.2", "192.0.2.1", func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, 1e6)
	})
	if got := pacingOf(t, own[0]); got != 1e6 {
		t.Errorf("the application's pacing rate of 1e6 became %d", got)
	}
}

// Connections that no rule matches share the limit of their namespace with others, count as of no rule, and give no samples. What
// they have sent is counted when they end. Without limits of namespaces, nothing is noted of them.
func TestRootLimitOfNetNSIsShared(t *testing.T) {
	r, cookie := netnsRig(t)
	r.rules(t, noRules)
	before, err := r.Counters()
	must(t, err)
	must(t, r.SetLimits(nil, map[uint64]limit.Limit{cookie: {Rate: 8e6}}))
	one, two := pairV4(t, r.ns), pairV4(t, r.ns)
	for _, p := range [][2]net.Conn{one, two} {
		follow(t, p[0], p[1])
	}
	wantPacing(t, "the first of two", one, 2e6)
	wantPacing(t, "the second of two", two, 2e6)
	var d limit.Divider
	r.divide(t, &d)
	exchange(t, one[0], one[1], 100_000)
	exchange(t, one[1], one[0], 100_000)
	eventually(t, func() error { // a delayed ACK shows the other ones active once more
		s := r.divide(t, &d).Limits[cookie]
		follow(t, one[0], one[1])
		if got := pacingOf(t, one[0]); s.Connections != 4 || s.Active != 2 || got < 3_500_000 {
			return fmt.Errorf("pacing rate %d while two of four are idle, want half of the limit: %+v", got, s)
		}
		return nil
	})
	now, err := r.Counters()
	must(t, err)
	if n := now.Decisions["no-rule"] - before.Decisions["no-rule"]; n != 4 || now.Slots != before.Slots || now.Storages != before.Storages {
		t.Errorf("%d connections of no rule, want 4; %+v", n, now)
	}
	closeAll(t, one[0], one[1], two[0], two[1])
	eventually(t, func() error {
		conns := r.limited(t)
		if sent := r.Limits()[cookie].Ended; len(conns) != 0 || sent < 200_000 || sent > 220_000 {
			return fmt.Errorf("%d connections are under the limit, the ended ones sent %d bytes", len(conns), sent)
		}
		return nil
	})
	if now, err = r.Counters(); err != nil || now.Samples != before.Samples {
		t.Errorf("%d samples, %v", now.Samples-before.Samples, err)
	}
	must(t, r.SetLimits(nil, nil))
	wantPacing(t, "after the limit", pairV4(t, r.ns), noPacing)
	if conns := r.limited(t); len(conns) != 0 {
		t.Errorf("%d connections are noted without a limit", len(conns))
	}
}

// Running connections come under the limit of their namespace, and lose it, as those of a rule's limit do; also those of which it is
// not known who opened them. A rule's own limit comes and goes beside it.
func TestRootLimitOfNetNSOfRunningConnections(t *testing.T) {
	r, cookie := netnsRig(t)
	other := testenv.NetNS(t)
	addAddresses(t, other)
	conns := map[string][2]net.Conn{}
	for what, table := range map[string]class.Table{"no rule": noRules, "left alone": leaveTable, "a rule": allTable} {
		r.rules(t, table)
		conns[what] = pairV4(t, r.ns)
	}
	unlimited := map[string][2]net.Conn{"another namespace": pairV4(t, other), "loopback": pairIn(t, r.ns, "127.0.0.1", "127.0.0.1", nil)}
	want := func(when string, want uint32) {
		t.Helper()
		for range 2 { // before Linux 6.12, connections notice what has changed at the next walk
			for _, ns := range []*testenv.NS{r.ns, other} {
				ns.Do(t, func() { must(t, r.FollowLimits()) })
			}
		}
		for what, p := range conns {
			follow(t, p[0], p[1])
			wantPacing(t, what+", "+when, p, want)
		}
		for what, p := range unlimited {
			follow(t, p[0], p[1])
			wantPacing(t, what+", "+when, p, noPacing)
		}
	}
	pods := map[uint64]limit.Limit{cookie: {Connection: 3e6}}
	r.rules(t, outgoing)
	must(t, r.SetLimits(nil, pods))
	want("with a limit", 3e6)
	must(t, r.SetLimits(nil, nil))
	want("after the limit", noPacing)
	must(t, r.SetLimits(nil, pods))
	want("with a limit again", 3e6)
	r.rules(t, class.Table{Classes: []class.Class{{ID: 1, Limit: limitKey}}})
	unlimited = nil // the rule is for all
	must(t, r.SetLimits(map[uint64]limit.Limit{limitKey: {Connection: 2e6}}, pods))
	want("with a lower one of the rule", 2e6)
	must(t, r.SetLimits(map[uint64]limit.Limit{limitKey: {Connection: 4e6}}, nil))
	want("with that of the rule alone", 4e6)
	must(t, r.SetLimits(map[uint64]limit.Limit{limitKey: {Connection: 4e6}}, pods))
	want("with both", 3e6)
	must(t, r.SetLimits(map[uint64]limit.Limit{limitKey: {Connection: 2e6}}, pods))
	want("with both, the rule's lower", 2e6)
	limitedOutgoing := outgoing
	limitedOutgoing.Classes = []class.Class{{ID: 1, Limit: limitKey}}
	r.rules(t, limitedOutgoing)
	want("with both, of a rule that depends on who opened them now", 2e6)
	must(t, r.SetLimits(map[uint64]limit.Limit{limitKey: {Connection: 2e6}}, nil))
	want("with that of this rule alone", 2e6)
	must(t, r.SetLimits(map[uint64]limit.Limit{limitKey: {Connection: 2e6}}, pods))
	want("with that of the namespace again", 2e6)
	r.rules(t, noRules)
	must(t, r.SetLimits(nil, pods))
	want("with that of the namespace alone", 3e6)
	list := r.limited(t)
	for _, c := range list {
		if c.Rule == c.Path {
			t.Errorf("%+v is under one limit twice", c)
		}
	}
	must(t, r.SetLease(0))
	want("after the lease", noPacing)
}

// If a limit cannot be written or ended, the others are in force all the same, and the next call tries it again.
func TestRootLimitOfNetNSFails(t *testing.T) {
	r, cookie := netnsRig(t)
	r.rules(t, noRules)
	must(t, r.SetLimits(map[uint64]limit.Limit{limitKey: {Rate: 1e6}}, nil))
	ended := r.maps.LimitEnded
	closed, err := ended.Clone()
	must(t, err)
	must(t, closed.Close())
	r.maps.LimitEnded = closed
	err = r.SetLimits(nil, map[uint64]limit.Limit{cookie: {Connection: 3e6}})
	r.maps.LimitEnded = ended
	if err == nil || r.config.Limits&limitsOfNetNS == 0 {
		t.Errorf("error %v, flags %#x of the limits", err, r.config.Limits)
	}
	must(t, r.SetLimits(nil, map[uint64]limit.Limit{cookie: {Connection: 3e6}}))
	var n uint64
	if err := ended.Lookup(uint64(limitKey), &n); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("the limit that failed to end: %v", err)
	}
	if got := r.Limits(); len(got) != 1 || got[cookie].Connection != 3e6 {
		t.Errorf("limits %v", got)
	}
	wantPacing(t, "after an error", pairV4(t, r.ns), 3e6)
}

// When an earlier daemon's programs are detached, connections that no rule matches get back what they had.
func TestRootLimitOfNetNSIsReleased(t *testing.T) {
	r, cookie := netnsRig(t)
	r.rules(t, noRules)
	must(t, r.SetLimits(nil, map[uint64]limit.Limit{cookie: {Connection: 3e6}}))
	p := pairV4(t, r.ns)
	wantPacing(t, "with a limit", p, 3e6)
	must(t, r.SetLease(0))
	r.release(t, nothing)
	wantPacing(t, "released", p, noPacing)
}
