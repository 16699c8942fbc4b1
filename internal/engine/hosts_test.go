package engine

import (
	"encoding/binary"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// nthHost is the n-th address of one /64.
func nthHost(n int) netip.Addr {
	a := ip("2001:db8::").As16()
	binary.BigEndian.PutUint32(a[12:], uint32(n)+1)
	return netip.AddrFrom16(a)
}

const hostsPath = "2001:db8::/48" // that of nthHost

// hosts counts the nodes within hostsPath.
func (w *world) hosts() (n int) {
	for k := range w.e.nodes {
		if k.bits == hostBits && k.hi == keyOf(0, 0, nthHost(0), 128).hi {
			n++
		}
	}
	return n
}

func (w *world) hasHost(n int) bool {
	return w.e.nodes[keyOf(w.e.rules.states[0].class, 0, nthHost(n), hostBits)] != nil
}

// The hosts of one prefix do not evict other paths, however many connections each has.
func TestHostsOfOnePathDoNotEvictOthers(t *testing.T) {
	for _, each := range []int{1, 3, 10} {
		w := newWorld(t, func(o *Options) { o.Limit = 400 })
		for range 5 {
			for i := range 200 {
				w.run(1, nth(i), clean)
			}
		}
		for i := range 600 {
			w.run(each, nthHost(i), clean)
		}
		kept := 0
		for i := range 200 {
			if w.e.nodes[keyOf(w.e.rules.states[0].class, 0, nth(i), 24)] != nil {
				kept++
			}
		}
		if kept != 200 {
			t.Errorf("%d connections of each of 600 hosts: %d of 200 other paths were kept", each, kept)
		}
		if n := w.hosts(); n < 2 || n > 400/hostPart+leastHosts {
			t.Errorf("%d connections of each of 600 hosts: %d of them have a node", each, n)
		}
		if got := w.path(hostsPath).Samples; got != uint64(600*each) {
			t.Errorf("the path counts %d samples of %d", got, 600*each)
		}
	}
}

// A host of which something is known keeps its node while it is in use; one that is not used
// for a time, or of which little is known, makes room.
func TestHostsInUseStay(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limit = 400 })
	w.gap = 10 * second
	for i := range leastHosts {
		w.run(admittedAt+2, nthHost(i), clean)
	}
	w.run(5, nthHost(1000), clean)
	if w.hasHost(1000) {
		t.Fatal("a node beyond the bound, although all hosts are in use")
	}
	for range 3 {
		w.now += idleHost / 2
		for i := 1; i < leastHosts; i++ { // all but the first
			w.run(1, nthHost(i), clean)
		}
	}
	w.run(1, nthHost(1001), clean)
	w.run(1, nthHost(1002), clean) // all others are in use
	if w.hasHost(0) || !w.hasHost(1001) || w.hasHost(1002) {
		t.Errorf("after a pause of the first: first %v, new %v, next %v", w.hasHost(0), w.hasHost(1001), w.hasHost(1002))
	}
	for i := 1; i < leastHosts; i++ {
		w.run(1, nthHost(i), clean)
		if !w.hasHost(i) {
			t.Errorf("host %d in use lost its node", i)
		}
	}
	w.run(1, nthHost(1003), clean) // the one with a single connection is the least recently used
	if w.hasHost(1001) || !w.hasHost(1003) {
		t.Error("a host with one connection does not make room")
	}
}

// Hosts without a node profit from what the path learned, and add to it. What it knows stays a
// difference of arms on the same host.
func TestHostsBeyondTheBoundLearnTogether(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limit = 400 })
	for i := range leastHosts {
		w.run(admittedAt+2, nthHost(i), goods{cubic: 80, bbr: 80, reno: 80})
	}
	n := w.e.nodes[keyOf(w.e.rules.states[0].class, 0, nthHost(0), 48)]
	before := n.belief.Count
	var got []tcp.CC
	for i := range 2000 {
		w.run(1, nthHost(i%leastHosts), goods{cubic: 80, bbr: 80, reno: 80}) // stay in use
		got = append(got, w.run(1, nthHost(1000+i), lossy)...)
	}
	if w.hosts() != leastHosts || !n.belief.Pooled {
		t.Fatalf("%d hosts, pooled %v", w.hosts(), n.belief.Pooled)
	}
	if n.belief.Count < before+1000 {
		t.Errorf("the path has %d observations more", n.belief.Count-before)
	}
	if c := count(got[len(got)-200:], bbr); c < 120 {
		t.Errorf("bbr, by far the best for hosts without a node, for %d of the last 200", c)
	}
	for _, a := range n.belief.Arms { // the reward of one connection is about 17
		if math.Abs(a.Mean) > 5 {
			t.Errorf("%s: %.1f is no difference", a.CC, a.Mean)
		}
	}
}

// A store with more hosts of a path than there may be, as of a version without this bound,
// keeps those that were used last.
func TestHostsOfTheStoreAreBounded(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limit = 1 << 14 })
	for i := range 200 {
		w.run(3, nthHost(i), clean)
	}
	kept, _ := memories(t, w.e, nil)
	v, _ := revive(t, func(o *Options) { o.Limit = 400 }, kept, learnRule("all"))
	if n := v.hosts(); n != leastHosts || !v.hasHost(199) || v.hasHost(0) {
		t.Errorf("%d hosts; the last %v, the first %v", n, v.hasHost(199), v.hasHost(0))
	}
	_, forgotten, _ := v.e.Unsaved(1000)
	if len(forgotten) != 200-leastHosts {
		t.Errorf("%d are deleted from the store", len(forgotten))
	}
	if total := v.e.View(time.Unix(0, v.now)).Totals; total.Evicted != 200-leastHosts {
		t.Errorf("%d evicted", total.Evicted)
	}
}
