package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/guard"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestForget(t *testing.T) {
	w := guardedWorld(t)
	w.run(200, guardedHost, bbrFails)
	w.run(30, ip("203.0.113.10"), allAlike)
	w.e.ArmFailed(bbr, 3)
	before := w.path("203.0.113.9/32")
	if before.arm(bbr).Retired == nil || before.arm(bbr).Count == 0 {
		t.Fatalf("%+v", before.arm(bbr))
	}
	memories(t, w.e, nil) // saved
	w.e.Forget(bbr)
	for _, p := range w.e.View(time.Unix(0, w.now)).Paths {
		if a := p.arm(bbr); a.Count != 0 || a.Retired != nil {
			t.Errorf("%s: %+v", p.Prefix, a)
		}
	}
	if got, want := w.path("203.0.113.9/32").arm(cubic).Count, before.arm(cubic).Count; got != want {
		t.Errorf("cubic was seen %d times, now %d", want, got)
	}
	kept, _ := memories(t, w.e, nil)
	if len(kept) < 3 { // two hosts and what encloses them
		t.Errorf("%d paths are saved again", len(kept))
	}
	for _, m := range kept {
		if slices.ContainsFunc(m.Belief.Arms, func(a learn.ArmBelief) bool { return a.CC == bbr }) ||
			slices.ContainsFunc(m.Retired, func(r guard.Retirement) bool { return r.CC == bbr }) {
			t.Errorf("%s: %+v", m.Prefix, m)
		}
	}
	w.e.ArmFailed(bbr, 3) // the kernel still counts those of before
	if got := w.run(60, guardedHost, allAlike); count(got, bbr) == 0 {
		t.Error("no connection has it")
	}
	if w.e.ArmFailed(bbr, 4); !slices.Contains(w.e.arms.retired, bbr) {
		t.Error("a new refusal does not retire it")
	}
}

func TestForgetWhatIsNotKnown(t *testing.T) {
	w := newWorld(t, nil)
	w.run(20, guardedHost, allAlike)
	memories(t, w.e, nil)
	w.e.Forget(dctcp)
	if kept, _ := memories(t, w.e, nil); len(kept) != 0 {
		t.Errorf("%d paths changed", len(kept))
	}
}

// That running connections keep their arms, because those that got the former control did worse, is forgotten with it.
func TestForgetEndsAStopOfSwitches(t *testing.T) {
	w := newWorld(t, nil)
	w.run(5, guardedHost, allAlike)
	n := w.e.nodes[keyOf(w.e.rules.states[0].class, 0, guardedHost, 24)]
	stop := func(to tcp.CC) {
		n.running = &running{to: to, stopped: StoredLeftToDefault{Why: "worse", Since: w.now, Until: w.now + 3600*second}}
	}
	w.e.Forget(bbr) // its beliefs
	memories(t, w.e, nil)
	stop(cubic)
	w.e.Forget(reno)
	if !n.running.stoppedAt(w.now) {
		t.Error("the stop is about another control")
	}
	memories(t, w.e, nil)
	stop(bbr)
	w.e.Forget(bbr)
	if n.running.stoppedAt(w.now) {
		t.Error("switches are still stopped")
	}
	if kept, _ := memories(t, w.e, nil); !slices.ContainsFunc(kept, func(m StoredPath) bool { return m.Prefix.String() == "203.0.113.0/24" }) {
		t.Error("that it ended is not saved")
	}
}
