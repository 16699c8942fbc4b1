package report

import (
	"fmt"
	"maps"
	"slices"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/lab/measure"
)

// pooled compares the completion times of a subject's rounds with the baseline's, for
// the repeats that both have; nil for other metrics.
func (c *CaseRounds) pooled(subject, baseline, metric string) *measure.Ratio {
	statistic, ok := measure.Completions(metric)
	if !ok {
		return nil
	}
	group, _ := measure.Split(metric)
	own, other := c.completions(subject, group), c.completions(baseline, group)
	var a, b [][]float64
	for _, repeat := range slices.Sorted(maps.Keys(own)) {
		if len(own[repeat]) > 0 && len(other[repeat]) > 0 {
			a, b = append(a, own[repeat]), append(b, other[repeat])
		}
	}
	ratio, ok := measure.PooledRatio(a, b, statistic)
	if !ok {
		return nil
	}
	return &ratio
}

// completions returns a subject's completion times in seconds by repeat, of all groups
// or of one.
func (c *CaseRounds) completions(subject, group string) map[int][]float64 {
	all := map[int][]float64{}
	for _, r := range c.Rounds {
		if r.Subject != subject || !r.counts() {
			continue
		}
		for i := range r.Requests {
			if q := &r.Requests[i]; group == "" || q.Group == group {
				all[r.Repeat] = append(all[r.Repeat], q.Elapsed.Seconds())
			}
		}
	}
	return all
}

// ratiosGrid has a row for each metric of the case, and for each subject except the
// baseline its ratio to the baseline with the interval: the median over the pairs of
// rounds and, for completion times, also the ratio over all rounds together.
func ratiosGrid(c *CaseSummary) console.Grid {
	g := console.Grid{Indent: indent, Gap: gap, Columns: []console.Column{{Head: console.Clean("/ " + c.Baseline), Left: true}}}
	var others []*SubjectSummary
	for i := range c.Subjects {
		if s := &c.Subjects[i]; s.Name != c.Baseline && s.Rounds > 0 {
			others = append(others, s)
			g.Columns = append(g.Columns, console.Column{Head: console.Clean(s.Name)})
			g.Columns = append(g.Columns, console.Column{Head: "all rounds"})
		}
	}
	for _, metric := range c.Metrics {
		r := console.GridRow{Cells: []console.Cell{console.TextCell(metric)}}
		for _, s := range others {
			v := s.Metrics[metric]
			all := console.Cell{}
			if v.Pooled != nil {
				all = intervalCell(v.Pooled, metric)
			}
			r.Cells = append(r.Cells, intervalCell(v.Baseline, metric), all)
		}
		g.Rows = append(g.Rows, r)
	}
	return g
}

// intervalCell writes a ratio with its interval, if it has one.
func intervalCell(r *measure.Ratio, metric string) console.Cell {
	c := ratioCell(r, false, metric)
	if r != nil && r.CI != nil {
		c.Text += fmt.Sprintf(" [%s, %s]", factor(r.CI.Low), factor(r.CI.High))
	}
	return c
}
