package policy

import (
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// crowded are the metrics of a path whose connections may have window packets in flight together.
func crowded(window float32) *estimate.Path {
	m := measured(2, 1)
	m.Incast = &estimate.Incast{Window: window, QueueAt: adaptNow, Before: estimate.Aggregate{RTT: 80_000, Loss: 0.01, Flows: 11}, Now: estimate.Aggregate{RTT: 6000, Flows: 9}}
	return m
}

func TestAdaptClamp(t *testing.T) {
	old, far := crowded(50), crowded(50)
	old.Incast.QueueAt = adaptNow - int64(estimate.ClampAge) - 1
	far.MinRTT = estimate.Window{Half: estimate.MostIncastRTT + 1}
	for _, c := range []struct {
		name    string
		metrics *estimate.Path
		was     uint32
		rule    Rule
		want    uint32
	}{
		{"incast", crowded(50), 0, Rule{}, 50},
		{"about the same", crowded(50), 60, Rule{}, 60},
		{"less", crowded(50), 70, Rule{}, 50},
		{"more", crowded(50), 39, Rule{}, 50},
		{"a least one", crowded(1), 0, Rule{}, leastClamp},
		{"none", crowded(0), 50, Rule{}, 0},
		{"nothing observed", measured(2, 1), 50, Rule{}, 0},
		{"old", old, 50, Rule{}, 0},
		{"far", far, 50, Rule{}, 0},
		{"the rule sets it", crowded(50), 0, Rule{Set: params(tcp.CwndClamp, 100)}, 0},
	} {
		c.rule.Learn, c.rule.Adapt = &Learn{HoldOut: 0.1}, []tcp.Field{tcp.CwndClamp}
		d := Decide(&Input{Rule: &c.rule, Arms: ccs("cubic"), Learner: &fixedLearner{}, Metrics: c.metrics, Adapted: Adapted{Clamp: c.was}, Now: adaptNow, Slice: 33})
		if got := AdaptedIn(&d.Policy); got != (Adapted{Clamp: c.want}) {
			t.Errorf("%s: %+v, want %d", c.name, got, c.want)
		}
		if may := c.rule.Set.Mask() == 0; d.Policy.CountFlows != may || d.Policy.LeastClamp != 0 != may {
			t.Errorf("%s: connections are counted %v, least clamp %d", c.name, d.Policy.CountFlows, d.Policy.LeastClamp)
		}
	}
}

// One connection without a clamp fills the queue for the others: the hold-out is drawn in slices only.
func TestHoldOutOfClampsIsDrawnInSlices(t *testing.T) {
	for _, adapt := range [][]tcp.Field{{tcp.CwndClamp}, {tcp.RTOMin}} {
		r := &Rule{Learn: &Learn{HoldOut: 0.1}, Adapt: adapt}
		d := Decide(&Input{Rule: r, Arms: ccs("cubic"), Learner: &fixedLearner{}, Metrics: crowded(50), Now: adaptNow, Slice: 33})
		if single := adapt[0] != tcp.CwndClamp; d.Policy.HoldOut != 0 != single || d.Policy.HoldSlices == 0 {
			t.Errorf("%v: hold-out %d of connections, %d of slices", adapt, d.Policy.HoldOut, d.Policy.HoldSlices)
		}
	}
}

func TestLeastClampOfARule(t *testing.T) {
	r := &Rule{Learn: &Learn{}, Adapt: []tcp.Field{tcp.CwndClamp}, Bounds: params(tcp.CwndClamp, 7)}
	if d := Decide(&Input{Rule: r, Arms: ccs("cubic"), Learner: &fixedLearner{}, Metrics: crowded(50), Now: adaptNow}); d.Policy.LeastClamp != 7 {
		t.Errorf("least clamp %d, want 7", d.Policy.LeastClamp)
	}
}

func TestClampsAreUrgent(t *testing.T) {
	for _, c := range []struct{ now, was uint32 }{{0, 50}, {50, 0}, {50, 70}, {70, 50}} {
		if !(Adapted{Clamp: c.now}).Safer(Adapted{Clamp: c.was}) {
			t.Errorf("from %d to %d may wait", c.was, c.now)
		}
	}
}

func TestWhyClamp(t *testing.T) {
	got, want := whyAdapted(tcp.CwndClamp, Adapted{Clamp: 50}, crowded(50)), "11 connections filled the queue"
	if !strings.Contains(got, want) || !strings.Contains(got, "1.0% of their packets were lost; now 9,") {
		t.Errorf("%q\nhas not %q", got, want)
	}
}
