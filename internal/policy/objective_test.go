package policy

import (
	"slices"
	"testing"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// What a rule names comes first; nothing is added for the default objective, nor for a rule that learns
// nothing.
func TestUseObjective(t *testing.T) {
	for _, c := range []struct {
		name        string
		rule        Rule
		set, bounds tcp.Params
		byObjective uint64
	}{
		{name: "throughput", rule: Rule{Learn: &Learn{}, Adapt: Adaptive}},
		{name: "fct", rule: Rule{Learn: &Learn{Objective: learn.FCT}, Adapt: Adaptive}},
		{name: "nothing is learned", rule: Rule{}},
		{name: "latency", rule: Rule{Learn: &Learn{Objective: learn.Latency}, Adapt: Adaptive},
			set: params(tcp.NotsentLowat, 65536), byObjective: 1 << tcp.NotsentLowat},
		{name: "realtime", rule: Rule{Learn: &Learn{Objective: learn.Realtime}, Adapt: Adaptive},
			set: params(tcp.NotsentLowat, 16384), bounds: params(tcp.RTOMin, 25_000), byObjective: 1<<tcp.NotsentLowat | 1<<tcp.RTOMin},
		{name: "not adapted", rule: Rule{Learn: &Learn{Objective: learn.Realtime}},
			set: params(tcp.NotsentLowat, 16384), byObjective: 1 << tcp.NotsentLowat},
		{name: "named", rule: Rule{Learn: &Learn{Objective: learn.Realtime}, Adapt: Adaptive, Set: params(tcp.NotsentLowat, 1), Bounds: params(tcp.RTOMin, 100_000)},
			set: params(tcp.NotsentLowat, 1), bounds: params(tcp.RTOMin, 100_000)},
	} {
		c.rule.UseObjective()
		if c.rule.Set != c.set || c.rule.Bounds != c.bounds || c.rule.ByObjective != c.byObjective {
			t.Errorf("%s: set %v, bounds %v, by objective %b; want %v, %v, %b", c.name,
				values(&c.rule.Set), values(&c.rule.Bounds), c.rule.ByObjective, values(&c.set), values(&c.bounds), c.byObjective)
		}
	}
}

// A default of the objective is no value that the rule sets, and a policy marks it.
func TestDefaultsOfAnObjective(t *testing.T) {
	r := Rule{Set: params(tcp.NoDelay, 1), Learn: &Learn{Objective: learn.Latency}}
	r.UseObjective()
	if a, b := r.Source(tcp.NoDelay), r.Source(tcp.NotsentLowat); a != ByRule || b != ByObjective {
		t.Errorf("the values are from %s and %s", a, b)
	}
	p := Decide(&Input{Rule: &r, Learner: &fixedLearner{}}).Policy
	if got := p.Params.Fields(); !slices.Equal(got, []tcp.Field{tcp.NotsentLowat, tcp.NoDelay}) || p.Defaults != 1<<tcp.NotsentLowat {
		t.Errorf("the policy sets %v, of which %b are defaults", got, p.Defaults)
	}
	learns := Rule{Learn: &Learn{Objective: learn.Latency}}
	learns.UseObjective()
	if got := learns.Action(); got != "learn" {
		t.Errorf("the action of a rule that sets nothing itself is %s", got)
	}
}
