package engine

import (
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// stored is a store for a world.
type storedPaths map[PathID]StoredPath

func (s storedPaths) save(t *testing.T, e *Engine) {
	t.Helper()
	changed, forgotten := memories(t, e, nil)
	for _, p := range forgotten {
		delete(s, p)
	}
	for _, m := range changed {
		s[m.PathID] = m
	}
}

func (s storedPaths) load(keep func(StoredPath) bool) error {
	for _, m := range s {
		keep(m)
	}
	return nil
}

// newStoredWorld is newWorld with a store.
func newStoredWorld(t *testing.T, rules ...policy.Rule) (*world, storedPaths) {
	t.Helper()
	w, s := newWorld(t, nil), storedPaths{}
	w.e = New(options(w.sink))
	w.e.SetOffered(offer(reno, bbr, cubic), tcp.CC{})
	if err := w.e.Start(rules, policy.Resolver{}, s.load, w.now); err != nil {
		t.Fatal(err)
	}
	return w, s
}

// A rule that is in force again has what was stored of it, also what was not stored yet when it left, and also if it leaves and
// comes back again.
func TestARuleThatComesBack(t *testing.T) {
	fixed := policy.Rule{Name: "fixed", CC: bbr, Rollout: 0.5, Match: policy.Match{RemotePort: []policy.PortRange{{First: 1, Last: 1}}}}
	rules := []policy.Rule{fixed, learnRule("all")}
	w, store := newStoredWorld(t, rules...)
	set := func(rules ...policy.Rule) {
		t.Helper()
		if err := w.e.SetRules(rules, policy.Resolver{}, w.now); err != nil {
			t.Fatal(err)
		}
	}
	host := ip("198.51.100.7")
	w.run(100, host, goods{cubic: 10, bbr: 100, reno: 10})
	store.save(t, w.e)
	w.e.rollBack(w.e.rules.named("fixed"), "slow", w.now)
	for range 2 {
		set(learnRule("typo"))
		set(rules...)
		p := w.path("198.51.100.0/24")
		if p == nil || p.arm(bbr).Weight < 0.9 {
			t.Fatalf("%+v: want that bbr is in use, as before", p)
		}
		if _, paths := w.e.rules.named("all"), w.e.cache.byUse.len; paths != 1 {
			t.Errorf("%d paths", paths)
		}
		if o, changed := w.e.rollouts.of(&fixed); !changed || o.by != ByGuard {
			t.Errorf("the rollout that a guard took back is %v", o)
		}
		store.save(t, w.e)
	}
	if row, ok := w.sink.lookup(w.e.rules.named("all").class, 0, host); !ok || row.Key == path.Root(row.Key.Class, 0) {
		t.Errorf("the path's row is %v", row)
	}
}

// What is on its way to the store shares nothing with a variant that comes back meanwhile.
func TestAVariantThatComesBackSharesNothing(t *testing.T) {
	base := learnRule("web", func(r *policy.Rule) { r.Rollout, r.Learn.HoldOut = 0.5, 0.1 })
	pods := policy.Resolver{Pods: func(*pod.Match) []uint64 { return []uint64{9} }}
	with := func() []policy.Rule {
		rules, err := policy.WithPodControls([]policy.Rule{base}, []tcp.CC{bbr})
		if err != nil {
			t.Fatal(err)
		}
		return rules
	}
	w := newWorld(t, nil)
	set := func(rules []policy.Rule) {
		t.Helper()
		if err := w.e.SetVariants(rules, pods, w.now); err != nil {
			t.Fatal(err)
		}
	}
	set(with())
	w.run(150, guardedHost, allAlike, func(s *tcp.Sample) { s.NetNS = 9 })
	set([]policy.Rule{base})
	set(with())
	changed, _, _ := w.e.Unsaved(1000)
	root, found := w.e.rules.named("web@bbr").root, false
	for _, m := range changed {
		if m.Rule == "web@bbr" && m.Prefix.Bits() == 0 && m.Compared != nil {
			found = true
			if m.Compared == root.compared {
				t.Error("the comparison is shared")
			}
		}
	}
	if !found || root.compared == nil {
		t.Errorf("found %t, compared %v", found, root.compared)
	}
}

// What was known of a variant when its last pod left is not restored over what it has learned since it came back.
func TestAVariantThatCameBackKeepsWhatItLearns(t *testing.T) {
	base := learnRule("web", func(r *policy.Rule) { r.Rollout, r.Learn.HoldOut = 0.5, 0.1 })
	pods := policy.Resolver{Pods: func(*pod.Match) []uint64 { return []uint64{9} }}
	with, err := policy.WithPodControls([]policy.Rule{base}, []tcp.CC{bbr})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, nil)
	set := func(set func([]policy.Rule, policy.Resolver, int64) error, rules []policy.Rule) {
		t.Helper()
		if err := set(rules, pods, w.now); err != nil {
			t.Fatal(err)
		}
	}
	run := func() { w.run(150, guardedHost, allAlike, func(s *tcp.Sample) { s.NetNS = 9 }) }
	set(w.e.SetVariants, with)
	run()
	set(w.e.SetVariants, []policy.Rule{base})
	set(w.e.SetVariants, with)
	run()
	before := *w.e.rules.named("web@bbr").root.compared
	set(w.e.SetRules, with)
	if now := w.e.rules.named("web@bbr").root.compared; now == nil || *now != before {
		t.Errorf("compared %+v, before a reload %+v", now, before)
	}
}

// Values that were adapted to a path are stored also if no connection has an outcome.
func TestPathThatOnlyReceivesIsStored(t *testing.T) {
	w, store := newStoredWorld(t, learnRule("all", func(r *policy.Rule) { r.Adapt = []tcp.Field{tcp.SynRTO, tcp.InitRwnd} }))
	w.run(40, ip("198.51.100.7"), allAlike, func(s *tcp.Sample) {
		s.BytesAcked, s.DataSegsOut, s.SegsOut, s.Busy = 500, 2, 200, 20*time.Millisecond
		s.BytesReceived, s.DataSegsIn = 20<<20, 14000
	})
	store.save(t, w.e)
	for id, m := range store {
		if id.Prefix.Bits() == 24 && m.Metrics.SRTT > 0 {
			return
		}
	}
	t.Errorf("the store has %d records, none with what is known of the path", len(store))
}

// So is a value that is barred there.
func TestBarIsStored(t *testing.T) {
	w, store := newStoredWorld(t, learnRule("all", func(r *policy.Rule) { r.Adapt = []tcp.Field{tcp.RTOMin} }))
	small := func(min time.Duration, spurious uint32) func(*tcp.Sample) {
		return func(s *tcp.Sample) {
			s.BytesAcked, s.DataSegsOut, s.SegsOut, s.Busy = 15*200, 15, 30, 100*time.Millisecond
			s.RTOMin, s.DSACKs = min, spurious
		}
	}
	host := ip("198.51.100.7")
	w.run(250, host, allAlike, small(200*time.Millisecond, 0))
	store.save(t, w.e)
	w.run(150, host, allAlike, small(100*time.Millisecond, 1))
	store.save(t, w.e)
	n := w.e.nodes[keyOf(w.e.rules.states[0].class, 0, host, 24)]
	if until := store[n.place()].Metrics.RTOMin.Until; until <= w.now {
		t.Errorf("stored as barred until %d, it is %d", until, w.now)
	}
}

// After the clock was set back by a month, arms that are not in use are tried as often as before.
func TestArmsAreTriedAfterAClockWasSetBack(t *testing.T) {
	tried := func(back int64) float64 {
		w := newWorld(t, nil)
		w.e.SetOffered(offer(reno, bbr, cubic), cubic)
		w.gap = 10 * second
		w.run(100, ip("198.51.100.7"), goods{cubic: 100, bbr: 30, reno: 90})
		w.now -= back
		w.run(800, ip("198.51.100.7"), goods{cubic: 100, bbr: 30, reno: 90})
		return w.path("198.51.100.0/24").arm(reno).Weight
	}
	before, after := tried(0), tried(30*24*3600*second)
	t.Log(before, after)
	if after < before/2 {
		t.Errorf("reno has %.5f of the connections, and %.5f without that", after, before)
	}
}
