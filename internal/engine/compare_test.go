package engine

import (
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// slowIfTreated makes connections slower that are not held out.
func slowIfTreated(s *tcp.Sample) {
	if s.PolicyID != 0 && !s.Has(tcp.FlagHoldOut) {
		s.BytesAcked /= 4
	}
}

// initialWindow is a rule that learns, and sets the initial window.
func initialWindow(packets uint64) policy.Rule {
	return learnRule("all", func(r *policy.Rule) {
		r.Learn.HoldOut = 0.1
		r.Set.Set(tcp.InitCwnd, packets)
	})
}

// untilLeft makes connections that are slow if they are treated, until their path is left to the
// default.
func untilLeft(t *testing.T, w *world) {
	t.Helper()
	for range 60 {
		if w.run(10, guardedHost, allAlike, slowIfTreated); w.path("203.0.113.0/24").LeftToDefault != nil {
			return
		}
	}
	t.Fatal("not left to the default")
}

// A comparison with one default says nothing about another one: not after the administrator
// changed it, and not if that happened while tcpilot did not run.
func TestComparisonEndsWithItsDefault(t *testing.T) {
	g := goods{cubic: 20, bbr: 100, reno: 20}
	rule := learnRule("all", func(r *policy.Rule) { r.Learn.HoldOut = 0.1 })
	w := newWorld(t, nil, rule)
	w.e.SetOffered(offer(reno, bbr, cubic), cubic)
	w.run(1500, guardedHost, g)
	const prefix = "203.0.113.0/24"
	if p := w.path(prefix); !p.HoldOut.Gain.Better() {
		t.Fatalf("five times as fast: %+v", p.HoldOut.Gain)
	}
	kept, _ := memories(t, w.e, nil)
	for def, known := range map[tcp.CC]bool{cubic: true, bbr: false} {
		v := newWorld(t, nil, learnRule("placeholder"))
		v.e = New(options(v.sink))
		v.e.SetOffered(offer(reno, bbr, cubic), def)
		if err := v.e.Start([]policy.Rule{rule}, policy.Resolver{}, func(keep func(StoredPath) bool) error {
			for _, m := range kept {
				keep(m)
			}
			return nil
		}, w.now); err != nil {
			t.Fatal(err)
		}
		v.now = w.now
		if got := v.path(prefix); got.HoldOut.Gain.Known() != known || got.Samples == 0 {
			t.Errorf("after a restart with the default %s: %+v", def, got)
		}
	}

	w.e.SetOffered(offer(reno, bbr, cubic), bbr)
	stillOpen := w.connect(guardedHost, g) // a connection of the hold-out from before
	stillOpen.Flags, stillOpen.Arm, stillOpen.CC = stillOpen.Flags|tcp.FlagHoldOut, tcp.CC{}, cubic
	for range 5 {
		// The simulated kernel gives cubic to the hold-out: make it bbr.
		w.run(200, guardedHost, g, func(s *tcp.Sample) {
			if s.Has(tcp.FlagHoldOut) && s.CC == cubic {
				s.CC = bbr
				s.BytesAcked *= 5
			}
		})
		for range 3 {
			stillOpen.Kind, stillOpen.At = tcp.KindInterval, w.now
			w.e.Observe(stillOpen)
		}
		if p := w.path(prefix); p.HoldOut.Gain.Better() || p.LeftToDefault != nil {
			t.Fatalf("all connections are alike now: %+v, %+v", p.HoldOut.Gain, p.LeftToDefault)
		}
	}
}

// A path that was left to the default because of a rule's value is tuned again when the value
// changes, and what it did before does not count.
func TestComparisonEndsWithWhatTheRuleSets(t *testing.T) {
	const prefix = "203.0.113.0/24"
	for name, c := range map[string]struct {
		edit func(*policy.Rule)
		left bool
	}{
		"another value":      {func(r *policy.Rule) { r.Set.Set(tcp.InitCwnd, 10) }, false},
		"other arms":         {func(r *policy.Rule) { r.Learn.Arms = []tcp.CC{reno} }, false},
		"a value is adapted": {func(r *policy.Rule) { r.Adapt = []tcp.Field{tcp.RTOMin} }, false},
		"other ports":        {func(r *policy.Rule) { r.Match.RemotePort = []policy.PortRange{{First: 1, Last: 65535}} }, true},
		"nothing":            {func(*policy.Rule) {}, true},
	} {
		for _, restart := range []bool{false, true} {
			w := newWorld(t, nil, initialWindow(1))
			w.run(1, ip("198.51.100.1"), allAlike)
			old := w.connect(guardedHost, allAlike)
			untilLeft(t, w)
			edited := initialWindow(1)
			c.edit(&edited)
			if restart {
				kept, _ := memories(t, w.e, nil)
				now := w.now
				w.e = New(options(w.sink))
				w.e.SetOffered(offer(reno, bbr, cubic), tcp.CC{})
				if err := w.e.Start([]policy.Rule{edited}, policy.Resolver{}, func(keep func(StoredPath) bool) error {
					for _, m := range kept {
						keep(m)
					}
					return nil
				}, now); err != nil {
					t.Fatal(err)
				}
			} else if err := w.e.SetRules([]policy.Rule{edited}, policy.Resolver{}, w.now); err != nil {
				t.Fatal(err)
			}
			p := w.path(prefix)
			if left := p.LeftToDefault != nil; left != c.left || p.Samples == 0 || p.HoldOut.Gain.Treated > 0 && !c.left {
				t.Errorf("%s, restart %t: left to the default: %t, %d samples, %+v", name, restart, left, p.Samples, p.HoldOut.Gain)
			}
			if c.left || restart {
				continue
			}
			for range 100 { // connections that began under the old rule
				old.At = w.now
				w.e.Observe(old)
			}
			if g := w.path(prefix).HoldOut.Gain; g.Treated+g.HeldOut > 0 {
				t.Errorf("%s: the old rule's connections are compared: %+v", name, g)
			}
		}
	}
}

// What failed under an earlier version of a rule does not count against the present one.
func TestFailuresEndWithWhatTheRuleSets(t *testing.T) {
	w := newWorld(t, nil, initialWindow(1))
	w.run(30, guardedHost, allAlike, func(s *tcp.Sample) {
		if s.PolicyID != 0 && !s.Has(tcp.FlagHoldOut) {
			s.End = tcp.EndReset
		}
	})
	path := w.e.nodes[keyOf(w.e.rules.states[0].root.key.class, 0, guardedHost, 24)]
	if path.failures == nil || w.e.rules.states[0].root.failures == nil {
		t.Fatal("not compared")
	}
	if err := w.e.SetRules([]policy.Rule{initialWindow(10)}, policy.Resolver{}, w.now); err != nil {
		t.Fatal(err)
	}
	if path.failures != nil || w.e.rules.states[0].root.failures != nil {
		t.Error("still compared with what failed before")
	}
}

// A rule whose network namespaces learn for themselves is compared as a whole as well: its rollout
// is taken back, and it is left to the default.
func TestGuardOfARuleThatLearnsByNamespace(t *testing.T) {
	for _, rollout := range []float64{0, 0.25} {
		w := newWorld(t, nil, learnRule("all", func(r *policy.Rule) {
			r.Rollout, r.Learn.HoldOut, r.Learn.OwnScope = rollout, 0.1, true
			r.Set.Set(tcp.InitCwnd, 1)
		}))
		w.e.SetOffered(offer(reno, bbr, cubic), cubic)
		var r RuleState
		for i := range 3000 {
			ns := uint64(7 + i%5)
			w.run(1, nth(i%300), allAlike, func(s *tcp.Sample) { s.NetNS = ns }, slowIfTreated)
			if r = w.e.Summary(time.Unix(0, w.now)).Rules[0]; r.Rollout.By != "" || r.LeftToDefault != nil {
				break
			}
		}
		if rollout != 0 && (r.Rollout.Share != 0 || r.Rollout.By != ByGuard) || rollout == 0 && r.LeftToDefault == nil {
			t.Errorf("rollout %g: %+v, %+v, %+v", rollout, r.Rollout, r.LeftToDefault, r.Gain)
		}
		w.e.Settle(w.now)
		ex := w.e.Explain(&class.Conn{Remote: ip("192.0.2.77"), NetNS: 7, Outgoing: true}, time.Unix(0, w.now))
		if r.LeftToDefault != nil && (ex.Entry == nil || ex.Entry.LeftToDefault == nil || *ex.Entry.LeftToDefault != *r.LeftToDefault) {
			t.Errorf("an unknown address: %+v", ex.Entry)
		}
		if got := w.run(20, nth(3), allAlike); count(got, cubic) != 20 {
			t.Errorf("rollout %g: then %v", rollout, got)
		}
	}
}

// The comparison of a rule whose network namespaces learn for themselves is saved, although there is
// no belief of it.
func TestComparisonOfARuleThatLearnsByNamespaceIsSaved(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", func(r *policy.Rule) { r.Learn.HoldOut, r.Learn.OwnScope = 0.1, true }))
	w.run(20, guardedHost, allAlike)
	memories(t, w.e, nil)
	root := w.e.rules.states[0].root
	before := *root.compared
	live := w.connect(guardedHost, allAlike, func(s *tcp.Sample) { s.Kind = tcp.KindInterval })
	w.e.Observe(live)
	kept, _ := memories(t, w.e, nil)
	for _, m := range kept {
		if m.PathID == root.place() && *root.compared != before && *m.Compared == *root.compared {
			return
		}
	}
	t.Errorf("before %+v, now %+v, saved %+v", before, *root.compared, kept)
}
