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
