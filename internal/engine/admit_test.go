package engine

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// nth is the first host of the n-th /24 of 10.0.0.0/8 and up.
func nth(n int) netip.Addr {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], 10<<24+uint32(n)<<8+1)
	return netip.AddrFrom4(a)
}

// Many connections of one network, from one host or from all of its hosts, do not decide
// with which arm every other network starts. The network gets the default and another arm in
// turn, so that each outcome would be evidence about both.
func TestOneNetworkDoesNotDecideForAll(t *testing.T) {
	for _, hosts := range []int{1, 250} {
		w := newWorld(t, nil)
		w.e.SetOffered(offer(cubic, bbr, reno), cubic)
		w.e.Settle(w.now)
		for i := range 40 { // others, of which each connects a few times
			w.run(4, nth(i), goods{cubic: 100, bbr: 60, reno: 90})
		}
		root, g := w.e.rules.states[0].root, goods{cubic: 10, bbr: 200, reno: 10}
		for i := range 3000 {
			s := w.connect(netip.AddrFrom4([4]byte{203, 0, 113, byte(1 + i%hosts)}), g)
			s.Flags &^= tcp.FlagHoldOut | tcp.FlagHoldOutSlice
			s.Arm = []tcp.CC{cubic, bbr}[i/hosts%2]
			w.transfer(s, g)
			w.now += w.gap
			s.At = w.now
			w.e.Observe(s)
			w.e.Tick(w.now)
		}
		row, ok := w.sink.lookup(w.sink.table.Classes[0].ID, 0, ip("198.51.100.1"))
		if !ok || !slices.ContainsFunc(root.belief.Arms, func(a learn.ArmBelief) bool { return a.CC == bbr && a.Mean > 0 }) {
			t.Fatalf("%d hosts: no policy for the unknown, or the network told the others nothing: %+v", hosts, root.belief.Arms)
		}
		for _, a := range row.Policy.Arms[:row.Policy.NumArms] {
			if a.CC == bbr && a.Weight > policy.One/4 {
				t.Errorf("%d hosts: an unknown path begins with bbr in %.2f of its slices", hosts, float64(a.Weight)/policy.One)
			}
		}
	}
}

// A client that connects once from each of many networks does not evict paths that are in use.
func TestSingleConnectionsDoNotEvictPathsInUse(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limit = 400 })
	for range 5 {
		for i := range 200 {
			w.run(1, nth(i), clean)
		}
	}
	for i := range 3000 {
		w.run(1, nth(1000+i), clean)
	}
	kept := 0
	for i := range 200 {
		if w.e.nodes[keyOf(w.e.rules.states[0].root.key.class, 0, nth(i), 24)] != nil {
			kept++
		}
	}
	if kept != 200 {
		t.Errorf("%d of 200 paths in use were kept", kept)
	}
	if n := w.e.View(time.Unix(0, w.now)).Totals.Paths; n > 400 {
		t.Errorf("%d paths, the limit is 400", n)
	}
}

// A connection that is not scored does not create a path.
func TestOnlyScoredConnectionsCreateAPath(t *testing.T) {
	w := newWorld(t, nil)
	s := w.connect(ip("203.0.113.9"), clean)
	s.BytesAcked, s.Arm = 100, cubic
	w.e.Observe(s)
	if n := len(w.e.nodes); n != 1 { // the rule's own
		t.Errorf("%d nodes", n)
	}
}

// A path that is evicted before it was saved does not stay in memory.
func TestMemoryIsBoundedUnderChurn(t *testing.T) {
	const limit = 1000
	w := newWorld(t, func(o *Options) { o.Limit = limit })
	run := func(from, to int) {
		for i := from; i < to; i++ {
			s := w.connect(nth(i), clean)
			w.now += 1e6
			s.At = w.now
			w.e.Observe(s)
			if i%100 == 0 {
				w.e.Tick(w.now)
			}
		}
	}
	heap := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	run(0, 2*limit)
	w.sink.log = nil
	before := heap()
	run(2*limit, 40*limit)
	w.sink.log = nil
	if grown := heap() - before; grown > 2<<20 {
		t.Errorf("%d KB more after 38 times as many paths as are kept", grown>>10)
	}
	if n := len(w.e.saves.changed); n > 3*limit {
		t.Errorf("%d paths wait to be saved", n)
	}
	runtime.KeepAlive(w)
}
