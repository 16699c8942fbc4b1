package daemon

import (
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/policy"
)

// An address of which nothing is known has no path whose figures could be shown: if its rule is
// left to the default, those of the rule are.
func TestExplainSaysWhyARuleIsLeftToTheDefault(t *testing.T) {
	const figures = "connections were 0.50 times as fast as with the default"
	now := time.Unix(1_700_000_000, 0)
	e := engine.Explanation{Rule: &engine.RuleState{Name: "all"}, IsRoot: true, Entry: &engine.PathState{
		Reason: policy.WorseThanDefault.String(), LeftToDefault: &engine.LeftToDefault{Why: figures, Since: now, Until: now.Add(time.Minute)},
	}}
	var out api.Explanation
	if explainEntry(&out, &e, now); !strings.Contains(out.Why, figures) || out.Path != nil {
		t.Errorf("%+v", out)
	}
	e.IsRoot, out = false, api.Explanation{} // a path shows its own
	if explainEntry(&out, &e, now); strings.Contains(out.Why, figures) || out.Path == nil {
		t.Errorf("%+v", out)
	}
}

// A field that the rule adapts, and that has the kernel's value, is not applied, and has its reason.
func TestExplainFieldsLeftToTheKernel(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for _, left := range []*engine.LeftToDefault{nil, {Why: "slower", Until: now.Add(time.Minute)}} {
		e := engine.Explanation{Rule: &engine.RuleState{Name: "all"}, Entry: &engine.PathState{
			Set:           []engine.Setting{{Field: "syn_rto", Value: 125, Unit: "ms", Reason: policy.FromMetrics.String(), Why: "srtt"}},
			Kernel:        []engine.KernelField{{Field: "init_cwnd", Why: "0.35% of the recent packets were lost"}},
			LeftToDefault: left,
		}}
		want := api.FieldWhy{Setting: engine.Setting{Field: "init_cwnd", Reason: "metrics", Why: "0.35% of the recent packets were lost"}, Kernel: true}
		if left != nil {
			want.Reason = "worse-than-default"
		}
		var out api.Explanation
		if explainEntry(&out, &e, now); len(out.Fields) != 2 || !out.Fields[0].Applied || out.Fields[1] != want {
			t.Errorf("%+v, want %+v", out.Fields, want)
		}
	}
}
