package engine

import (
	"bytes"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func withFields(r *policy.Rule) {
	r.Set.Set(tcp.InitCwnd, 40)
	r.Set.Set(tcp.SynRTO, 100)
}

// touched reports whether some row makes the kernel set something.
func (f *fakeSink) touched() (rows []path.Entry) {
	for _, en := range f.rows {
		_, answers := en.Policy.Params.Get(tcp.SynRTO)
		if en.Policy.HoldOut < policy.One || answers {
			rows = append(rows, en)
		}
	}
	return rows
}

// In mode observe no row makes the kernel set anything, but the path is learned, and
// decisions are shown. Tuning then begins with what was learned.
func TestObserve(t *testing.T) {
	w := newWorld(t, nil, learnRule("all", withFields))
	if len(w.sink.touched()) == 0 {
		t.Fatal("nothing is tuned before")
	}
	w.e.SetObserve(true, w.now)
	if rows := w.sink.touched(); len(rows) != 0 {
		t.Errorf("after the call: %+v", rows)
	}
	to := ip("203.0.113.9")
	starts := w.run(60, to, lossy)
	if rows := w.sink.touched(); len(rows) != 0 || count(starts, cubic) != 60 {
		t.Errorf("%d of 60 connections had the default; rows %+v", count(starts, cubic), rows)
	}
	p := w.path("203.0.113.0/24")
	if p.arm(cubic).Count < 50 || p.HoldOut.Share != 1 || p.HoldOut.Gain.Ratio != 0 {
		t.Errorf("believed: %+v", p)
	}
	if sum := p.arm(cubic).Weight + p.arm(bbr).Weight + p.arm(reno).Weight; math.Abs(sum-1) > 0.01 {
		t.Errorf("what would be decided: %+v", p.Arms)
	}
	set, adapted := w.e.Fields()
	if s := w.e.Summary(time.Unix(0, w.now)); s.Mode != "observe" || set|adapted != 0 {
		t.Errorf("mode %s, fields %b, adapted %b", s.Mode, set, adapted)
	}
	// A new rule is not in force at any time.
	w.sink.onWrite = func() {
		if rows := w.sink.touched(); len(rows) != 0 {
			t.Errorf("while rules change: %+v", rows)
		}
	}
	if err := w.e.SetRules([]policy.Rule{learnRule("all", withFields), {Name: "other", CC: bbr}}, policy.Resolver{}, w.now); err != nil {
		t.Fatal(err)
	}
	w.run(3, to, lossy)
	w.sink.onWrite = nil

	w.e.SetObserve(false, w.now)
	if starts := w.run(60, to, lossy); count(starts[20:], bbr) < 30 {
		t.Errorf("tuning again: %v", starts)
	}
}

// The hold-out in a rule's rows includes all connections outside its rollout. So a rule that
// only sets values can be compared as well.
func TestRollout(t *testing.T) {
	fixed := policy.Rule{Name: "fixed", CC: bbr, Rollout: 0.25}
	w := newWorld(t, nil, fixed)
	en, ok := w.sink.lookup(w.sink.table.Classes[0].ID, 0, ip("203.0.113.9"))
	if !ok || en.Policy.HoldSlices != policy.One*3/4 || en.Policy.HoldOut != 0 {
		t.Fatalf("%d of 65536 slices held out, and %d of 65536 connections; want 3 of 4, and none", en.Policy.HoldSlices, en.Policy.HoldOut)
	}
	starts := w.run(2000, ip("203.0.113.9"), lossy)
	if n := count(starts, bbr); n < 430 || n > 570 {
		t.Errorf("%d of 2000 have what the rule gives, want about 500", n)
	}
	r := w.e.Summary(time.Unix(0, w.now)).Rules[0]
	if g := r.Gain; g.Treated < 40 || g.HeldOut < 100 || !bool(g.BySlice) || g.Low < 5 || g.High > 12 || !(g.Low < g.Ratio && g.Ratio < g.High) {
		t.Errorf("bbr has 8 times cubic's goodput here: %+v", g)
	}
	if r.Rollout.Share != 0.25 || r.Rollout.Configured != 0.25 || r.Rollout.By != "" {
		t.Errorf("%+v", r.Rollout)
	}
}

// Connections of a rule that only sets values share the path with those that are held out, so
// they are compared in slices of time. One by one, an arm that takes from the others looks
// better, although all connections would be slower with it.
func TestRolloutOfASetRuleIsComparedBySlices(t *testing.T) {
	for i := range int64(5) {
		w := newWorld(t, nil, policy.Rule{Name: "fixed", CC: bbr, Rollout: 0.5})
		w.now += i * 977 * second
		w.e.SetOffered(offer(cubic, bbr), cubic)
		c := &overlapping{world: w, to: ip("203.0.113.9"), n: map[tcp.CC]int{}}
		for range 12 {
			c.run(20, 20*time.Minute)
			if g := w.e.Summary(time.Unix(0, w.now)).Rules[0].Gain; g.Better() || !bool(g.BySlice) {
				t.Fatalf("all would be slower by an eighth: %+v", g)
			}
		}
		g := w.e.Summary(time.Unix(0, w.now)).Rules[0].Gain
		if g.Treated < 50 || g.HeldOut < 50 || g.Ratio > 1.2 {
			t.Errorf("all would be slower by an eighth: %+v, %v", g, c.n)
		}
	}
}

// The guard sets the rollout of a rule that does harm to 0, also of a rule that only sets
// values. It does not change that of other rules.
func TestGuardTakesRolloutBack(t *testing.T) {
	for name, c := range map[string]struct {
		goods goods
		back  bool
	}{"harm": {goods{cubic: 160, reno: 60}, true}, "no harm": {goods{cubic: 60, reno: 62}, false}} {
		var log bytes.Buffer
		w := newWorld(t, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) }, policy.Rule{Name: "fixed", CC: reno, Rollout: 0.25})
		starts := w.run(1000, ip("203.0.113.9"), c.goods)
		r := w.e.Summary(time.Unix(0, w.now)).Rules[0].Rollout
		if back := r.Share == 0 && r.By == ByGuard && strings.Contains(r.Why, "times as fast as with the default"); back != c.back {
			t.Errorf("%s: %+v", name, r)
		}
		if n := count(starts[500:], reno); (n == 0) != c.back {
			t.Errorf("%s: %d of the last 500 connections have what the rule gives", name, n)
		}
		if n := strings.Count(log.String(), `msg="rollout set to 0 by a guard" rule=fixed from=0.25 to=0`); n != 1 && c.back || n != 0 && !c.back {
			t.Errorf("%s: logged %d times:\n%s", name, n, log.String())
		}
	}
}

// rollBack is what a guard does, at once.
func rollBack(w *world, rule, why string) error {
	return w.e.rewrite(w.now, func() error {
		rs, err := w.e.rolledOut(rule)
		if err == nil {
			w.e.rollBack(rs, why, w.now)
		}
		return err
	})
}

// A rollout that does harm is set to 0 and reported, and stays at 0 until an operator changes
// it.
func TestRollBack(t *testing.T) {
	var log bytes.Buffer
	w := newWorld(t, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) }, learnRule("all", withFields), policy.Rule{Name: "left", Leave: true})
	rollout := func() *Rollout { return w.e.Summary(time.Unix(0, w.now)).Rules[0].Rollout }
	for range 2 { // a guard may report it twice
		if err := rollBack(w, "all", "p95 is 1.4 times the default's"); err != nil {
			t.Fatal(err)
		}
	}
	if rows := w.sink.touched(); len(rows) != 0 {
		t.Errorf("taken back: %+v", rows)
	}
	starts := w.run(50, ip("203.0.113.9"), lossy)
	if count(starts, cubic) != 50 {
		t.Errorf("%v", starts)
	}
	if r := rollout(); r.Share != 0 || r.Configured != 1 || r.By != ByGuard || r.Why != "p95 is 1.4 times the default's" || r.Since.IsZero() {
		t.Errorf("%+v", r)
	}
	if n := strings.Count(log.String(), `msg="rollout set to 0 by a guard" rule=all from=1 to=0 why="p95 is 1.4 times the default's"`); n != 1 {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
	if n := w.e.Summary(time.Unix(0, w.now)).Totals.RolledBack; n != 1 {
		t.Errorf("counted %d times", n)
	}

	if err := w.e.SetRollout("all", 0.1, w.now); err != nil {
		t.Fatal(err)
	}
	en, _ := w.sink.lookup(w.sink.table.Classes[0].ID, 0, ip("203.0.113.9"))
	tuned := (1 - float64(en.Policy.HoldOut)/policy.One) * (1 - float64(en.Policy.HoldSlices)/policy.One)
	if tuned < 0.089 || tuned > 0.098 || rollout().By != ByOperator { // a tenth, of which the hold-out takes 2 to 10 %
		t.Errorf("%.3f tuned; %+v", tuned, rollout())
	}
	if err := rollBack(w, "all", "again"); err != nil || rollout().Share != 0 {
		t.Errorf("%v, %+v", err, rollout())
	}
	edited := learnRule("all", withFields, func(r *policy.Rule) { r.Learn.HoldOut = 0.03 })
	if err := w.e.SetRules([]policy.Rule{edited}, policy.Resolver{}, w.now); err != nil {
		t.Fatal(err)
	}
	if r := rollout(); r.Share != 1 || r.By != "" || len(w.sink.touched()) == 0 {
		t.Errorf("after an edit of the rule: %+v", r)
	}
	for rule, share := range map[string]float64{"none": 0.5, "left": 0.5, "all": 1.5} {
		if w.e.SetRollout(rule, share, w.now) == nil {
			t.Errorf("rollout %g of rule %s was taken", share, rule)
		}
	}
	if rollBack(w, "none", "") == nil {
		t.Error("a rule that is not there was taken back")
	}
}

// In mode observe, the connections held out are not compared with those that were treated
// before.
func TestNothingIsComparedInModeObserve(t *testing.T) {
	w := newWorld(t, nil, policy.Rule{Name: "fixed", CC: bbr, Rollout: 0.5})
	w.run(200, guardedHost, allAlike)
	gain := func() learn.Gain { return w.e.Summary(time.Unix(0, w.now)).Rules[0].Gain }
	before := gain()
	if before.Treated == 0 || before.HeldOut == 0 {
		t.Fatalf("%+v", before)
	}
	treated := w.connect(guardedHost, allAlike)
	w.e.SetObserve(true, w.now)
	w.run(200, guardedHost, allAlike, func(s *tcp.Sample) { s.Flags |= tcp.FlagHoldOut | tcp.FlagHoldOutSlice })
	treated.At, treated.Flags = w.now, treated.Flags&^(tcp.FlagHoldOut|tcp.FlagHoldOutSlice)
	w.e.Observe(treated)
	if after := gain(); after != before {
		t.Errorf("before %+v\nafter  %+v", before, after)
	}
}

// A rollout that a guard took back stays so after a reload or a restart, as long as the rule is
// the same: an unrelated edit of the file does not start it again. An edit of the rule does, and
// so does an operator.
func TestRolloutTakenBackStaysSo(t *testing.T) {
	other := policy.Rule{Name: "other", CC: bbr}
	for name, rule := range map[string]policy.Rule{
		"set":   {Name: "web", CC: reno, Rollout: 0.25},
		"learn": learnRule("web", func(r *policy.Rule) { r.Rollout = 0.25 }),
	} {
		w := newWorld(t, nil, rule)
		rollout := func() *Rollout { return w.e.Summary(time.Unix(0, w.now)).Rules[0].Rollout }
		load := func(rules ...policy.Rule) {
			t.Helper()
			if err := w.e.SetRules(rules, policy.Resolver{}, w.now); err != nil {
				t.Fatal(err)
			}
		}
		var kept []StoredPath
		restart := func(rules ...policy.Rule) {
			t.Helper()
			changed, _ := memories(t, w.e, nil)
			kept = append(kept, changed...) // the later record of a path comes later
			w.e = New(options(w.sink))
			w.e.SetOffered(offer(reno, bbr, cubic), tcp.CC{})
			if err := w.e.Start(rules, policy.Resolver{}, func(keep func(StoredPath) bool) error {
				last := map[PathID]StoredPath{}
				for _, m := range kept {
					last[m.PathID] = m
				}
				for _, m := range last {
					keep(m)
				}
				return nil
			}, w.now); err != nil {
				t.Fatal(err)
			}
		}
		takenBack := func(when string, want bool) {
			t.Helper()
			r := rollout()
			if got := r.Share == 0 && r.By == ByGuard && r.Why == "harm" && !r.Since.IsZero(); got != want {
				t.Errorf("%s, %s: %+v", name, when, r)
			}
		}
		again := func() {
			t.Helper()
			if err := rollBack(w, "web", "harm"); err != nil {
				t.Fatal(err)
			}
		}
		again()
		load(rule, other)
		takenBack("after a reload", true)
		restart(rule)
		takenBack("after a restart", true)
		restart(rule, other)
		takenBack("after a second restart", true)
		if got := w.run(10, guardedHost, allAlike); count(got, cubic) != 10 {
			t.Errorf("%s: %v", name, got)
		}

		edited := rule
		edited.Set.Set(tcp.InitCwnd, 20)
		load(edited)
		takenBack("after an edit", false)
		again()
		restart(rule)
		takenBack("after an edit and a restart", false)

		again()
		if err := w.e.SetRollout("web", 0.1, w.now); err != nil || rollout().Share != 0.1 {
			t.Errorf("%s: %v, %+v", name, err, rollout())
		}
		restart(rule)
		takenBack("after an operator started it and a restart", false)
		again()
		load(other)
		load(rule)
		takenBack("after the rule was gone", true)
	}
}

// Variants of rules come and go with pods: neither changes a rollout that the operator has set, and a
// variant is rolled out as its rule.
func TestVariantsKeepRollouts(t *testing.T) {
	w := newWorld(t, nil, learnRule("all"))
	if err := w.e.SetRollout("all", 0.25, w.now); err != nil {
		t.Fatal(err)
	}
	base := []policy.Rule{learnRule("all")}
	for _, ccs := range [][]tcp.CC{{bbr}, {bbr, reno}, nil} {
		rules, err := policy.WithPodControls(base, ccs)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.e.SetVariants(rules, policy.Resolver{}, w.now); err != nil {
			t.Fatal(err)
		}
		states := w.e.View(time.Unix(0, w.now)).Rules
		if len(states) != 1+len(ccs) {
			t.Fatalf("%d rules", len(states))
		}
		for _, r := range states {
			if r.Rollout.Share != 0.25 || r.Rollout.By != ByOperator {
				t.Errorf("%s: %+v", r.Name, r.Rollout)
			}
		}
	}
	if err := w.e.SetRules(base, policy.Resolver{}, w.now); err != nil {
		t.Fatal(err)
	}
	if r := w.e.View(time.Unix(0, w.now)).Rules[0].Rollout; r.Share != 1 || r.By != "" {
		t.Errorf("after a reload: %+v", r)
	}
}

// Rules follow pods, and are written only if the matching ones changed.
func TestRecompileFollowsPods(t *testing.T) {
	web := learnRule("web", func(r *policy.Rule) { r.Match.Pod = &pod.Match{Name: []string{"web"}} })
	w := newWorld(t, nil, web)
	var set *pod.Set
	r := policy.Resolver{Pods: func(m *pod.Match) []uint64 { return set.Cookies(m) }}
	for i, c := range []struct {
		pods   []pod.Pod
		writes int
		rule   string // of a connection of namespace 7
	}{
		{nil, 0, ""},
		{[]pod.Pod{{Name: "db", Cookie: 7}}, 0, ""},
		{[]pod.Pod{{Name: "web", Cookie: 7}}, 1, "web"},
		{[]pod.Pod{{Name: "web", Cookie: 7}, {Name: "db", Cookie: 8}}, 0, "web"},
		{[]pod.Pod{{Name: "web", Cookie: 8}}, 1, ""},
	} {
		set = pod.NewSet(c.pods)
		calls := w.sink.calls
		if err := w.e.Recompile(r); err != nil {
			t.Fatal(err)
		}
		if got := w.sink.calls - calls; got != c.writes {
			t.Errorf("%d: %d writes, want %d", i, got, c.writes)
		}
		name := ""
		if e := w.e.Explain(&class.Conn{Remote: ip("192.0.2.1"), NetNS: 7}, time.Unix(0, w.now)); e.Rule != nil {
			name = e.Rule.Name
		}
		if name != c.rule {
			t.Errorf("%d: rule %q, want %q", i, name, c.rule)
		}
	}
}

// compared returns the nodes of a rule as a whole, or of a path, that have comparisons.
func (w *world) compared(rule string, paths bool) (n int) {
	w.t.Helper()
	count := func(m *node) {
		if m.rule.rule.Name == rule && m.isRoot() != paths && m.comparisons != (comparisons{}) {
			n++
		}
	}
	w.e.cache.byUse.each(count)
	for _, rs := range w.e.rules.states {
		if rs.root != nil {
			count(rs.root)
		}
	}
	return n
}

// What is known of a rule as a whole, with its variants and in each network namespace, is dropped
// when the rule applies to another share of connections, or to other ones. What is known of its
// paths stays. A restart does not restore what was dropped.
func TestComparisonsOfARuleEndTogether(t *testing.T) {
	base := learnRule("web", func(r *policy.Rule) { r.Rollout, r.Learn.HoldOut, r.Learn.OwnScope = 0.5, 0.1, true })
	edited := base
	edited.Learn = &policy.Learn{Objective: base.Learn.Objective, HoldOut: 0.2, OwnScope: true}
	watched := base
	watched.Watch.Share = 0.5
	variants := func(r policy.Rule) []policy.Rule {
		rules, err := policy.WithPodControls([]policy.Rule{r}, []tcp.CC{bbr})
		if err != nil {
			t.Fatal(err)
		}
		return append(rules[:2:2], policy.Rule{Name: "other", CC: bbr, Rollout: 0.5})
	}
	pods := policy.Resolver{Pods: func(*pod.Match) []uint64 { return []uint64{9} }}
	load := func(r policy.Rule) func(w *world) error {
		return func(w *world) error { return w.e.SetRules(variants(r), pods, w.now) }
	}
	for name, c := range map[string]struct {
		change func(w *world) error
		ends   bool
		after  policy.Rule
	}{
		"another hold-out":         {load(edited), true, edited},
		"another rollout":          {func(w *world) error { return w.e.SetRollout("web", 0.3, w.now) }, true, base},
		"taken back":               {func(w *world) error { return rollBack(w, "web", "harm") }, true, base},
		"other events are counted": {load(watched), false, watched},
		"nothing":                  {load(base), false, base},
		"another rule, taken back": {func(w *world) error { return rollBack(w, "other", "harm") }, false, base},
	} {
		w := newWorld(t, nil)
		if err := w.e.SetRules(variants(base), pods, w.now); err != nil {
			t.Fatal(err)
		}
		for i := range 150 {
			for _, ns := range []uint64{7, 8, 9} { // 9 is the pod's
				w.run(1, guardedHost, allAlike, func(s *tcp.Sample) { s.NetNS = ns }, func(s *tcp.Sample) {
					if i%10 == 9 {
						s.End = tcp.EndReset
					}
				})
			}
		}
		// The rule has its own root, and those of two namespaces.
		if a, b, paths := w.compared("web", false), w.compared("web@bbr", false), w.compared("web", true); a != 3 || b != 1 || paths != 2 {
			t.Fatalf("%d roots, %d of the variant and %d paths are compared", a, b, paths)
		}
		kept, _ := memories(t, w.e, nil)
		if err := c.change(w); err != nil {
			t.Fatal(err)
		}
		later, _ := memories(t, w.e, nil)
		v := newWorld(t, nil)
		v.e = New(options(v.sink))
		v.e.SetOffered(offer(reno, bbr, cubic), tcp.CC{})
		if err := v.e.Start(variants(c.after), pods, func(keep func(StoredPath) bool) error {
			last := map[PathID]StoredPath{}
			for _, m := range append(kept, later...) {
				last[m.PathID] = m
			}
			for _, m := range last {
				keep(m)
			}
			return nil
		}, w.now); err != nil {
			t.Fatal(err)
		}
		roots, variant := 3, 1
		if c.ends {
			roots, variant = 0, 0
		}
		for when, e := range map[string]*world{"at once": w, "after a restart": v} {
			if a, b, paths := e.compared("web", false), e.compared("web@bbr", false), e.compared("web", true); a != roots || b != variant || paths != 2 {
				t.Errorf("%s, %s: %d roots, %d of the variant and %d paths are compared, want %d, %d and 2", name, when, a, b, paths, roots, variant)
			}
		}
	}
}

// A comparison with a share that an operator set is not continued with the configured share after
// a restart.
func TestComparisonEndsWithAnOperatorsRollout(t *testing.T) {
	rule := policy.Rule{Name: "fixed", CC: bbr, Rollout: 0.5}
	w := newWorld(t, nil, rule)
	if err := w.e.SetRollout("fixed", 0.25, w.now); err != nil {
		t.Fatal(err)
	}
	w.run(300, guardedHost, lossy)
	if w.compared("fixed", false) != 1 {
		t.Fatal("not compared")
	}
	kept, _ := memories(t, w.e, nil)
	if v, _ := revive(t, nil, kept, rule); v.compared("fixed", false) != 0 {
		t.Error("the comparison with the operator's share goes on with the configured one")
	}
}

// A rule that only sets values is compared over restarts: a rollout to a small share can take hours
// to show anything.
func TestComparisonOfASetRuleOutlivesTheProcess(t *testing.T) {
	rule := policy.Rule{Name: "fixed", CC: bbr, Rollout: 0.5}
	w := newWorld(t, nil, rule)
	w.run(300, guardedHost, lossy)
	gain := func(w *world) learn.Gain { return w.e.Summary(time.Unix(0, w.now)).Rules[0].Gain }
	kept, _ := memories(t, w.e, nil)
	if v, _ := revive(t, nil, kept, rule); !gain(w).Known() || gain(v) != gain(w) {
		t.Errorf("before %+v\nafter  %+v", gain(w), gain(v))
	}
}

func TestRolloutsOfRules(t *testing.T) {
	web := &ruleState{rule: &policy.Rule{Name: "web", Rollout: 0.5}, fingerprint: "1"}
	pod := &policy.Rule{Name: "web@bbr", Of: "web", Rollout: 0.5}
	r := rollouts{changed: map[string]override{}}
	expect := func(when string, share, ofPod float64, by string) {
		t.Helper()
		if v := r.view(web.rule); r.share(web.rule) != share || r.share(pod) != ofPod || v.Share != share || v.By != by || v.Configured != 0.5 {
			t.Errorf("%s: %g, of the variant %g, %+v", when, r.share(web.rule), r.share(pod), v)
		}
	}
	expect("as configured", 0.5, 0.5, "")
	r.set("web", 1, start)
	expect("by an operator", 1, 1, ByOperator)
	r.set("web@bbr", 0.1, start)
	expect("of the variant alone", 1, 0.1, ByOperator)
	if !r.takeBack(web, "harm", start) || r.takeBack(web, "again", start) || r.holdsOut(web.rule) {
		t.Error("not taken back once")
	}
	expect("by a guard", 0, 0.1, ByGuard)
	if begun := r.configure([]*ruleState{web}); len(begun) != 0 {
		t.Errorf("%d begin again", len(begun))
	}
	expect("loaded again", 0, 0, ByGuard)

	stored := r.stored("web")
	web.fingerprint = "2"
	if begun := r.configure([]*ruleState{web}); len(begun) != 1 || r.restore(web, stored) {
		t.Errorf("edited: %d begin again", len(begun))
	}
	expect("edited", 0.5, 0.5, "")
	web.fingerprint = "1"
	if !r.restore(web, stored) || r.restore(web, nil) {
		t.Error("not restored")
	}
	expect("restored", 0, 0, ByGuard)
	r.observe = true
	if r.mode() != ModeObserve || r.holdsOut(pod) {
		t.Error("something is tuned in mode observe")
	}
}

// A rule that is edited to leave its connections alone has no rollout any more, nor what was measured of it.
func TestRuleThatBeginsToLeaveHasNoRollout(t *testing.T) {
	set := policy.Rule{Name: "a"}
	set.Set.Set(tcp.InitCwnd, 20)
	w := newWorld(t, nil, set)
	w.e.rules.states[0].root.left = &StoredLeftToDefault{Since: w.now, Until: w.now + 600*second}
	if err := w.e.SetRules([]policy.Rule{{Name: "a", Leave: true}}, policy.Resolver{}, w.now); err != nil {
		t.Fatal(err)
	}
	if err := w.e.SetRollout("a", 0.5, w.now); err == nil {
		t.Error("the rollout of a rule that leaves its connections alone was changed")
	}
	if r := w.e.Summary(time.Unix(0, w.now)).Rules[0]; r.Rollout != nil || r.LeftToDefault != nil || len(w.sink.rows) != 0 {
		t.Errorf("%+v, %d rows", r, len(w.sink.rows))
	}
	if err := w.e.SetRules([]policy.Rule{set}, policy.Resolver{}, w.now); err != nil {
		t.Fatal(err)
	}
	if err := w.e.SetRollout("a", 0.5, w.now); err != nil || len(w.sink.rows) != 1 {
		t.Errorf("%v, %d rows", err, len(w.sink.rows))
	}
}
