package engine

import (
	"math"
	"testing"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Recent shows goodput, retransmits and round-trip time of the latest connections, without
// the price of retransmits that is part of the reward.
func TestRecentIsWithoutThePrice(t *testing.T) {
	w := newWorld(t, nil)
	again := func(s *tcp.Sample) { s.Retrans = s.DataSegsOut / 50 }
	w.run(60, ip("203.0.113.9"), lossy, again)
	p := w.path("203.0.113.0/24")
	near := func(what string, got, want, most float64) {
		t.Helper()
		if math.Abs(got/want-1) > most {
			t.Errorf("%s is %g, want %g", what, got, want)
		}
	}
	r := p.arm(bbr).Recent
	near("goodput", float64(r.Goodput), 160*125e3, 0.2)
	near("share of retransmits", r.Retrans, 0.02, 0.05)
	near("round-trip time", float64(r.SRTT), 12_000, 0.01)
	near("goodput held out", float64(p.HoldOut.Goodput), 20*125e3, 0.5)
	if r.DataSegs == 0 || p.HoldOut.DataSegs == 0 {
		t.Errorf("known from no packets: %+v", r)
	}

	w.run(60, ip("203.0.113.10"), clean)
	if r := w.path("203.0.113.0/24").arm(bbr).Recent; r.Goodput != 0 || r.SRTT != 0 {
		t.Errorf("a prefix with hosts of its own has %+v", r)
	}
	if r := w.path("203.0.113.9/32").arm(bbr).Recent; r.Goodput == 0 {
		t.Errorf("the host has %+v", r)
	}
}
