package report

import (
	"fmt"

	"github.com/tcpilot/tcpilot/internal/lab/measure"
)

// ratiosGrid has a row for each metric of the case and a column for each subject
// beside the baseline: the ratio to the baseline, with its interval.
func ratiosGrid(c *CaseSummary) grid {
	g := grid{Columns: []column{{Head: clean("/ " + c.Baseline), Left: true}}}
	var others []*SubjectSummary
	for i := range c.Subjects {
		if s := &c.Subjects[i]; s.Name != c.Baseline && s.Rounds > 0 {
			others = append(others, s)
			g.column(clean(s.Name), "")
		}
	}
	for _, metric := range c.Metrics {
		r := row{Cells: []cell{textCell(metric)}}
		for _, s := range others {
			r.Cells = append(r.Cells, intervalCell(s.Metrics[metric].Baseline, metric))
		}
		g.Rows = append(g.Rows, r)
	}
	return g
}

// intervalCell is a ratio with its interval, if there is one.
func intervalCell(r *measure.Ratio, metric string) cell {
	c := ratioCell(r, false, metric)
	if r != nil && r.CI != nil {
		c.Text += fmt.Sprintf(" [%s, %s]", factor(r.CI.Low), factor(r.CI.High))
	}
	return c
}
