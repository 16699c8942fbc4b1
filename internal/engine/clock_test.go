package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/guard"
)

// What a guard did for a limited time ends if the clock is set back to before it began: otherwise it would last for as much longer,
// also across restarts.
func TestGuardsDoNotOutlastAClockThatWasSetBack(t *testing.T) {
	const back = 365 * 24 * 3600 * second
	w := newWorld(t, nil, initialWindow(20))
	untilLeft(t, w)
	n := w.e.nodes[keyOf(w.e.rules.states[0].class, 0, guardedHost, 24)]
	n.retired.Add(bbr, guard.RewardCollapse, "slow", w.now)
	n.running = &running{to: bbr, stopped: StoredLeftToDefault{Since: w.now, Until: w.now + 600*second}}
	shown := func() (left, retired, stopped bool) {
		p := w.path("203.0.113.0/24")
		return p.LeftToDefault != nil, p.arm(bbr).Retired != nil, n.running.stoppedAt(w.now)
	}
	w.now -= 30 * second // samples may be late
	if left, retired, stopped := shown(); !left || !retired || !stopped || !slices.Contains(w.e.retiredFor(n, w.now), bbr) {
		t.Errorf("half a minute before: left %t, retired %t, stopped %t", left, retired, stopped)
	}
	w.now -= back
	if left, retired, stopped := shown(); left || retired || stopped || slices.Contains(w.e.retiredFor(n, w.now), bbr) {
		t.Errorf("a year before: left %t, retired %t, stopped %t", left, retired, stopped)
	}
	if err := w.e.Settle(w.now); err != nil {
		t.Fatal(err)
	}
	if en, _ := w.sink.lookup(w.sink.table.Classes[0].ID, 0, guardedHost); en.Policy.NumArms == 0 {
		t.Errorf("the path is still left to the default: %v, %v", en.Policy, time.Unix(0, w.now))
	}
}
