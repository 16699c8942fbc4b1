package report

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/lab/measure"
)

// If a case asks for ratios, each metric is shown as a ratio to the baseline's, with the
// interval over pairs of rounds.
func TestRatios(t *testing.T) {
	r := syntheticReport(t)
	i := slices.IndexFunc(r.Cases, func(c *CaseRounds) bool { return slices.Contains(c.Metrics, "fct_p99") && len(c.Rounds) > 0 })
	c := r.Cases[i]
	for _, write := range []func() string{
		func() string { var b bytes.Buffer; writeCase(&b, c, Style{}); return b.String() },
		func() string { var b bytes.Buffer; markdownCase(&b, c); return strings.ReplaceAll(b.String(), `\`, "") },
	} {
		c.Case.Ratios = false
		if text := write(); strings.Contains(text, "[") {
			t.Errorf("intervals are shown although the case has no ratios:\n%s", text)
		}
		c.Case.Ratios = true
		text, compared, pooled := write(), 0, 0
		for _, s := range c.summarise().Subjects {
			for _, metric := range c.Metrics {
				v, ok := s.Metrics[metric]
				if !ok || s.Name == c.Baseline {
					continue
				}
				if v.Baseline == nil || v.Baseline.CI == nil {
					continue // the baseline's is 0 in some rounds
				}
				compared++
				if _, ok := measure.Completions(metric); ok {
					if p := v.Pooled; p == nil || p.CI == nil || !strings.Contains(text, factor(p.Ratio)+" ["+factor(p.CI.Low)) {
						t.Errorf("%s of %s: pooled %+v is not in\n%s", metric, s.Name, p, text)
					}
					pooled++
				}
				want := factor(v.Baseline.Ratio) + " [" + factor(v.Baseline.CI.Low) + ", " + factor(v.Baseline.CI.High) + "]"
				if !strings.Contains(text, want) {
					t.Errorf("%s of %s: no %q in\n%s", metric, s.Name, want, text)
				}
			}
		}
		if compared < 3 || pooled < 3 {
			t.Errorf("the case has only %d ratios and %d pooled ones", compared, pooled)
		}
	}
}
