package report

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/console"
)

// Compare writes two reports side by side for a terminal: for each subject the case's
// primary metric, and those of the other metrics that do not agree.
func Compare(w io.Writer, a, b *Report, s Style) error {
	c := Compared(a, b)
	out := bufio.NewWriter(w)
	for _, side := range []struct {
		name   string
		report *Report
	}{{"A", a}, {"B", b}} {
		fmt.Fprintf(out, "%s  %s\n", s.paint(console.Strong, side.name), console.Clean(runLine(side.report)))
		for _, p := range problems(side.report) {
			fmt.Fprintf(out, "   %s\n", s.paint(console.Warn, console.Clean(p)))
		}
	}
	if len(c.Differences) > 0 {
		fmt.Fprintf(out, "%s\n", s.paint(console.Warn, console.Fold("The runs differ in "+strings.Join(c.Differences, "; ")+".", s.width(), "")))
	}
	for from := 0; from < len(c.Figures); {
		to := from
		for to < len(c.Figures) && c.Figures[to].sameCase(&c.Figures[from]) {
			to++
		}
		writeFigures(out, c.Figures[from:to], c.differencesOf(&c.Figures[from]), s)
		from = to
	}
	fmt.Fprintf(out, "\n%s\n%s\n", c.counts(), s.paint(console.Faint, console.Fold(compareLegend, s.width(), "")))
	return out.Flush()
}

const compareLegend = "Medians with their 95 % confidence intervals (93.75 % for five rounds). agree: the intervals overlap, or the medians differ by less than 1 %. better, worse: B compared with A, by the metric's direction. " +
	"unknown: fewer than five rounds."

func (f *Figure) sameCase(o *Figure) bool { return f.Scenario == o.Scenario && f.Case == o.Case }

func (c *Comparison) counts() string {
	var parts []string
	for _, v := range []Verdict{Agree, Better, Worse, Unknown, OnlyA, OnlyB} {
		if n := c.Counts[v]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, v))
		}
	}
	if len(parts) == 0 {
		return "No figure to compare."
	}
	return plural(len(c.Figures), "figure") + ": " + strings.Join(parts, ", ") + "."
}

// differencesOf returns the differences of the figure's case.
func (c *Comparison) differencesOf(f *Figure) []string {
	for _, d := range c.Cases {
		if d.Scenario == f.Scenario && d.Case == f.Case {
			return d.Differences
		}
	}
	return nil
}

// writeFigures writes the figures of one case.
func writeFigures(w io.Writer, figures []Figure, differences []string, s Style) {
	name := s.paint(console.Strong, console.Clean(fullName(figures[0].Scenario, figures[0].Case)))
	if only := figures[0].Verdict; (only == OnlyA || only == OnlyB) &&
		!slices.ContainsFunc(figures, func(f Figure) bool { return f.Verdict != only }) {
		fmt.Fprintf(w, "\n%s   %s\n", name, s.paint(console.Faint, string(only)))
		return
	}
	fmt.Fprintf(w, "\n%s\n", name)
	for _, d := range differences {
		fmt.Fprintf(w, "%s%s\n", indent, s.paint(console.Warn, console.Fold(d, s.width()-len(indent), indent)))
	}
	g := console.Grid{Indent: indent, Gap: "  ", Columns: []console.Column{{Head: "subject", Left: true}, {Head: "metric", Left: true}, {Head: "verdict", Left: true},
		{Head: "A"}, {Head: "B"}, {Head: "unit", Left: true}, {Head: "B/A"}}}
	others := 0
	for i := range figures {
		if f := &figures[i]; f.Primary || f.Verdict != Agree {
			g.Rows = append(g.Rows, f.row())
		} else {
			others++
		}
	}
	g.Write(w, s.painter(), s.width())
	if others > 0 {
		fmt.Fprintf(w, "%s%s\n", indent, s.paint(console.Faint, plural(others, "other figure")+" of this case agree"))
	}
}

// tones are the colours of verdicts.
var tones = map[Verdict]console.Tone{Better: console.Good, Worse: console.Bad, Unknown: console.Faint, OnlyA: console.Faint, OnlyB: console.Faint}

func (f *Figure) row() console.GridRow {
	var medians []float64
	for _, v := range []*Value{f.A, f.B} {
		if v != nil {
			medians = append(medians, v.Median)
		}
	}
	s := scaleOf(f.Metric, medians)
	ratio := console.Cell{Text: "-"}
	if f.Ratio != nil {
		ratio.Text = factor(f.Ratio.Ratio)
		if ci := f.Ratio.CI; ci != nil {
			ratio.Text += " [" + factor(ci.Low) + ", " + factor(ci.High) + "]"
		}
	}
	return console.GridRow{Cells: []console.Cell{console.TextCell(f.Subject), console.TextCell(f.Metric), {Text: string(f.Verdict), Tone: tones[f.Verdict]},
		f.A.cell(s), f.B.cell(s), console.TextCell(s.unit), ratio}}
}

// cell writes the value with its interval; v may be nil.
func (v *Value) cell(s scale) console.Cell {
	switch {
	case v == nil:
		return console.Cell{Text: "-", Tone: console.Faint}
	case v.CI == nil:
		return console.Cell{Text: s.write(v.Median)}
	}
	return console.Cell{Text: s.write(v.Median) + " [" + s.write(v.CI.Low) + ", " + s.write(v.CI.High) + "]"}
}
