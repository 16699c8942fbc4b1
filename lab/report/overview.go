package report

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/console"
)

// Columns of an overview that stand for a different subject in each case.
const (
	oracleColumn   = "oracle"
	baselineColumn = "baseline"
)

// overviewColumns are the default columns of an overview.
var overviewColumns = []string{"tcpilot", oracleColumn, baselineColumn, "bpftune"}

// Overview writes one table over all cases for a terminal: each case's primary
// metric for the subjects of columns, with the ratio to the case's baseline.
// Columns are names of subjects, "oracle" or "baseline"; those that no case has are left
// out. The default is tcpilot, oracle, baseline and bpftune.
func Overview(w io.Writer, cases []CaseSummary, s Style, columns ...string) error {
	b := bufio.NewWriter(w)
	g := overviewGrid(cases, columns)
	g.Write(b, s.painter(), s.width())
	fmt.Fprintf(b, "\n%s\n", s.paint(console.Faint, console.Fold(overviewLegend, s.width(), "")))
	return b.Flush()
}

// OverviewMarkdown writes the same table as Markdown.
func OverviewMarkdown(w io.Writer, cases []CaseSummary, columns ...string) error {
	b := bufio.NewWriter(w)
	g := overviewGrid(cases, columns)
	g.Markdown(b)
	fmt.Fprintf(b, "\n%s\n", console.Escape(overviewLegend))
	return b.Flush()
}

const overviewLegend = "Medians of each case's first metric. x: ratio to the baseline, median over pairs of alternating rounds; ~ no significant difference from it. " +
	"The oracle is the best of the fixed subjects, known only after the experiment."

func overviewGrid(cases []CaseSummary, columns []string) console.Grid {
	if len(columns) == 0 {
		columns = overviewColumns
	}
	g := console.Grid{Indent: indent, Gap: gap, Columns: []console.Column{{Head: "case", Left: true}, {Head: "metric", Left: true}}}
	columns = slices.DeleteFunc(slices.Clone(columns), func(name string) bool {
		return !slices.ContainsFunc(cases, func(c CaseSummary) bool { return c.column(name) != nil })
	})
	for _, name := range columns {
		g.Columns = append(g.Columns, console.Column{Head: console.Clean(name), Marked: true})
		if name != baselineColumn {
			g.Columns = append(g.Columns, console.Column{Head: "x", Tight: true})
		}
	}
	for i := range cases {
		g.Rows = append(g.Rows, cases[i].overviewRow(columns))
	}
	return g
}

func (c *CaseSummary) overviewRow(columns []string) console.GridRow {
	r := console.GridRow{Cells: []console.Cell{console.TextCell(c.fullName())}}
	if c.Refused != "" {
		r.Note = "refused: " + c.Refused
		return r
	}
	r.Cells = append(r.Cells, console.TextCell(c.Primary))
	for _, column := range columns {
		s := c.column(column)
		v := c.overviewValue(s)
		if s != nil && s.Name != column && column != baselineColumn {
			v.Text = console.Clean(s.Name) + " " + v.Text
		}
		r.Cells = append(r.Cells, v)
		if column != baselineColumn {
			r.Cells = append(r.Cells, c.overviewRatio(s))
		}
	}
	return r
}

// column returns the subject that a column stands for: the one with its name, or else
// the first named NAME-SOMETHING; nil if the case has none that ran.
func (c *CaseSummary) column(name string) *SubjectSummary {
	switch name {
	case oracleColumn:
		name = c.Oracle
	case baselineColumn:
		name = c.Baseline
	}
	if s := c.Subject(name); s != nil && s.Rounds > 0 {
		return s
	}
	for i := range c.Subjects {
		if s := &c.Subjects[i]; strings.HasPrefix(s.Name, name+"-") && s.Rounds > 0 {
			return s
		}
	}
	return nil
}

func (c *CaseSummary) overviewValue(s *SubjectSummary) console.Cell {
	if s == nil {
		return console.Cell{Text: "-", Tone: console.Faint}
	}
	v, ok := s.Metrics[c.Primary]
	if !ok {
		return console.Cell{Text: "-", Tone: console.Faint}
	}
	return console.Cell{Text: value(c.Primary, v.Median), Best: v.Best}
}

func (c *CaseSummary) overviewRatio(s *SubjectSummary) console.Cell {
	if s == nil {
		return console.Cell{Text: "-", Tone: console.Faint}
	}
	r := ratioCell(s.Metrics[c.Primary].Baseline, s.Name == c.Baseline, c.Primary)
	if r.Text != "-" {
		r.Text += "x"
	}
	return r
}
