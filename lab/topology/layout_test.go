package topology

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func build(t *testing.T, g Graph) *Layout {
	t.Helper()
	l, err := Build(newNet(t), g)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestRootEveryPairReachesEachOther(t *testing.T) {
	for name, g := range map[string]Graph{
		"dumbbell": Dumbbell(2, 2),
		"incast":   Incast(3),
		"chain":    Chain(4),
		"wire":     Chain(1),
		"gateway":  Gateway(2),
		"ring":     ring,
	} {
		t.Run(name, func(t *testing.T) {
			l := build(t, g)
			ends := slices.Concat(l.Senders, l.Receivers)
			for _, from := range ends {
				for _, to := range ends {
					if from == to {
						continue
					}
					for _, ipv6 := range []bool{false, true} {
						saw := echoOnce(t, to, from, netip.AddrPortFrom(l.Addr(to, ipv6), 7))
						if want := l.Addr(from, ipv6); saw != want {
							t.Errorf("%s saw %s, want %s's %s", to.Name, saw, from.Name, want)
						}
					}
				}
			}
		})
	}
}

func TestRootReceiversArePathsOfTheirOwn(t *testing.T) {
	l := build(t, Gateway(2))
	one, two := l.Receivers[0], l.Receivers[1]
	for ipv6, bits := range map[bool]int{false: 24, true: 48} {
		a, _ := l.Addr(one, ipv6).Prefix(bits)
		b, _ := l.Addr(two, ipv6).Prefix(bits)
		if a == b {
			t.Errorf("both receivers are in %s", a)
		}
	}
	hops, err := l.Path(two, l.Senders[0])
	if err != nil {
		t.Fatal(err)
	}
	var way []string
	for _, h := range hops {
		from, to := h.ends()
		way = append(way, fmt.Sprintf("%s:%s-%s", h.Name, from.Host.Name, to.Host.Name))
	}
	if got := strings.Join(way, " "); got != "path2:receiver2-gateway access:gateway-sender1" {
		t.Errorf("path %s", got)
	}
	if _, err := l.Host("nobody"); err == nil {
		t.Error("found a host that does not exist")
	}
}

// TestRootRoutesFollowThePath counts what crosses the wires of a ring.
func TestRootRoutesFollowThePath(t *testing.T) {
	l := build(t, ring)
	sender, receiver := l.Senders[0], l.Receivers[0]
	received := func(e *End) uint64 {
		link, err := e.Host.link.LinkByIndex(e.Index)
		if err != nil {
			t.Fatal(err)
		}
		return link.Attrs().Statistics.RxPackets
	}
	before := map[*End]uint64{}
	for _, w := range l.Wires {
		before[w.From], before[w.To] = received(w.From), received(w.To)
	}
	const rounds = 25
	for range rounds {
		for _, ipv6 := range []bool{false, true} {
			echoOnce(t, receiver, sender, netip.AddrPortFrom(l.Addr(receiver, ipv6), 7))
		}
	}
	hops, err := l.Path(sender, receiver)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range l.Wires {
		on := slices.ContainsFunc(hops, func(h Hop) bool { return h.Wire == w })
		for _, end := range []*End{w.From, w.To} {
			// A connection has at least three packets each way; a device that is not on
			// the path still has IPv6's own packets.
			if n := received(end) - before[end]; on != (n >= 6*rounds) {
				t.Errorf("%d packets arrived at %s of %s; on the path: %t", n, end.Device, end.Host.Name, on)
			}
		}
	}
}

func TestRootSpreadHostStandsForManyPaths(t *testing.T) {
	for name, g := range map[string]Graph{"dumbbell": Dumbbell(1, 2), "wire": Chain(1)} {
		t.Run(name, func(t *testing.T) {
			l := build(t, g)
			if err := l.Spread(l.Receivers[0]); err != nil {
				t.Fatal(err)
			}
			for _, i := range []int{0, 255, 256, MaxSpread - 1} {
				for _, ipv6 := range []bool{false, true} {
					echoOnce(t, l.Receivers[0], l.Senders[0], netip.AddrPortFrom(SpreadAddr(i, ipv6), 7))
				}
			}
		})
	}
}

func TestSpreadAddressesAreOfPathsOfTheirOwn(t *testing.T) {
	for ipv6, all := range map[bool]netip.Prefix{false: spread4, true: spread6} {
		bits := map[bool]int{false: 24, true: 48}[ipv6]
		seen := map[netip.Prefix]bool{}
		for i := range MaxSpread {
			a := SpreadAddr(i, ipv6)
			p, err := a.Prefix(bits)
			if err != nil || !all.Contains(a) || seen[p] {
				t.Fatalf("address %d is %s: outside of %s, or on the path of an earlier address", i, a, all)
			}
			seen[p] = true
		}
	}
}

func TestRootBuildTwiceIsRefused(t *testing.T) {
	n := newNet(t)
	if _, err := Build(n, Chain(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := Build(n, Chain(1)); err == nil || !strings.Contains(err.Error(), "sender1") {
		t.Errorf("built over another: %v", err)
	}
}

// A host with the addresses of Spread would otherwise take packets to pods and wires for its own.
func TestSpreadAddressesAreOfNoPodOrWire(t *testing.T) {
	for _, spread := range []netip.Prefix{spread4, spread6} {
		for _, other := range []netip.Prefix{podNet4, podNet6, v4(0, 0), v4(maxEdges-1, 0), v6(0, 0), v6(maxEdges-1, 0)} {
			if spread.Overlaps(other) {
				t.Errorf("%s overlaps %s", spread, other)
			}
		}
	}
}

// No link leads to a pod, so that routers could not have routes to its addresses.
func TestSpreadRefusesPods(t *testing.T) {
	h := &Host{Name: "sender1"}
	l := &Layout{Pods: []*Pod{{Host: h}}}
	if err := l.Spread(h); err == nil || !strings.Contains(err.Error(), "pod") {
		t.Errorf("Spread() of a pod: %v", err)
	}
}
