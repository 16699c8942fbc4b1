package datapath

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// ofOneNetNS is class 1 for all connections, and before it class 9 for those of one network namespace.
func ofOneNetNS(cookie uint64) class.Table {
	return class.Table{Dims: class.DimNetNS, Classes: []class.Class{{ID: 9}, {ID: 1, Switch: true}}, AnyNetNS: class.Set{1 << 1},
		NetNS: map[uint64]class.Set{cookie: {1<<0 | 1<<1}}}
}

// switchedPair is a connection whose client is not of the share that keeps its congestion control.
func switchedPair(t *testing.T, ns *testenv.NS) [2]net.Conn {
	t.Helper()
	for range 1000 {
		p := pairIn(t, ns, "127.0.0.1", "127.0.0.1", nil)
		if !keptAtSwitches(p[0]) {
			return p
		}
		closeAll(t, p[0], p[1])
	}
	t.Fatal("no connection with such a cookie")
	return [2]net.Conn{}
}

// A rule comes that names a network namespace: its running connections get nothing more from their old rule, others do.
func TestRootRulesOfOneNetNS(t *testing.T) {
	r := newRig(t)
	other := testenv.NetNS(t)
	r.rules(t, class.Table{Classes: []class.Class{{ID: 1, Switch: true}}})
	reno := func(from uint8) func(*path.Policy) {
		return func(p *path.Policy) {
			arms(arm("reno", 1<<16), arm("cubic", 0))(p)
			p.SwitchFrom, p.SwitchTo = from, 1
		}
	}
	r.policy(t, reno(0))
	here, there := switchedPair(t, r.ns), switchedPair(t, other)
	r.rules(t, ofOneNetNS(netnsOf(t, other)))
	r.policy(t, reno(1))
	for range 2 {
		time.Sleep(switchLook)
		exchange(t, here[0], here[1], 1000)
		exchange(t, there[0], there[1], 1000)
	}
	if a, b := ccOf(t, here[0]), ccOf(t, there[0]); a != "cubic" || b != "reno" {
		t.Errorf("a connection that still has its rule has %s, want cubic; that of the named namespace %s, want reno", a, b)
	}
}

// The same of what the walk over running connections gives them.
func TestRootWalkUnderRulesOfOneNetNS(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	for _, c := range []struct {
		name  string
		rules class.Table
		want  uint32
	}{
		{"another namespace is named", ofOneNetNS(netnsOf(t, r.ns) + 1<<40), 20},
		{"its namespace is named", ofOneNetNS(netnsOf(t, r.ns)), infinite},
	} {
		r.rules(t, class.Table{Classes: []class.Class{{ID: 1, Switch: true}}})
		r.policy(t, unclamped)
		client, server := r.pair(t, "127.0.0.1:0")
		r.rules(t, c.rules)
		r.policy(t, clamped(40))
		for range 20 {
			exchange(t, client, server, 1000)
			must(t, r.SetSettings(Settings{Fields: 1 << tcp.CwndClamp, Interval: time.Nanosecond}))
			r.completeWalk(t)
			if got := ssthreshOf(t, client); got == 20 {
				break
			}
		}
		if got := ssthreshOf(t, client); got != c.want {
			t.Errorf("%s: the clamp is %d, want %d", c.name, got, c.want)
		}
		closeAll(t, client, server)
	}
}

// However many network namespaces get and lose rules, the latest changes are known.
func TestRootChangesOfManyNetNS(t *testing.T) {
	r := newRig(t)
	most := uint64(r.maps.NetnsRulesNs.MaxEntries())
	one := class.Table{Classes: []class.Class{{ID: 1}}}
	known := func(cookie uint64) (at uint64) {
		must(t, r.maps.NetnsRulesNs.Lookup(cookie, &at))
		return at
	}
	r.rules(t, one)
	before := r.config.RulesNs
	for n := range most + 10 {
		must(t, r.noteChanges(&writtenTable{classes: []uint32{9, 1}, anyNetNS: class.Set{2}, netns: map[uint64]class.Set{n + 1: {3}}}))
	}
	if at := known(most + 10); at < known(most+9) || r.config.RulesNs != before {
		t.Errorf("the last changed at %d, the one before at %d; the rules of all connections at %d, before %d", at, known(most+9), r.config.RulesNs, before)
	}
	all := map[uint64]class.Set{}
	for n := range most + 1 {
		all[n] = class.Set{3}
	}
	must(t, r.noteChanges(&writtenTable{classes: []uint32{9, 1}, anyNetNS: class.Set{2}, netns: all}))
	if r.config.RulesNs == before {
		t.Error("more changes than the map has room for are not noted")
	}
	r.rules(t, ofOneNetNS(1)) // those that RulesNs covers are removed
	if err := r.maps.NetnsRulesNs.Lookup(most+10, new(uint64)); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("an older change is still there: %v", err)
	}
}
