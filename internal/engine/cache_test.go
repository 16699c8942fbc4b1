package engine

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// ofNetwork are the n-th prefixes of the length of a path within one network.
var ofNetwork = map[string]func(n int) netip.Addr{
	"/24s of a /8": func(n int) netip.Addr {
		return netip.AddrFrom4([4]byte{11, byte(n >> 8), byte(n), 1})
	},
	"/48s of a /29": func(n int) netip.Addr {
		a := ip("2a00:1000::1").As16()
		binary.BigEndian.PutUint32(a[2:], binary.BigEndian.Uint32(a[2:])+uint32(n%(1<<19)))
		return netip.AddrFrom16(a)
	},
	"addresses of a /16": func(n int) netip.Addr {
		return netip.AddrFrom4([4]byte{11, 1, byte(n >> 8), byte(n)})
	},
}

// elsewhere is a host of the n-th of many networks.
func elsewhere(n int) netip.Addr {
	if n%2 == 0 {
		return netip.AddrFrom4([4]byte{byte(12 + n/2%200), byte(n / 400), 7, 1})
	}
	a := ip("2600::1").As16()
	a[1], a[2] = byte(n), byte(n>>8)
	return netip.AddrFrom16(a)
}

// meet makes each scored connections with each of some hosts, in as many slices of time.
func (w *world) meet(each int, hosts ...netip.Addr) {
	for range each {
		for _, host := range hosts {
			s := w.connectAny()
			s.Remote, s.At = netip.AddrPortFrom(host, 443), w.now
			w.e.Observe(s)
			w.now += 2 * second / int64(len(hosts))
		}
	}
}

// hosts returns those from the n-th on.
func hosts(of func(int) netip.Addr, from, to int) (list []netip.Addr) {
	for i := from; i < to; i++ {
		list = append(list, of(i))
	}
	return list
}

// knows reports whether the path of a host has a node of which more than one connection is known.
func (w *world) knows(host netip.Addr) bool {
	n := w.e.nodes[keyOf(w.e.rules.states[0].class, 0, host, w.e.opt.Bits(host))]
	return n != nil && n.samples > 1
}

// One network does not evict what is known of others, and does not keep new paths from being
// learned, however many prefixes and connections it has.
func TestOneNetworkDoesNotFillTheCache(t *testing.T) {
	const limit, known, connections = 1000, 200, 100_000
	for name, attacker := range ofNetwork {
		// With few connections to each, the attacker displaces what is on probation; with more, what is known.
		for each, batch := range map[int]int{1: 1000, 3: 250, 10: 250} {
			w := newWorld(t, func(o *Options) { o.Limit, o.Sink = limit, Discard{} })
			w.meet(5, hosts(elsewhere, 0, known)...)
			rounds := connections / each / batch
			for i := range rounds {
				w.meet(each, hosts(attacker, i*batch, (i+1)*batch)...)
				w.meet(1, hosts(elsewhere, known+max(0, i-4), known+i+1)...) // others, each now and four times later
			}
			others, kept := known+rounds-4, 0
			for i := range others {
				if w.knows(elsewhere(i)) {
					kept++
				}
			}
			if kept < others {
				t.Errorf("%s, %d connections each: %d of %d other paths are known", name, each, kept, others)
			}
			if n := w.e.cache.byUse.len; n > limit {
				t.Errorf("%d nodes", n)
			}
		}
	}
}

// What nobody used for a day goes before what is known of a large network.
func TestUnusedPathsGoBeforeThoseOfALargeNetwork(t *testing.T) {
	const limit = 1000
	for pause, kept := range map[int64]int{0: limit / 4, 25 * 3600 * second: 900} {
		w := newWorld(t, func(o *Options) { o.Limit, o.Sink = limit, Discard{} })
		w.meet(5, hosts(elsewhere, 0, limit)...)
		w.now += pause
		for i := range 900 / 20 {
			w.meet(5, hosts(ofNetwork["/24s of a /8"], 20*i, 20*i+20)...)
		}
		n := 0
		for i := range 900 {
			if w.knows(ofNetwork["/24s of a /8"](i)) {
				n++
			}
		}
		if n < kept*9/10 || n > kept {
			t.Errorf("after a pause of %d s, %d paths of the large network are known, want about %d", pause/second, n, kept)
		}
	}
}

// Of a network with more than its part, those nodes are kept that are used.
func TestPathsInUseOfALargeNetworkStay(t *testing.T) {
	const limit, used = 1000, 50
	w := newWorld(t, func(o *Options) { o.Limit, o.Sink = limit, Discard{} })
	w.meet(5, hosts(elsewhere, 0, limit)...)
	large := ofNetwork["/24s of a /8"]
	for i := range 100 {
		w.meet(5, hosts(large, used+50*i, used+50*i+50)...)
		w.meet(1, hosts(large, 0, used)...)
	}
	for i := range used {
		if n := w.e.nodes[keyOf(w.e.rules.states[0].class, 0, large(i), 24)]; n == nil || n.samples < 90 {
			t.Errorf("%v is in use all the time, and was evicted", large(i))
		}
	}
}

// Networks are counted for each node, and forgotten with the last one.
func TestCacheCountsNetworks(t *testing.T) {
	c := newCache(8 * leastNetwork)
	var nodes []*node
	for i := range 3 * leastNetwork {
		n := &node{key: keyOf(1, 0, ofNetwork["addresses of a /16"](i), 32), children: list{which: listChildren}}
		nodes = append(nodes, n)
		c.add(n)
	}
	// At most 1/8 of the room, and 1/4.
	if len(c.networks) != 2 || len(c.crowded) != 2 || len(c.crowdedProbation) != 2 {
		t.Errorf("%d networks, %d and %d crowded", len(c.networks), len(c.crowded), len(c.crowdedProbation))
	}
	for _, n := range nodes {
		c.admit(n)
	}
	if len(c.crowded) != 2 || len(c.crowdedProbation) != 0 || c.probation.len != 0 {
		t.Errorf("admitted: %d and %d crowded, %d on probation", len(c.crowded), len(c.crowdedProbation), c.probation.len)
	}
	for i, n := range nodes {
		c.remove(n)
		if want := len(nodes)-i-1 > leastNetwork; want != (len(c.crowded) > 0) {
			t.Errorf("%d left: %d crowded", len(nodes)-i-1, len(c.crowded))
		}
	}
	if len(c.networks) != 0 || c.byUse.len != 0 {
		t.Errorf("%d networks, %d nodes", len(c.networks), c.byUse.len)
	}
}
