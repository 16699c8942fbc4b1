package config

import (
	"slices"
	"testing"

	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// auto is every field that can be adapted, except those that a rule has to name.
func TestAdaptAuto(t *testing.T) {
	got := parse(t, "builtin_rules: false\nrules:\n- {name: a, learn: {}, adapt: auto}\n").Rules[0].Adapt
	for _, f := range policy.Adaptive {
		if slices.Contains(got, f) == policy.ByNameOnly(f) {
			t.Errorf("auto is %v", got)
		}
	}
	limited := parse(t, "builtin_rules: false\nrules:\n- {name: a, learn: {}, adapt: auto, rate_limit: {total: 1Mbit/s}}\n").Rules[0].Adapt
	if slices.Contains(limited, tcp.MaxPacingRate) || !slices.Contains(limited, tcp.InitCwnd) {
		t.Errorf("beside a rate limit, auto is %v", limited)
	}
	if policy.ByNameOnly(tcp.SynRTO) || !policy.ByNameOnly(tcp.RTOMin) {
		t.Error("fields by name")
	}
}

// A rule that learns adapts what can apply to its connections, and what it does not set, unless it says off.
func TestAdaptByDefault(t *testing.T) {
	rule := func(more string) string { return "builtin_rules: false\nrules:\n- {name: a, " + more + "}\n" }
	for more, want := range map[string][]tcp.Field{
		"learn: {}":                                           policy.AdaptedByDefault,
		"learn: {}, adapt: default":                           policy.AdaptedByDefault,
		"learn: {}, adapt: off":                               nil,
		"learn: {}, adapt: [synack_rto]":                      {tcp.SynAckRTO},
		"learn: {}, match: {direction: incoming}":             {tcp.SynAckRTO, tcp.InitCwnd, tcp.ResumeCwnd, tcp.InitRwnd},
		"learn: {}, set: {init_cwnd: 20, syn_count: 3}":       {tcp.SynAckRTO, tcp.ResumeCwnd, tcp.InitRwnd},
		"set: {init_cwnd: 20}":                                nil,
		"leave: true":                                         nil,
		"learn: {}, adapt_bounds: {init_cwnd: 32}":            policy.AdaptedByDefault,
		"learn: {}, adapt: off, rate_limit: {total: 1Mbit/s}": nil,
	} {
		if got := parse(t, rule(more)).Rules[0].Adapt; !slices.Equal(got, want) {
			t.Errorf("%s: adapts %v, want %v", more, got, want)
		}
	}
	if got := Default().Rules[2].Adapt; !slices.Equal(got, policy.AdaptedByDefault) {
		t.Errorf("the default rule adapts %v", got)
	}
	if _, err := Parse("f", []byte(rule("set: {init_cwnd: 20}, adapt: default"))); err == nil {
		t.Error("adapt: default is accepted without learn")
	}
}

func TestAdaptByName(t *testing.T) {
	for _, c := range []struct {
		field      tcp.Field
		bound      string
		us         uint64
		outOfRange []string
	}{
		{tcp.RTOMin, "10ms", 10_000, []string{"5ms", "200ms"}},
		{tcp.DelackMax, "4ms", 4000, []string{"3ms", "40ms"}},
	} {
		rule := func(bound string) string {
			return "builtin_rules: false\nrules:\n- {name: a, learn: {}, adapt: [" + c.field.String() + "], adapt_bounds: {" + c.field.String() + ": " + bound + "}}\n"
		}
		r := parse(t, rule(c.bound)).Rules[0]
		if us, ok := r.Bounds.Get(c.field); !slices.Equal(r.Adapt, []tcp.Field{c.field}) || !ok || us != c.us {
			t.Errorf("adapts %v, bound %d us", r.Adapt, us)
		}
		if !policy.ByNameOnly(c.field) {
			t.Errorf("auto includes %s", c.field)
		}
		for _, bound := range c.outOfRange {
			if _, err := Parse("f", []byte(rule(bound))); err == nil {
				t.Errorf("%s: a bound of %s is accepted", c.field, bound)
			}
		}
	}
}

// The marks of ACKs are fixed values of a rule.
func TestSetACKMarks(t *testing.T) {
	rule := func(dscp string) string {
		return "builtin_rules: false\nrules:\n- {name: a, set: {ack_priority: 65537, ack_dscp: " + dscp + "}}\n"
	}
	r := parse(t, rule("46")).Rules[0]
	priority, _ := r.Set.Get(tcp.AckPriority)
	if dscp, _ := r.Set.Get(tcp.AckDSCP); priority != 65537 || dscp != 46 {
		t.Errorf("priority %d, DSCP %d", priority, dscp)
	}
	for _, dscp := range []string{"0", "64"} {
		if _, err := Parse("f", []byte(rule(dscp))); err == nil {
			t.Errorf("DSCP %s is accepted", dscp)
		}
	}
}
