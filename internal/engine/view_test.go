package engine

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/policy"
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

// explain is what a connection to an address would get.
func (w *world) explain(to string) Explanation {
	return w.e.Explain(&class.Conn{Remote: ip(to), Outgoing: true}, time.Unix(0, w.now))
}

// whyKernel is why connections to an address have the kernel's value of a field; empty if they have another.
func (w *world) whyKernel(to string, f tcp.Field) string {
	for _, k := range w.explain(to).Entry.Kernel {
		if k.Field == f.String() {
			return k.Why
		}
	}
	return ""
}

// An explanation has each field that the rule adapts: with its value, or with the reason why it is the kernel's.
func TestExplainFieldsLeftToTheKernel(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", func(r *policy.Rule) {
		r.Adapt = []tcp.Field{tcp.SynRTO, tcp.InitCwnd, tcp.RTOMin}
		r.Set.Set(tcp.RTOMin, 30_000) // nothing is adapted then
	}))
	w.gap = second / 2
	g := goods{cubic: 100, bbr: 100, reno: 100}
	empty := func(s *tcp.Sample) { s.SRTT, s.RTTVar = s.MinRTT+200, 100 }
	full := func(s *tcp.Sample) { s.SRTT, s.RTTVar = 2*s.MinRTT, 100 }
	const to = "198.51.100.7"
	if e := w.explain(to); !e.IsRoot || len(e.Entry.Kernel) != 2 || w.whyKernel(to, tcp.InitCwnd) != "no connection has shown a round-trip time of the path yet" {
		t.Errorf("a path of which nothing is known: %+v", e.Entry)
	}
	w.run(20, ip(to), g, empty)
	if e := w.explain(to); len(e.Entry.Set) != 3 || len(e.Entry.Kernel) != 0 {
		t.Errorf("all is adapted: %+v", e.Entry)
	}
	if p := w.path("198.51.100.0/24"); p.Kernel != nil {
		t.Errorf("a snapshot of all paths has the reasons: %+v", p.Kernel)
	}
	w.run(30, ip(to), g, full)
	if why := w.whyKernel(to, tcp.InitCwnd); !strings.HasPrefix(why, "connections fill the path: srtt ") || w.whyKernel(to, tcp.SynRTO) != "" {
		t.Errorf("a queue: %q", why)
	}
	w.run(60, ip(to), g, empty)
	w.now += 70 * second // the row is older than its window is valid
	if why := w.whyKernel(to, tcp.InitCwnd); !strings.Contains(why, "packets that the path held is 1m1") {
		t.Errorf("an old window: %q", why)
	}
	for _, s := range w.explain(to).Entry.Set {
		if s.Field == "init_cwnd" {
			t.Errorf("an old window is in use: %+v", s)
		}
	}
}

// A path to which nothing can be adapted has the policy of its rule, and reasons of its own.
func TestExplainAPathWithoutAPolicy(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", adaptRule))
	small := func(s *tcp.Sample) {
		s.Flags |= tcp.FlagAppLimited
		s.BytesAcked, s.DataSegsOut, s.Delivered, s.Busy, s.DeliveryRate, s.Ssthresh = 2000, 2, 2, time.Millisecond, 0, 0
	}
	w.run(3, ip("198.51.100.7"), goods{cubic: 100, bbr: 100, reno: 100}, small)
	e := w.explain("198.51.100.7")
	if why := w.whyKernel("198.51.100.7", tcp.SynRTO); !e.IsRoot || why != "3 of the 10 samples that are needed have shown a round-trip time of the path" {
		t.Errorf("root %v, %q", e.IsRoot, why)
	}
	for _, p := range w.e.ViewAll(time.Unix(0, w.now)).Paths {
		if len(p.Kernel) != 2 || p.Kernel[0].Why != w.whyKernel("198.51.100.7", tcp.SynRTO) {
			t.Errorf("a view with all has %+v", p.Kernel)
		}
	}
}

// In mode observe, the reasons are those of mode tune, or the mode.
func TestExplainInModeObserve(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", func(r *policy.Rule) { r.Adapt = []tcp.Field{tcp.SynRTO, tcp.InitRwnd} }))
	w.e.SetObserve(true, w.now)
	w.run(30, ip("198.51.100.7"), goods{cubic: 100, bbr: 100, reno: 100})
	if why := w.whyKernel("198.51.100.7", tcp.SynRTO); why != "nothing is set in mode observe; otherwise it would be 125 ms" {
		t.Errorf("a field that would have a value: %q", why)
	}
	if why := w.whyKernel("198.51.100.7", tcp.InitRwnd); why != "no connection of the path has received enough to show a rate" {
		t.Errorf("one that would not: %q", why)
	}
}
