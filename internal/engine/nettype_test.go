package engine

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// rtt makes the round trips of a connection take a time, in milliseconds.
func rtt(ms uint32) func(*tcp.Sample) {
	return func(s *tcp.Sample) { s.Connect, s.MinRTT, s.SRTT = 0, 1000*ms, 1050*ms }
}

func (w *world) networkType(to netip.Addr) *NetworkType {
	w.t.Helper()
	e := w.e.Explain(&class.Conn{Remote: to, NetNS: 7, Outgoing: true}, time.Unix(0, w.now))
	if e.Network == nil {
		w.t.Fatalf("%s has no type of network", to)
	}
	return e.Network
}

func (w *world) wantType(to, want, from string) {
	w.t.Helper()
	if n := w.networkType(ip(to)); n.Type != want || n.AssumedFrom != from || n.Why == "" {
		w.t.Errorf("%s: %+v, want %s assumed from %q", to, n, want, from)
	}
}

// A path shows its type and why. One that was never seen takes the type of the others of its
// rule, if all of them have the same.
func TestNetworkTypeIsAssumedFromSiblings(t *testing.T) {
	w := newWorld(t, nil)
	w.wantType("198.51.100.1", "unknown", "")
	w.run(20, ip("198.51.100.1"), clean, rtt(600))
	p := w.path("198.51.100.0/24")
	if p.NetworkType != "satellite" || !strings.Contains(p.NetworkWhy.String(), "600ms (at least 477ms)") {
		t.Errorf("%+v", p.PathMetrics)
	}
	w.wantType("198.51.100.1", "satellite", "")
	w.wantType("203.0.113.1", "unknown", "") // one path is no majority

	w.run(20, ip("192.0.2.1"), clean, rtt(610))
	w.wantType("203.0.113.1", "satellite", "::/0")
	w.run(1, ip("203.0.113.1"), clean, rtt(20)) // too little to know better
	w.wantType("203.0.113.1", "satellite", "::/0")
	w.run(30, ip("203.0.113.1"), clean, rtt(20)) // no type fits, which is known
	w.wantType("203.0.113.1", "unknown", "")
	w.wantType("203.0.112.1", "satellite", "::/0") // a path without a type does not object

	w.run(20, ip("10.0.0.1"), clean, rtt(0), func(s *tcp.Sample) { s.MinRTT, s.SRTT = 100, 110 })
	w.wantType("10.0.0.1", "datacentre", "")
	w.wantType("203.0.112.1", "unknown", "")
}

// The hosts of a prefix agree or not among themselves, whatever other prefixes have.
func TestNetworkTypeOfHosts(t *testing.T) {
	w := newWorld(t, nil)
	for _, host := range []string{"203.0.113.9", "203.0.113.10"} {
		w.run(20, ip(host), clean, rtt(600))
	}
	w.wantType("203.0.113.9", "satellite", "")
	w.wantType("203.0.113.11", "satellite", "203.0.113.0/24")
	w.run(20, ip("203.0.113.12"), clean, func(s *tcp.Sample) { s.Connect, s.MinRTT, s.SRTT = 0, 100, 110 })
	w.wantType("203.0.113.11", "unknown", "")
}

// A rule that learns nothing has no paths, and so no types.
func TestNetworkTypeNeedsLearning(t *testing.T) {
	r := learnRule("fixed")
	r.Learn, r.CC = nil, cubic
	w := newWorld(t, nil, r)
	if e := w.e.Explain(&class.Conn{Remote: ip("192.0.2.1"), Outgoing: true}, time.Unix(0, w.now)); e.Network != nil {
		t.Errorf("%+v", e.Network)
	}
}

// What is known of the type is stored with the path.
func TestNetworkTypeIsStored(t *testing.T) {
	w := newWorld(t, nil)
	w.run(20, ip("198.51.100.1"), clean, rtt(600))
	saved, _, _ := w.e.Unsaved(100)
	for _, m := range saved {
		if m.Prefix == netip.MustParsePrefix("198.51.100.0/24") {
			if got := m.Metrics.Network.Type.String(); got != "satellite" {
				t.Errorf("stored as %s", got)
			}
			return
		}
	}
	t.Errorf("the path is not among %d", len(saved))
}
