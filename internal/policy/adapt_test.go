package policy

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

const adaptNow = int64(1_700_000_000e9)

// fromMetrics are the fields that have a value only if the metrics of the path lead to one.
var fromMetrics = slices.DeleteFunc(slices.Clone(Adaptive), func(f tcp.Field) bool { return f == tcp.PeerOption })

// measured returns the metrics of a path with these round-trip times, in milliseconds.
func measured(srtt, rttvar float32) *estimate.Path {
	return &estimate.Path{SRTT: 1000 * srtt, RTTVar: 1000 * rttvar, RTTs: 50, RTTAt: adaptNow - int64(time.Minute)}
}

func TestAdaptHandshakeTimeouts(t *testing.T) {
	old, few, future := measured(10, 1), measured(10, 1), measured(10, 1)
	future.RTTAt = adaptNow + int64(time.Hour)
	old.RTTAt = adaptNow - int64(metricsAge) - 1
	few.RTTs = metricsSamples - 1
	for _, c := range []struct {
		name    string
		metrics *estimate.Path
		was     Adapted
		want    Adapted
	}{
		{"a path of 0.2 ms", measured(0.2, 0.05), Adapted{}, Adapted{SynRTO: 125, SynAckRTO: 250}},
		{"10 ms, of short connections", measured(12, 6), Adapted{}, Adapted{SynRTO: 125, SynAckRTO: 250}},
		{"50 ms", measured(50, 5), Adapted{}, Adapted{SynRTO: 250, SynAckRTO: 250}},
		{"100 ms", measured(100, 20), Adapted{}, Adapted{SynRTO: 500, SynAckRTO: 500}},
		{"a second", measured(700, 100), Adapted{}, Adapted{}},
		{"as it was, within the margin", measured(48, 3), Adapted{SynRTO: 125, SynAckRTO: 250}, Adapted{SynRTO: 125, SynAckRTO: 250}},
		{"the same of a new path", measured(48, 3), Adapted{}, Adapted{SynRTO: 250, SynAckRTO: 250}},
		{"raised", measured(60, 3), Adapted{SynRTO: 125, SynAckRTO: 250}, Adapted{SynRTO: 250, SynAckRTO: 250}},
		{"metrics are old", old, Adapted{SynRTO: 125}, Adapted{}},
		{"the clock was set back", future, Adapted{SynRTO: 125}, Adapted{}},
		{"metrics are few", few, Adapted{}, Adapted{}},
		{"no metrics", nil, Adapted{}, Adapted{}},
		{"no round-trip time", &estimate.Path{RTTs: 50, RTTAt: adaptNow}, Adapted{}, Adapted{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &Rule{Learn: &Learn{}, Adapt: fromMetrics}
			d := Decide(&Input{Rule: r, Arms: ccs("cubic"), Learner: &fixedLearner{}, Metrics: c.metrics, Adapted: c.was, Now: adaptNow})
			if got := AdaptedIn(&d.Policy); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			for _, f := range Adaptive {
				v, ok := d.Policy.Params.Get(f)
				if v != c.want.Value(f) || ok != (v != 0) || d.Policy.Adapted>>f&1 == 1 != ok {
					t.Errorf("policy has %s %d (%v), adapted %b", f, v, ok, d.Policy.Adapted)
				}
			}
		})
	}
}

// Without adapt, nothing is computed; and a field that the rule sets is left as it is.
func TestAdaptOnlyWhatTheRuleAsksFor(t *testing.T) {
	for _, c := range []struct {
		rule    Rule
		want    uint64 // mask of fields
		adapted uint64
	}{
		{Rule{Learn: &Learn{}}, 0, 0},
		{Rule{Learn: &Learn{}, Adapt: []tcp.Field{tcp.SynAckRTO}}, 1 << tcp.SynAckRTO, 1 << tcp.SynAckRTO},
		{Rule{Learn: &Learn{}, Adapt: fromMetrics, Set: params(tcp.SynCount, 3)}, 1<<tcp.SynCount | 1<<tcp.SynAckRTO, 1 << tcp.SynAckRTO},
		{Rule{Learn: &Learn{}, Adapt: fromMetrics, Set: params(tcp.SynRTO, 50)}, 1<<tcp.SynRTO | 1<<tcp.SynAckRTO, 1 << tcp.SynAckRTO},
	} {
		d := Decide(&Input{Rule: &c.rule, Arms: ccs("cubic"), Learner: &fixedLearner{}, Metrics: measured(10, 1), Now: adaptNow})
		if d.Policy.Params.Mask() != c.want || d.Policy.Adapted != c.adapted {
			t.Errorf("%s: fields %b, adapted %b; want %b, %b", c.rule.Describe(), d.Policy.Params.Mask(), d.Policy.Adapted, c.want, c.adapted)
		}
		if v, ok := d.Policy.Params.Get(tcp.SynRTO); ok && c.rule.Set.Mask()>>tcp.SynRTO&1 == 1 && v != 50 {
			t.Errorf("syn_rto %d: the rule says 50", v)
		}
	}
}

// In mode observe, and on a path that is left to the default, nothing is adapted.
func TestAdaptNothingForAHoldOut(t *testing.T) {
	r := &Rule{Learn: &Learn{}, Adapt: fromMetrics}
	for name, in := range map[string]*Input{"observe": {Observe: true}, "left to the default": {LeftToDefault: true}} {
		in.Rule, in.Arms, in.Learner, in.Metrics, in.Now = r, ccs("cubic"), &fixedLearner{}, measured(10, 1), adaptNow
		if d := Decide(in); d.Policy.Params.Mask() != 0 || d.Policy.Adapted != 0 {
			t.Errorf("%s: fields %b, adapted %b", name, d.Policy.Params.Mask(), d.Policy.Adapted)
		}
	}
}

// A timeout does not alternate between two values while the round-trip time varies by a tenth.
func TestAdaptIsSteady(t *testing.T) {
	r := &Rule{Learn: &Learn{}, Adapt: []tcp.Field{tcp.SynRTO}}
	for srtt := float32(5); srtt < 300; srtt += 0.5 {
		var was Adapted
		changes := 0
		for i := range 40 {
			m := measured(srtt, srtt/10)
			if i%2 == 1 {
				m = measured(1.1*srtt, 1.1*srtt/10)
			}
			d := Decide(&Input{Rule: r, Arms: ccs("cubic"), Learner: &fixedLearner{}, Metrics: m, Adapted: was, Now: adaptNow})
			now := AdaptedIn(&d.Policy)
			if now != was {
				changes++
			}
			was = now
		}
		if changes > 2 {
			t.Errorf("srtt %v ms: %d changes", srtt, changes)
		}
	}
}

// whyAdapted explains a value by metrics, without raised windows and bounds of the rule.
func whyAdapted(f tcp.Field, a Adapted, m *estimate.Path) string {
	return (&Input{Rule: &Rule{}, Metrics: m, Now: adaptNow}).WhyAdapted(f, a)
}

func TestWhyAdapted(t *testing.T) {
	if got := whyAdapted(tcp.SynRTO, Adapted{}, measured(12.34, 3)); !strings.HasPrefix(got, "srtt 12.3ms + 4 x rttvar 3ms is 24.3ms") {
		t.Error(got)
	}
}
