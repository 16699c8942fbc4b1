package datapath

import (
	"net"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// switchLook is longer than the time between two looks of a connection for its policy (SWITCH_LOOK_US).
const switchLook = 120 * time.Millisecond

// keptAtSwitches reports whether a connection is of the share that keeps its congestion control (keeps_arm).
func keptAtSwitches(c net.Conn) bool { return cookieOf(c)*0x9e3779b97f4a7c15>>60 == 0 }

// Running connections get the better congestion control with one of the next round trips, if theirs is one that
// the policy replaces. An application's own choice, the hold-out, and a share of the others
// keep theirs.
func TestRootRunningConnectionsAreSwitched(t *testing.T) {
	r := newRig(t)
	r.rules(t, class.Table{Classes: []class.Class{{ID: 1, Switch: true}}})
	both := func(from uint8) func(*path.Policy) {
		return func(p *path.Policy) {
			p.NumArms = 3
			p.Arms[0] = path.Arm{CC: cc("cubic"), Default: true}
			p.Arms[1] = path.Arm{CC: cc("reno"), Weight: 1 << 16}
			p.Arms[2] = path.Arm{CC: cc("bbr")}
			p.SwitchFrom, p.SwitchTo = from, 2
		}
	}
	policy := func(change func(*path.Policy)) {
		t.Helper()
		r.policy(t, change)
	}
	// pair has both ends outside or inside the share that is not switched.
	pair := func(kept bool) (c, s net.Conn) {
		t.Helper()
		for range 1000 {
			c, s = r.pair(t, "127.0.0.1:0")
			if keptAtSwitches(c) == kept {
				exchange(t, c, s, 1000)
				return c, s
			}
			closeAll(t, c, s)
		}
		t.Fatal("no connection with such a cookie")
		return nil, nil
	}
	any, _ := r.pair(t, "127.0.0.1:0")
	setCC(t, any, "bbr") // loads the kernel's module, which programs cannot
	policy(both(0))
	c, s := pair(false)
	chosen, chosenPeer := pair(false)
	setCC(t, chosen, "cubic")
	kept, keptPeer := pair(true)
	policy(func(p *path.Policy) { both(0)(p); p.HoldOut = 1 << 16 })
	out, outPeer := pair(false)
	policy(func(p *path.Policy) { both(0)(p); p.Arms[0].Weight, p.Arms[1].Weight = 1<<16, 0 })
	usual, usualPeer := pair(false)
	send := func() {
		t.Helper()
		time.Sleep(switchLook)
		exchange(t, c, s, 1000)
		exchange(t, chosen, chosenPeer, 1000)
		exchange(t, kept, keptPeer, 1000)
		exchange(t, out, outPeer, 1000)
		exchange(t, usual, usualPeer, 1000)
	}
	check := func(when string, want ...string) {
		t.Helper()
		for i, conn := range []net.Conn{c, chosen, kept, out, usual} {
			if got := ccOf(t, conn); got != want[i] {
				t.Errorf("%s: connection %d has %s, want %s", when, i, got, want[i])
			}
		}
	}
	send()
	check("nothing to replace", "reno", "cubic", "reno", "cubic", "cubic")
	policy(both(1 << 1))
	send()
	check("reno is replaced", "bbr", "cubic", "reno", "cubic", "cubic")
	policy(both(1<<0 | 1<<1))
	send()
	check("the default as well", "bbr", "cubic", "reno", "cubic", "bbr")
	pods, podsPeer := pair(false)
	// Before its rule comes another one, which only another namespace satisfies.
	r.rules(t, class.Table{Dims: class.DimNetNS, Classes: []class.Class{{ID: 9}, {ID: 1, Switch: true}}, AnyNetNS: class.Set{1 << 1},
		NetNS: map[uint64]class.Set{netnsOf(t, r.ns) + 1<<40: {1<<0 | 1<<1}}})
	for range 2 {
		time.Sleep(switchLook)
		exchange(t, pods, podsPeer, 1000)
	}
	if got := ccOf(t, pods); got != "bbr" {
		t.Errorf("a connection that still has its rule has %s, want bbr", got)
	}
	later, laterPeer := pair(false)
	r.rules(t, class.Table{Classes: []class.Class{{ID: 1, Switch: true}, {ID: 2}}}) // the connection may be another rule's by now
	for range 2 {
		time.Sleep(switchLook)
		exchange(t, later, laterPeer, 1000)
	}
	if got := ccOf(t, later); got != "reno" {
		t.Errorf("a connection from before the latest rules has %s, want reno", got)
	}
	n, err := r.Counters()
	must(t, err)
	if got := n.Decisions["switched"]; got < 2 {
		t.Errorf("%d switches are counted", got)
	}
	exchange(t, c, s, 1000)
	isC := ofConn(c)
	closeAll(t, c, s)
	if got := r.find(t, "the switched connection", isC); !got.Has(tcp.FlagCCChanged) || got.Arm != cc("bbr") || got.CC != cc("bbr") {
		t.Errorf("its sample has arm %s, congestion control %s, flags %b", got.Arm, got.CC, got.Flags)
	}
}

// What one network namespace owns is left alone there, and only there, unless the rule names it: also on running connections.
func TestRootSwitchesOfOwnedNamespaces(t *testing.T) {
	r := newRig(t)
	own, other := r.yields(t, 0, true)
	policy := func(from uint8) {
		t.Helper()
		r.policy(t, func(p *path.Policy) {
			arms(path.Arm{CC: cc("reno"), Weight: 1 << 16}, path.Arm{CC: cc("cubic")})(p)
			p.SwitchFrom, p.SwitchTo = from, 1
		})
	}
	for _, x := range []struct {
		name      string
		yields    []Yield
		inherited tcp.CC
		named     bool
		want      string
	}{
		{"another namespace's", []Yield{other}, cc("cubic"), false, "cubic"},
		{"the namespace's own", []Yield{other, own}, cc("cubic"), false, "reno"},
		{"named by the rule", []Yield{other, own}, cc("bbr"), true, "cubic"},
	} {
		r.rules(t, class.Table{Classes: []class.Class{{ID: 1, Switch: true, Named: x.named}}})
		policy(0)
		c, s := r.pair(t, "127.0.0.1:0")
		for cookieOf(c)*0x9e3779b97f4a7c15>>60 == 0 { // keeps_arm
			c, s = r.pair(t, "127.0.0.1:0")
		}
		policy(1 << 0)
		must(t, r.SetSettings(Settings{Yields: x.yields, Inherited: []tcp.CC{x.inherited}}))
		for range 2 {
			time.Sleep(switchLook)
			exchange(t, c, s, 1000)
		}
		if got := ccOf(t, c); got != x.want {
			t.Errorf("%s: the connection has %s, want %s", x.name, got, x.want)
		}
	}
}

// At most 20 connections are switched in a second (SWITCHES_A_SECOND).
func TestRootSwitchesAreBounded(t *testing.T) {
	const each, most = 16, 20
	r := newRig(t)
	r.rules(t, class.Table{Classes: []class.Class{{ID: 1, Switch: true}}})
	arms := func(from uint8) func(*path.Policy) {
		return func(p *path.Policy) {
			p.NumArms = 2
			p.Arms[0] = path.Arm{CC: cc("reno"), Weight: 1 << 16}
			p.Arms[1] = path.Arm{CC: cc("cubic")}
			p.SwitchFrom, p.SwitchTo = from, 1
		}
	}
	r.policy(t, arms(0))
	var ends []net.Conn
	for range each {
		c, s := r.pair(t, "127.0.0.1:0")
		ends = append(ends, c, s)
	}
	r.policy(t, arms(1<<0))
	time.Sleep(switchLook)
	send := func() (took time.Duration, switched uint64) {
		begun := time.Now()
		for i := 0; i < len(ends); i += 2 {
			exchange(t, ends[i], ends[i+1], 1000)
			exchange(t, ends[i+1], ends[i], 1000)
		}
		n, err := r.Counters()
		must(t, err)
		return time.Since(begun), n.Decisions["switched"]
	}
	took, first := send()
	if first == 0 || took < time.Second && first > most {
		t.Errorf("%d connections were switched in %s, want 1 to %d", first, took, most)
	}
	time.Sleep(time.Second + switchLook)
	if _, n := send(); took < time.Second && n <= first {
		t.Errorf("%d connections were switched, then %d", first, n)
	}
}

// A switch that the kernel refuses is counted, and not tried again on that connection.
func TestRootRefusedSwitch(t *testing.T) {
	r := newRig(t)
	r.rules(t, class.Table{Classes: []class.Class{{ID: 1, Switch: true}}})
	r.policy(t, func(p *path.Policy) {
		p.NumArms = 2
		p.Arms[0] = path.Arm{CC: cc("reno"), Weight: 1 << 16}
		p.Arms[1] = path.Arm{CC: cc("no_such_cc")}
		p.SwitchFrom, p.SwitchTo = 1<<0, 1
	})
	kept := func(c net.Conn) bool { return cookieOf(c)*0x9e3779b97f4a7c15>>60 == 0 }
	c, s := r.pair(t, "127.0.0.1:0")
	for kept(c) || kept(s) { // of the share that is not switched
		c, s = r.pair(t, "127.0.0.1:0")
	}
	failed := func() uint64 {
		n, err := r.Counters()
		must(t, err)
		return n.Decisions["cc-failed"]
	}
	var first uint64
	for i := range 3 {
		time.Sleep(switchLook)
		exchange(t, c, s, 1000)
		exchange(t, s, c, 1000)
		if i == 1 { // both ends
			first = failed()
		}
	}
	if got := failed(); first != 2 || got != first || ccOf(t, c) != "reno" {
		t.Errorf("%d refused switches, then %d, want 2 and 2; the connection has %s", first, got, ccOf(t, c))
	}
}
