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
	if policy.ByNameOnly(tcp.SynRTO) || !policy.ByNameOnly(tcp.RTOMin) {
		t.Error("fields by name")
	}
}

func TestAdaptRTOMin(t *testing.T) {
	r := parse(t, "builtin_rules: false\nrules:\n- {name: a, learn: {}, adapt: [rto_min], adapt_bounds: {rto_min: 10ms}}\n").Rules[0]
	if us, ok := r.Bounds.Get(tcp.RTOMin); !slices.Equal(r.Adapt, []tcp.Field{tcp.RTOMin}) || !ok || us != 10_000 {
		t.Errorf("adapts %v, bound %d us", r.Adapt, us)
	}
	for _, bound := range []string{"5ms", "200ms"} {
		if _, err := Parse("f", []byte("rules:\n- {name: a, learn: {}, adapt: [rto_min], adapt_bounds: {rto_min: "+bound+"}}\n")); err == nil {
			t.Errorf("a bound of %s is accepted", bound)
		}
	}
}
