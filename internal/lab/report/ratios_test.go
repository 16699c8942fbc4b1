package report

import (
	"bytes"
	"strings"
	"testing"
)

// Where a case asks for it, each metric stands beside the baseline's, with the
// interval of its pairs.
func TestRatios(t *testing.T) {
	r := syntheticReport(t)
	c := r.Cases[0]
	for _, write := range []func() string{
		func() string { var b bytes.Buffer; writeCase(&b, c, Style{}); return b.String() },
		func() string { var b bytes.Buffer; markdownCase(&b, c); return strings.ReplaceAll(b.String(), `\`, "") },
	} {
		c.Case.Ratios = false
		if text := write(); strings.Contains(text, "[") {
			t.Errorf("nobody asked for the intervals:\n%s", text)
		}
		c.Case.Ratios = true
		text, compared := write(), 0
		for _, s := range c.Summarise().Subjects {
			for _, metric := range c.Metrics {
				v, ok := s.Metrics[metric]
				if !ok || s.Name == c.Baseline {
					continue
				}
				if v.Baseline == nil || v.Baseline.CI == nil {
					continue // the baseline's is 0 in some rounds
				}
				compared++
				want := factor(v.Baseline.Ratio) + " [" + factor(v.Baseline.CI.Low) + ", " + factor(v.Baseline.CI.High) + "]"
				if !strings.Contains(text, want) {
					t.Errorf("%s of %s: no %q in\n%s", metric, s.Name, want, text)
				}
			}
		}
		if compared < 3 {
			t.Errorf("%d ratios were there to look for", compared)
		}
	}
}
