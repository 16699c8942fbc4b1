package engine

import (
	"log/slog"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// newSwitching returns a world with a path whose running connections of cubic get bbr.
func newSwitching(t *testing.T, opt func(*Options)) *world {
	t.Helper()
	w := newWorld(t, opt, learnRule("all", func(r *policy.Rule) { r.Learn.SwitchRunning, r.Learn.Arms = true, []tcp.CC{cubic, bbr} }))
	w.e.SetOffered(offer(cubic, bbr), cubic)
	for range 50 {
		if w.switches() {
			return w
		}
		w.run(10, ip("10.0.0.1"), goods{cubic: 4, bbr: 100})
	}
	t.Fatal("the path does not switch connections")
	return nil
}

// switches reports whether the kernel is told to give running connections bbr.
func (w *world) switches() bool {
	row, ok := w.sink.lookup(w.e.rules.states[0].class, 0, ip("10.0.0.1"))
	p := &row.Policy
	return ok && p.SwitchFrom != 0 && p.Arms[p.SwitchTo].CC == bbr
}

// cookies returns n cookies of connections that keep their arm, or that do not.
func cookies(n int, keep bool) (out []uint64) {
	for c := uint64(1 << 20); len(out) < n; c++ {
		if keepsArm(c) == keep {
			out = append(out, c)
		}
	}
	return out
}

// interval observes an interval sample of each connection: 5 s of a goodput in Mbit/s.
func (w *world) interval(cookies []uint64, arm tcp.CC, mbit float64, change ...func(*tcp.Sample)) {
	w.t.Helper()
	for _, c := range cookies {
		s := w.sample(ip("10.0.0.1"), func(s *tcp.Sample) {
			s.Kind, s.Flags, s.Cookie, s.Class = tcp.KindInterval, tcp.FlagOutgoing|tcp.FlagLater, c, w.e.rules.states[0].class
			s.PolicyID, s.Arm, s.Duration, s.Busy = 1, arm, 5*time.Second, 5*time.Second
		})
		w.transfer(s, goods{arm: mbit})
		for _, f := range change {
			f(s)
		}
		w.e.Observe(s)
	}
}

func changed(s *tcp.Sample) { s.Flags |= tcp.FlagCCChanged }

// The state of a path has what became of running connections, of those that were switched and of those that kept their arm.
func TestRunningConnectionsAreCompared(t *testing.T) {
	w := newSwitching(t, nil)
	former := w.e.rules.states[0].class
	rule := learnRule("all", func(r *policy.Rule) {
		r.Learn.SwitchRunning, r.Learn.HoldOut, r.Learn.Arms = true, 0.03, []tcp.CC{cubic, bbr}
	})
	if err := w.e.SetRules([]policy.Rule{rule}, policy.Resolver{}, w.now); err != nil {
		t.Fatal(err)
	}
	if w.e.rules.states[0].class == former || !w.switches() {
		t.Fatal("the rule was not replaced, or does not switch connections")
	}
	switched, kept := cookies(12, false), cookies(6, true)
	if p := w.path("10.0.0.0/24"); p.Switched != nil && (p.Switched.Switched.Connections != 0 || p.Switched.Kept.Connections != 0) {
		t.Errorf("at the beginning: %+v", p.Switched)
	}
	for _, mbit := range []float64{1000, 80, 80, 80} { // the first samples may begin before the switch
		w.interval(switched, bbr, mbit, changed)
		w.interval(kept, cubic, mbit/20, func(s *tcp.Sample) { s.Retrans = s.DataSegsOut / 10 })
		w.now += 5 * second
	}
	keep, others := cookies(40, true), cookies(40, false)
	for range 2 { // none of these is comparable
		w.interval(others[20:22], cubic, 3)
		w.interval(keep[20:22], cubic, 3, func(s *tcp.Sample) { s.Flags |= tcp.FlagHoldOut })
		w.interval(keep[22:24], cubic, 3, func(s *tcp.Sample) { s.Class = former })
		w.interval(others[22:24], bbr, 3, changed, func(s *tcp.Sample) { s.CC = reno })
		w.interval(keep[24:26], bbr, 100)
	}
	got := w.path("10.0.0.0/24").Switched
	if got == nil {
		t.Fatal("no comparison")
	}
	about := func(mbit float64, g RunningGroup) bool {
		return math.Abs(math.Log(float64(g.Goodput)/125e3/mbit)) < 0.2
	}
	if a, b := got.Switched, got.Kept; got.To != bbr || a.Connections != 12 || b.Connections != 6 || !about(80, a) || !about(4, b) ||
		a.Retrans != 0 || math.Abs(b.Retrans-0.1) > 0.01 {
		t.Errorf("%+v", got)
	}
	if g := got.Gain; !g.Better() || g.Ratio < 10 || bool(g.BySlice) || got.Stopped != nil || !w.switches() {
		t.Errorf("%+v, switches %v", g, w.switches())
	}
	for range 2 {
		w.interval(cookies(40, false), bbr, 80, changed)
		w.interval(cookies(40, true), cubic, 4)
	}
	if got := w.path("10.0.0.0/24").Switched; got.Switched.Connections != mostRunning || got.Kept.Connections != mostRunning {
		t.Errorf("at most %d connections of a kind: %+v", mostRunning, got)
	}
}

// If the connections that were switched are significantly worse, no more are for a time, and the log says why.
func TestSwitchesThatDoHarmStop(t *testing.T) {
	var log strings.Builder
	w := newSwitching(t, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	worse := func(kept int) {
		t.Helper()
		for range 4 {
			w.interval(cookies(10, false), bbr, 0.5, changed)
			w.interval(cookies(kept, true), cubic, 4) // as the learner expects
			w.now += 5 * second
			w.e.Tick(w.now)
		}
	}
	worse(4)
	if got := w.path("10.0.0.0/24").Switched; got.Kept.Connections != 4 || got.Gain.Known() || got.Stopped != nil {
		t.Errorf("four connections are too few: %+v", got)
	}
	worse(6)
	got := w.path("10.0.0.0/24").Switched
	if got == nil || got.Stopped == nil || !strings.Contains(got.Stopped.Why, "connections that got bbr did 0.") || w.switches() {
		t.Fatalf("%+v, switches %v", got, w.switches())
	}
	if n := w.e.View(time.Unix(0, w.now)).Totals.Retired["switched-worse"]; n != 1 {
		t.Errorf("%d stops are counted", n)
	}
	if n := strings.Count(log.String(), "running connections keep their arms"); n != 1 {
		t.Errorf("%d lines in the log: %s", n, log.String())
	}
	changed, _, _ := w.e.Unsaved(100)
	next := newWorld(t, nil)
	next.e.SetOffered(offer(cubic, bbr), cubic)
	restore := func(keep func(StoredPath) bool) error {
		for _, m := range changed {
			keep(m)
		}
		return nil
	}
	if err := next.e.Start([]policy.Rule{*w.e.rules.states[0].rule}, policy.Resolver{}, restore, w.now); err != nil {
		t.Fatal(err)
	}
	next.now = w.now
	next.run(1, ip("10.0.0.1"), goods{cubic: 4, bbr: 100})
	if s := next.path("10.0.0.0/24").Switched; s == nil || s.Stopped == nil || *s.Stopped != *got.Stopped || s.To != bbr || next.switches() {
		t.Errorf("after a restart: %+v, switches %v", s, next.switches())
	}
	for end := got.Stopped.Until.UnixNano() + 20*second; next.now < end && !next.switches(); {
		next.run(10, ip("10.0.0.1"), goods{cubic: 4, bbr: 100})
	}
	if !next.switches() {
		t.Error("not switched again after a restart")
	}
	first := got.Stopped.Until.Sub(got.Stopped.Since)
	until := got.Stopped.Until.UnixNano()
	for w.now < until+20*second && !w.switches() {
		w.run(10, ip("10.0.0.1"), goods{cubic: 4, bbr: 100})
	}
	if w.now < until || !w.switches() {
		t.Fatalf("switched again %v after the end: %v", time.Duration(w.now-until), w.switches())
	}
	worse(6)
	if s := w.path("10.0.0.0/24").Switched.Stopped; s == nil || s.Until.Sub(s.Since) != 2*first {
		t.Errorf("the second time %+v, the first one lasted %v", s, first)
	}
}

// A restart of the daemon does not begin the comparison anew: what connections before it have shown counts together with those after it.
func TestComparisonOfRunningConnectionsIsStored(t *testing.T) {
	w := newSwitching(t, nil)
	observe := func(w *world, first, kept int) {
		t.Helper()
		for range 4 {
			w.interval(cookies(first+10, false)[first:], bbr, 0.5, changed)
			w.interval(cookies(first+kept, true)[first:], cubic, 4)
			w.now += 5 * second
		}
	}
	observe(w, 0, 4)
	before := w.path("10.0.0.0/24").Switched
	if before == nil || before.Kept.Connections != 4 || before.Stopped != nil {
		t.Fatalf("%+v", before)
	}
	kept, _ := memories(t, w.e, nil)
	for _, c := range []struct {
		name  string
		pause time.Duration
		rule  func(*policy.Rule)
		stops bool
	}{
		{"restart", 0, nil, true},
		{"after more than ten minutes", 11 * time.Minute, nil, false},
		{"another rule", 0, func(r *policy.Rule) { r.Set.Set(tcp.InitCwnd, 20) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			rule := *w.e.rules.states[0].rule
			if c.rule != nil {
				c.rule(&rule)
			}
			v := newWorld(t, nil)
			v.e.SetOffered(offer(cubic, bbr), cubic)
			v.now = w.now + int64(c.pause)
			err := v.e.Start([]policy.Rule{rule}, policy.Resolver{}, func(keep func(StoredPath) bool) error {
				for _, m := range kept {
					keep(m)
				}
				return nil
			}, v.now)
			if err != nil {
				t.Fatal(err)
			}
			if got := v.path("10.0.0.0/24").Switched; c.rule == nil && (got == nil || !reflect.DeepEqual(*got, *before)) {
				t.Fatalf("restored %+v, want %+v", got, before)
			}
			for range 50 {
				if !v.switches() {
					v.run(1, ip("10.0.0.1"), goods{cubic: 4, bbr: 100})
				}
			}
			if !v.switches() {
				t.Fatal("the path does not switch connections")
			}
			observe(v, 40, 4)
			if got := v.path("10.0.0.0/24").Switched; got == nil || got.Stopped != nil != c.stops {
				t.Errorf("%+v", got)
			}
		})
	}
}
