package datapath

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/limit"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

const limitKey = 77

const noPacing = 1<<32 - 1

// limitRig is a rig whose only class is under a rate limit.
func limitRig(t *testing.T, l limit.Limit) *rig {
	r := newRig(t)
	r.limitTo(t, &l)
	return r
}

// limitTo gives the class another limit; nil is none.
func (r *rig) limitTo(t *testing.T, l *limit.Limit) {
	t.Helper()
	c, limits := class.Class{ID: 1}, map[uint64]limit.Limit{}
	if l != nil {
		c.Limit, limits[limitKey] = limitKey, *l
	}
	r.rules(t, class.Table{Classes: []class.Class{c}})
	must(t, r.SetLimits(limits, nil))
}

// limited lists the connections under limits, where the kernel finds those of the rig's namespace only, these.
func (r *rig) limited(t *testing.T) (conns []limit.Conn) {
	t.Helper()
	r.ns.Do(t, func() {
		var err error
		conns, err = r.Limited()
		must(t, err)
	})
	return conns
}

// divide divides the limits once more, as the daemon does every 250 ms.
func (r *rig) divide(t *testing.T, d *limit.Divider) limit.Result {
	t.Helper()
	conns := r.limited(t)
	res := d.Divide(Monotonic(), r.Limits(), conns)
	must(t, r.WriteShares(&res))
	return res
}

// follow makes one round trip each, so that both ends notice what they get.
func follow(t *testing.T, client, server net.Conn) {
	t.Helper()
	for range 3 {
		exchange(t, client, server, 1)
		exchange(t, server, client, 1)
	}
}

// Connections share a limit as soon as they begin: those that began earlier get less then.
func TestRootLimitIsSharedByConnectionsThatBegin(t *testing.T) {
	r := limitRig(t, limit.Limit{Rate: 12e6})
	var conns [][2]net.Conn
	for range 3 {
		c, s := r.pair(t, "127.0.0.1:0") // two connections of the class
		conns = append(conns, [2]net.Conn{c, s})
	}
	for i, c := range conns {
		follow(t, c[0], c[1])
		if a, b := pacingOf(t, c[0]), pacingOf(t, c[1]); a != 2e6 || b != 2e6 {
			t.Errorf("pair %d: pacing rates %d and %d, want 2e6, a sixth of the limit", i, a, b)
		}
	}
	closeAll(t, conns[0][0], conns[0][1], conns[1][0], conns[1][1])
	for try := 0; pacingOf(t, conns[2][0]) != 6e6; try++ {
		if try == 200 {
			t.Fatalf("pacing rate %d after the others ended, want 6e6", pacingOf(t, conns[2][0]))
		}
		time.Sleep(5 * time.Millisecond)
		follow(t, conns[2][0], conns[2][1])
	}
}

// Connections that begin together and may send little do not send in step, until the limit is divided.
func TestRootLimitSpreadsConnectionsThatBegin(t *testing.T) {
	const pairs, rate = 8, 100e3
	r := limitRig(t, limit.Limit{Rate: 2 * pairs * rate})
	var ends []net.Conn
	for range pairs {
		c, s := r.pair(t, "127.0.0.1:0")
		ends = append(ends, c, s)
	}
	read := func(least, most float64) (different int) {
		seen := map[uint32]bool{}
		for i := 0; i < len(ends); i += 2 {
			follow(t, ends[i], ends[i+1])
		}
		for _, c := range ends {
			got := pacingOf(t, c)
			if float64(got) < least*rate || float64(got) > most*rate {
				t.Errorf("pacing rate %d, want %g to %g of %g", got, least, most, rate)
			}
			seen[got] = true
		}
		return len(seen)
	}
	if n := read(16./23-0.001, 2); n < pairs {
		t.Errorf("%d ends have %d pacing rates", len(ends), n)
	}
	r.divide(t, new(limit.Divider))
	if n := read(0.999, 1); n != 1 {
		t.Errorf("%d ends have %d pacing rates after the limit was divided", len(ends), n)
	}
}

// Idle connections have no share of a limit that is divided by need; they get one when they send again.
func TestRootLimitIsDividedByNeed(t *testing.T) {
	r := limitRig(t, limit.Limit{Rate: 8e6})
	idle, idleServer := r.pair(t, "127.0.0.1:0")
	busy, busyServer := r.pair(t, "127.0.0.1:0")
	var d limit.Divider
	r.divide(t, &d)
	follow(t, busy, busyServer)
	res := r.divide(t, &d)
	if _, ok := res.Shares[cookieOf(idle)]; ok || res.Limits[limitKey].Connections != 4 || res.Limits[limitKey].Active != 2 {
		t.Errorf("an idle connection has a share, or not 2 of 4 connections are active: %+v", res)
	}
	follow(t, busy, busyServer)
	if got := pacingOf(t, busy); got < 3_900_000 {
		t.Errorf("the busy connection has the pacing rate %d, want what the others do not use", got)
	}
	before := pacingOf(t, idle)
	follow(t, idle, idleServer)
	if got := pacingOf(t, idle); got == before || got > 8e6 || got < 8e6/4 {
		t.Errorf("a connection that wakes up has the pacing rate %d (before: %d), want a fair share", got, before)
	}
}

// A walk does not take idle connections for ones that begin to send: the busy one keeps its share.
func TestRootLimitWalkLeavesTheShareOfBusyConnections(t *testing.T) {
	r := limitRig(t, limit.Limit{Rate: 8e6})
	busy, busyServer := r.pair(t, "127.0.0.1:0")
	for range 10 {
		r.pair(t, "127.0.0.1:0")
	}
	var d limit.Divider
	r.divide(t, &d)
	follow(t, busy, busyServer)
	r.divide(t, &d)
	follow(t, busy, busyServer)
	before := pacingOf(t, busy)
	r.ns.Do(t, func() { must(t, r.FollowLimits()) })
	follow(t, busy, busyServer)
	if got := pacingOf(t, busy); got < before*9/10 || before < 3_900_000 {
		t.Errorf("the busy connection has the pacing rate %d after a walk, and had %d", got, before)
	}
}

// A lower limit of the application stays. When the limit of the rule ends, connections get back what the
// application had chosen, which may be no limit; idle ones get it at a walk.
func TestRootLimitIsUndone(t *testing.T) {
	r := limitRig(t, limit.Limit{Rate: 8e6, Connection: 3e6})
	chosen := func(rate int) control {
		return func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, rate) }
	}
	l := listen(t, r.ns, "127.0.0.1:0", nil)
	var clients []net.Conn
	for _, c := range []struct {
		choice control
		want   uint32
	}{{nil, 3e6}, {chosen(1e6), 1e6}, {chosen(7e6), 0}} {
		before := len(clients)
		clients = append(clients, dial(t, r.ns, l.Addr().String(), c.choice))
		if got := pacingOf(t, clients[before]); before < 2 && got != c.want {
			t.Errorf("connection %d: pacing rate %d, want %d", before, got, c.want)
		}
	}
	setsockopt(t, clients[0], unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, 500_000) // while it runs
	r.ns.Do(t, func() { must(t, r.FollowLimits()) })
	if got := pacingOf(t, clients[0]); got != 500_000 {
		t.Errorf("the application's pacing rate of 500000 became %d", got)
	}
	r.limitTo(t, nil)
	r.ns.Do(t, func() { must(t, r.FollowLimits()) })
	for i, want := range []uint32{500_000, 1e6, 7e6} {
		if got := pacingOf(t, clients[i]); got != want {
			t.Errorf("connection %d after the limit ended: pacing rate %d, want %d", i, got, want)
		}
	}
}

// A running connection comes under a limit that its rule gets, and loses it when the daemon is gone
// and the lease is over.
func TestRootLimitOfRunningConnections(t *testing.T) {
	r := newRig(t)
	client, server := r.pair(t, "127.0.0.1:0")
	follow(t, client, server)
	if got := pacingOf(t, client); got != noPacing {
		t.Fatalf("pacing rate %d without a limit", got)
	}
	// Before Linux 6.12, walks cannot ask for the callback at which connections notice what has changed: another walk has to.
	walk := func() { r.ns.Do(t, func() { must(t, r.FollowLimits()) }) }
	notice := func() {
		if !testenv.SinceLinux(t, 6, 12) {
			walk()
		}
		follow(t, client, server)
	}
	r.limitTo(t, &limit.Limit{Rate: 4e6})
	walk()
	notice()
	if a, b := pacingOf(t, client), pacingOf(t, server); a != 2e6 || b != 2e6 {
		t.Errorf("pacing rates %d and %d of running connections, want half of the limit each", a, b)
	}
	must(t, r.SetLease(0))
	notice()
	if a, b := pacingOf(t, client), pacingOf(t, server); a != noPacing || b != noPacing {
		t.Errorf("pacing rates %d and %d after the lease, want none", a, b)
	}
}

// A running connection that has no state comes under a limit that its rule gets, as one that has does, unless the rule depends on
// who opened it.
func TestRootLimitOfConnectionsWithoutState(t *testing.T) {
	r := newRig(t)
	c, s := r.pair(t, "127.0.0.1:0")
	known := [2]net.Conn{c, s}
	r.policy(t, arms(theDefault(1<<16)))
	client, server := r.pairWithoutState(t)
	reset, itsPeer := r.pairWithoutState(t)
	want := func(when string, want uint32, pairs ...[2]net.Conn) {
		t.Helper()
		r.ns.Do(t, func() { must(t, r.FollowLimits()) })
		for range 2 { // first they wake up
			for _, p := range pairs {
				follow(t, p[0], p[1])
			}
		}
		for i, p := range pairs {
			if a, b := pacingOf(t, p[0]), pacingOf(t, p[1]); a != want || b != want {
				t.Errorf("%s, pair %d: pacing rates %d and %d, want %d", when, i, a, b, want)
			}
		}
	}
	unknown, another := [2]net.Conn{client, server}, [2]net.Conn{reset, itsPeer}
	exchange(t, reset, itsPeer, 100_000) // before the limit
	limited, limits := class.Class{ID: 1, Limit: limitKey}, map[uint64]limit.Limit{limitKey: {Rate: 4e6}}
	r.rules(t, class.Table{Dims: class.DimDirection, Classes: []class.Class{{ID: 2}, limited}, Outgoing: class.Set{0b11}, Incoming: class.Set{0b10}})
	must(t, r.SetLimits(limits, nil))
	want("after a rule for outgoing ones", noPacing, unknown, another)
	r.rules(t, class.Table{Classes: []class.Class{limited}})
	r.ns.Do(t, func() { must(t, r.FollowLimits()) })
	want("with a limit", 666_666, known, unknown, another)
	var div limit.Divider
	if res := r.divide(t, &div); res.Limits[limitKey].Connections != 6 {
		t.Errorf("%+v", res.Limits)
	}
	must(t, reset.(*net.TCPConn).SetLinger(0))
	for _, p := range [][2]net.Conn{unknown, another} {
		before := r.Limits()[limitKey].Ended
		exchange(t, p[0], p[1], 1000)
		left := r.limited(t)
		closeAll(t, p[0], p[1])
		eventually(t, func() error {
			conns := r.limited(t)
			if sent := r.Limits()[limitKey].Ended - before; len(conns) != len(left)-2 || sent < 1000 || sent > 2000 {
				return fmt.Errorf("%d connections are under the limit, the ended one sent %d bytes", len(conns), sent)
			}
			return nil
		})
	}
	must(t, r.SetLimits(nil, nil))
	want("without a limit", noPacing, known)
	r.limitTo(t, nil)
	before, err := r.Counters()
	must(t, err)
	r.churnAll(t, 1000)
	if now, err := r.Counters(); err != nil || now.NotFollowed < before.NotFollowed+1000 {
		t.Errorf("%d of 2000 ends are not followed after the limit, %v", now.NotFollowed-before.NotFollowed, err)
	}
}

// So does one that a walk has adopted, as it does those that are older than tcpilot.
func TestRootLimitOfAdoptedConnections(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	listen(t, r.ns, "127.0.0.1:0", nil) // without a listener, walks under Linux 6.12 omit a bucket (iter.bpf.c)
	r.policy(t, arms(theDefault(1<<16)))
	client, server := r.pairWithoutState(t)
	must(t, r.SetSettings(Settings{Interval: time.Hour}))
	r.rules(t, class.Table{Classes: []class.Class{{ID: 1}}})
	r.completeWalk(t)
	exchange(t, client, server, 1000)
	r.completeWalk(t)
	r.find(t, "adopted connection", func(s *tcp.Sample) bool { return s.Has(tcp.FlagAdopted) && s.Local == addrPort(client.LocalAddr()) })
	r.limitTo(t, &limit.Limit{Rate: 4e6})
	for range 2 { // before Linux 6.12, connections notice what has changed at the next walk
		r.ns.Do(t, func() { must(t, r.FollowLimits()) })
	}
	follow(t, client, server)
	if a, b := pacingOf(t, client), pacingOf(t, server); a != 2e6 || b != 2e6 {
		t.Errorf("pacing rates %d and %d, want half of the limit each", a, b)
	}
}

// Another daemon takes the limits over.
func TestRootLimitSurvivesARestart(t *testing.T) {
	r := limitRig(t, limit.Limit{Rate: 4e6})
	client, server := r.pair(t, "127.0.0.1:0")
	r.crash(t)
	r.open(t)
	r.limitTo(t, &limit.Limit{Rate: 2e6})
	follow(t, client, server)
	if a, b := pacingOf(t, client), pacingOf(t, server); a != 1e6 || b != 1e6 {
		t.Errorf("pacing rates %d and %d after a restart with another limit, want half of it each", a, b)
	}
}

// Connections under limits are listed in each network namespace as in all at once.
func TestRootLimitedOfEachNetNS(t *testing.T) {
	r, cookie := netnsRig(t)
	r.rules(t, noRules)
	other := testenv.NetNS(t)
	addAddresses(t, other)
	second, err := netns.Cookie(other.Path())
	must(t, err)
	must(t, r.SetLimits(nil, map[uint64]limit.Limit{cookie: {Rate: 8e6}, second: {Rate: 4e6}}))
	must(t, r.limits.close())
	must(t, r.limits.loadFor(r.maps, r.cgroupID, true))
	pairs := [][2]net.Conn{pairV4(t, r.ns), pairV4(t, r.ns), pairV4(t, other)}
	for _, p := range pairs {
		follow(t, p[0], p[1])
	}
	got := map[uint64][]limit.Conn{}
	for _, ns := range []*testenv.NS{r.ns, other} {
		ns.Do(t, func() {
			conns, err := r.Limited()
			must(t, err)
			for _, c := range conns {
				got[c.Rule] = append(got[c.Rule], c)
			}
		})
	}
	if r.ListsAllLimited() || len(got[cookie]) != 4 || len(got[second]) != 2 {
		t.Errorf("listed %+v, want 4 connections of %d and 2 of %d", got, cookie, second)
	}
	must(t, r.limits.close())
	must(t, r.limits.load(r.maps, r.cgroupID))
	if !r.ListsAllLimited() {
		return // this kernel refuses iterators over maps
	}
	all, err := r.Limited()
	must(t, err)
	for _, c := range all {
		if !slices.Contains(got[c.Rule], c) {
			t.Errorf("%+v is listed with all, and not with its namespace", c)
		}
	}
	if len(all) != 6 {
		t.Errorf("%d are listed, want 6", len(all))
	}
}
