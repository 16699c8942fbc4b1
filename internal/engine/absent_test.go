package engine

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// A variant of a rule comes and goes with the pods that ask for it. That a guard took its rollout back, and what it was compared with,
// stays, also over reloads and restarts without such pods, until its rule is edited or removed.
func TestVariantsThatComeBack(t *testing.T) {
	base := learnRule("web", func(r *policy.Rule) { r.Rollout, r.Learn.HoldOut = 0.5, 0.1 })
	edited := base
	edited.Set.Set(tcp.InitCwnd, 20)
	pods := policy.Resolver{Pods: func(*pod.Match) []uint64 { return []uint64{9} }}
	with := func(r policy.Rule) []policy.Rule {
		rules, err := policy.WithPodControls([]policy.Rule{r}, []tcp.CC{bbr})
		if err != nil {
			t.Fatal(err)
		}
		return rules
	}
	only := func(rules ...policy.Rule) []policy.Rule { return rules }
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	restart := func(w *world) {
		kept, _ := memories(t, w.e, nil)
		v, _ := revive(t, nil, kept, base)
		v.now = w.now
		*w = *v
	}
	for _, c := range []struct {
		name  string
		away  func(w *world) // while no pod asks for the variant
		back  policy.Rule
		stays bool
	}{
		{"pods are gone for a while", func(*world) {}, base, true},
		{"a reload", func(w *world) { ok(w.e.SetRules(only(base), pods, w.now)) }, base, true},
		{"the rule is edited", func(w *world) { ok(w.e.SetRules(only(edited), pods, w.now)) }, edited, false},
		{"the rule was gone", func(w *world) {
			ok(w.e.SetRules(only(learnRule("other")), pods, w.now))
			ok(w.e.SetRules(only(base), pods, w.now))
		}, base, false},
		{"a restart", restart, base, true},
		{"a restart, and an edit", func(w *world) { restart(w); ok(w.e.SetRules(only(edited), pods, w.now)) }, edited, false},
	} {
		for _, takenBack := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, taken back %v", c.name, takenBack), func(t *testing.T) {
				w := newWorld(t, nil)
				ok(w.e.SetRules(with(base), pods, w.now))
				if takenBack {
					ok(rollBack(w, "web@bbr", "harm"))
				} else {
					for range 150 {
						w.run(1, guardedHost, allAlike, func(s *tcp.Sample) { s.NetNS = 9 })
					}
					if w.compared("web@bbr", false) != 1 {
						t.Fatal("not compared")
					}
				}
				if c.name != "a restart" && c.name != "a restart, and an edit" {
					ok(w.e.SetVariants(only(base), pods, w.now))
				}
				c.away(w)
				w.sink.log = nil
				ok(w.e.SetVariants(with(c.back), pods, w.now))
				if !takenBack {
					if got := w.compared("web@bbr", false) == 1; got != c.stays {
						t.Errorf("compared: %v", got)
					}
					return
				}
				for _, r := range w.e.View(time.Unix(0, w.now)).Rules {
					if got := r.Rollout.By == ByGuard && r.Rollout.Share == 0; r.Name == "web@bbr" && got != c.stays || r.Name == "web" && got {
						t.Errorf("%s: %+v", r.Name, r.Rollout)
					}
				}
				ok(w.e.SetVariants(only(c.back), pods, w.now))
				if c.stays && len(w.e.absent) != 1 {
					t.Errorf("known of absent variants: %+v", w.e.absent)
				}
			})
		}
	}
}

// Variants that do not come back do not use memory without a bound.
func TestAbsentVariantsAreBounded(t *testing.T) {
	a := absent{}
	for i := range 3 * mostAbsent {
		a.keep(StoredPath{PathID: PathID{Rule: fmt.Sprintf("web@%d", i)}, RolledBack: &StoredRollBack{}, LastUsed: int64(i)})
	}
	if _, latest := a[fmt.Sprintf("web@%d", 3*mostAbsent-1)]; len(a) != mostAbsent || !latest {
		t.Errorf("%d are kept, the latest: %v", len(a), latest)
	}
	a.keep(StoredPath{PathID: PathID{Rule: "web"}, RolledBack: &StoredRollBack{}})
	a.keep(StoredPath{PathID: PathID{Rule: fmt.Sprintf("web@%d", 3*mostAbsent-1)}})
	if len(a) != mostAbsent-1 {
		t.Errorf("%d are kept", len(a))
	}
}

// What is known of a rule as a whole is stored once more when the rule is removed: it ages from then on. If the rule comes back before the
// next save, there is only the record of the rule in force.
func TestRecordOfARemovedRule(t *testing.T) {
	rule, other := policy.Rule{Name: "fixed", CC: bbr, Rollout: 0.5}, learnRule("other")
	w := newWorld(t, nil, rule, other)
	if kept, _ := memories(t, w.e, nil); len(kept) != 0 {
		t.Fatalf("%+v", kept)
	}
	if err := rollBack(w, "fixed", "harm"); err != nil {
		t.Fatal(err)
	}
	w.now += 3600 * second
	load := func(rules ...policy.Rule) {
		t.Helper()
		if err := w.e.SetRules(rules, policy.Resolver{}, w.now); err != nil {
			t.Fatal(err)
		}
	}
	load(other)
	memories(t, w.e, errors.New("disk full"))
	kept, _ := memories(t, w.e, nil)
	if len(kept) != 1 || kept[0].Rule != "fixed" || kept[0].RolledBack == nil || kept[0].LastUsed != w.now {
		t.Errorf("%+v", kept)
	}
	if kept, _ := memories(t, w.e, nil); len(kept) != 0 {
		t.Errorf("stored again: %+v", kept)
	}
	load(rule, other)
	w.run(300, guardedHost, lossy)
	load(other)
	load(rule, other)
	if err := rollBack(w, "fixed", "more harm"); err != nil {
		t.Fatal(err)
	}
	kept, _ = memories(t, w.e, nil)
	if len(kept) != 1 || kept[0].Rule != "fixed" || kept[0].RolledBack == nil || kept[0].RolledBack.Why != "more harm" {
		t.Errorf("%d records: %+v", len(kept), kept)
	}
}
