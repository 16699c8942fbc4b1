package policy

import (
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// policed are the metrics of a path with a policer, of which few samples are known.
func policed(state estimate.PolicerState, pace, clean, excess uint32) *estimate.Path {
	m := measured(20, 1)
	m.RTTs = 4
	m.Policer = estimate.Policer{State: state, Pace: pace, Clean: clean, Excess: excess,
		Free: estimate.FreeConnections{Rates: [3]uint32{4_500_000, 4_400_000, 4_600_000}, Sent: 10_000, Lost: 320, Stretch: 1.024, Count: 3}}
	return m
}

func TestAdaptPacing(t *testing.T) {
	found := policed(estimate.PolicerFound, 5_800_000, 5_800_000, 6_100_000)
	old := policed(estimate.PolicerFound, 5_800_000, 5_800_000, 6_100_000)
	old.RTTAt = adaptNow - int64(metricsAge) - 1
	for _, c := range []struct {
		name    string
		metrics *estimate.Path
		rule    Rule
		want    uint32
	}{
		{"found", found, Rule{}, 5_800_000},
		{"a pacing test", policed(estimate.PolicerSuspected, 4_600_000, 0, 0), Rule{}, 4_600_000},
		{"nothing is known", measured(20, 1), Rule{}, 0},
		{"no metrics", nil, Rule{}, 0},
		{"old", old, Rule{}, 0},
		{"below the least", policed(estimate.PolicerFound, 100_000, 100_000, 110_000), Rule{}, 0},
		{"below the rule's least", found, Rule{Bounds: params(tcp.MaxPacingRate, 6_000_000)}, 0},
		{"above the rule's least", policed(estimate.PolicerFound, 100_000, 100_000, 110_000), Rule{Bounds: params(tcp.MaxPacingRate, 50_000)}, 100_000},
		{"more than programs can pass", policed(estimate.PolicerSuspected, 1<<32-1, 0, 0), Rule{}, 0},
		{"the rule sets it", found, Rule{Set: params(tcp.MaxPacingRate, 1_000_000)}, 0},
	} {
		c.rule.Learn, c.rule.Adapt = &Learn{}, []tcp.Field{tcp.MaxPacingRate}
		d := Decide(&Input{Rule: &c.rule, Arms: ccs("cubic"), Learner: &fixedLearner{}, Metrics: c.metrics, Now: adaptNow})
		if got := AdaptedIn(&d.Policy); got != (Adapted{PacingRate: c.want}) {
			t.Errorf("%s: %+v, want %d", c.name, got, c.want)
		}
		set := c.rule.Set.Mask() != 0
		if !d.Policy.CountFlows || d.Policy.WatchLosses == set {
			t.Errorf("%s: connections are counted %v, losses watched %v", c.name, d.Policy.CountFlows, d.Policy.WatchLosses)
		}
	}
}

// Losses are watched on every path, also on those of which nothing is known: they begin the search.
// Connections are counted only for a path of its own.
func TestLossesAreWatchedIfTheRuleAsksForPacing(t *testing.T) {
	for _, adapt := range [][]tcp.Field{nil, {tcp.SynRTO}, Adaptive} {
		r := &Rule{Learn: &Learn{}, Adapt: adapt}
		d := Decide(&Input{Rule: r, Root: true, Arms: ccs("cubic"), Learner: &fixedLearner{}, Now: adaptNow})
		if want := len(adapt) > 1; d.Policy.WatchLosses != want || d.Policy.CountFlows {
			t.Errorf("adapt %v: losses are watched %v, connections counted %v", adapt, d.Policy.WatchLosses, d.Policy.CountFlows)
		}
	}
}

// Any change of the pacing rate is for all connections that begin: it does not wait.
func TestPacingRatesAreUrgent(t *testing.T) {
	for _, c := range []struct{ now, was uint32 }{{0, 5e6}, {5e6, 0}, {5e6, 6e6}, {6e6, 5e6}} {
		if !(Adapted{PacingRate: c.now}).Safer(Adapted{PacingRate: c.was}) {
			t.Errorf("from %d to %d may wait", c.was, c.now)
		}
	}
	if (Adapted{PacingRate: 5e6}).Safer(Adapted{PacingRate: 5e6}) {
		t.Error("no change is urgent")
	}
}

func TestWhyPacing(t *testing.T) {
	for want, m := range map[string]*estimate.Path{
		"rate limit 46.4 Mbit/s: connections without pacing lost 3.2% of their packets at 36.0 Mbit/s, while round trips were 1.02 times the least; paced at 46.4 Mbit/s, hardly any; at 48.8 Mbit/s, many again": policed(estimate.PolicerFound, 5_800_000, 5_800_000, 6_100_000),
		"a rate limit is suspected: connections without pacing lost 3.2% of their packets at 36.0 Mbit/s, while round trips were 1.02 times the least; the pacing test is at 36.8 Mbit/s":                         policed(estimate.PolicerSuspected, 4_600_000, 0, 0),
		"paced at 36.8 Mbit/s, hardly any; the pacing test is at 46.4 Mbit/s": policed(estimate.PolicerSuspected, 5_800_000, 4_600_000, 0),
		"rate limit 36.8 Mbit/s": policed(estimate.PolicerFound, 4_968_000, 4_600_000, 0),
		"a rate limit below 46.4 Mbit/s: connections without pacing lost 3.2% of their pack": policed(estimate.PolicerFound, 5_220_000, 0, 5_800_000),
	} {
		if got := whyAdapted(tcp.MaxPacingRate, Adapted{PacingRate: m.Policer.Pace}, m); !strings.Contains(got, want) {
			t.Errorf("%q\nhas not %q", got, want)
		}
	}
}
