package report

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/lab/measure"
)

// Table writes a report for a terminal: one block per case, one row per subject.
func Table(w io.Writer, r *Report, s Style) error {
	b := bufio.NewWriter(w)
	writeRun(b, r, s)
	for _, c := range r.Cases {
		fmt.Fprintln(b)
		writeCase(b, c, s)
	}
	fmt.Fprintf(b, "\n%s\n", s.paint(console.Faint, console.Fold(legend, s.width(), "")))
	if r.Run.Command != "" {
		fmt.Fprintf(b, "Repeat with: %s\n", s.paint(console.Strong, console.Clean(r.Run.Command)))
	}
	return b.Flush()
}

// legend explains tables of cases.
const legend = "Medians of the rounds ± the wider half of their 95 % confidence interval (by order statistics; 93.75 % for five rounds, none for fewer). " +
	"/ NAME: ratio to that subject, median over pairs of alternating rounds. * best; ~ no significant difference from the baseline."

// ratiosLegend explains tables of ratios.
const ratiosLegend = "Ratios with their intervals: the median over pairs of rounds; all rounds: the completion times of all rounds together, " +
	"its interval by resampling pairs of rounds (too narrow for few pairs)."

func writeRun(w io.Writer, r *Report, s Style) {
	fmt.Fprintf(w, "%s\n", console.Clean(runLine(r)))
	for _, problem := range problems(r) {
		fmt.Fprintf(w, "%s\n", s.paint(console.Warn, console.Clean(problem)))
	}
}

// runLine describes the run and the machine.
func runLine(r *Report) string {
	parts := []string{
		"tcpilot " + r.Run.Tcpilot, "Linux " + r.Run.Kernel, cpus(&r.Run),
		r.Run.Began.UTC().Format("2006-01-02 15:04 MST"),
	}
	if r.Run.Emulated {
		parts = append(parts, "emulated processor")
	}
	if r.Run.VirtualTime {
		parts = append(parts, "virtual time")
	}
	if r.Run.Quick {
		parts = append(parts, "quick")
	}
	if r.End != nil {
		parts = append(parts, "took "+r.End.Elapsed.Round(time.Second).String())
	}
	return strings.Join(parts, ", ")
}

func cpus(r *Run) string { return strings.TrimSuffix(fmt.Sprintf("%d x %s", r.CPUs, r.CPU), " x ") }

// problems lists what a reader must know before reading figures.
func problems(r *Report) []string {
	var all []string
	if r.Truncated != "" {
		all = append(all, "Incomplete: "+r.Truncated+".")
	}
	if r.End != nil && r.End.Stopped != "" {
		all = append(all, "Stopped before the end: "+r.End.Stopped)
	}
	return all
}

func writeCase(w io.Writer, c *CaseRounds, s Style) {
	sum := c.summarise()
	name := console.Clean(sum.fullName())
	fmt.Fprintf(w, "%s   %s\n", s.paint(console.Strong, name), console.Fold(sum.Title, s.width()-len(name)-3, strings.Repeat(" ", len(name)+3)))
	if link := linkLine(&sum); link != "" {
		fmt.Fprintf(w, "%s%s\n", indent, s.paint(console.Faint, console.Fold(link, s.width()-len(indent), indent)))
	}
	if sum.Refused != "" {
		fmt.Fprintf(w, "%s%s\n", indent, s.paint(console.Bad, console.Fold("refused: "+sum.Refused, s.width()-len(indent), indent)))
		if len(c.Rounds) == 0 {
			return
		}
	}
	g := caseGrid(&sum)
	g.Write(w, s.painter(), s.width())
	if sum.Ratios {
		fmt.Fprintln(w)
		ratios := ratiosGrid(&sum)
		ratios.Write(w, s.painter(), s.width())
		fmt.Fprintf(w, "%s%s\n", indent, s.paint(console.Faint, console.Fold(ratiosLegend, s.width()-len(indent), indent)))
	}
	for _, note := range notes(&sum) {
		fmt.Fprintf(w, "%s%s\n", indent, console.Fold(note, s.width()-len(indent), indent))
	}
}

func linkLine(c *CaseSummary) string {
	if c.Link == "" || c.Backend == "" {
		return c.Link + c.Backend
	}
	return c.Link + " (" + c.Backend + ")"
}

// caseGrid has a row for each subject and columns for the case's metrics, with ratios of
// the primary metric.
func caseGrid(c *CaseSummary) console.Grid {
	g := console.Grid{Indent: indent, Gap: gap, Columns: []console.Column{{Head: "subject", Left: true}, {Head: "rounds"}}}
	scales := make([]scale, len(c.Metrics))
	for i, metric := range c.Metrics {
		scales[i] = scaleOf(metric, c.medians(metric))
		g.Columns = append(g.Columns, console.Column{Head: metric, Unit: scales[i].unit})
		g.Columns[len(g.Columns)-1].Marked = c.hasBest(metric)
		if i == 0 {
			g.Columns = append(g.Columns, console.Column{Head: "/ " + c.Baseline})
			if c.Oracle != "" && c.Oracle != c.Baseline {
				g.Columns = append(g.Columns, console.Column{Head: "/ " + c.Oracle})
			}
		}
	}
	for i := range c.Subjects {
		g.Rows = append(g.Rows, c.row(&c.Subjects[i], scales, len(g.Columns)))
	}
	for i := range g.Columns {
		g.Columns[i].Head = console.Clean(g.Columns[i].Head)
	}
	return g
}

func (c *CaseSummary) row(s *SubjectSummary, scales []scale, columns int) console.GridRow {
	r := console.GridRow{Cells: []console.Cell{console.TextCell(c.label(s))}}
	switch {
	case s.Skipped != "":
		r.Note = "skipped: " + s.Skipped
		return r
	case s.Rounds == 0 && s.Refused > 0:
		r.Note = "all rounds excluded: " + s.RefusedWhy
		return r
	case s.Rounds == 0:
		r.Note = "no rounds"
		return r
	}
	rounds := fmt.Sprint(s.Rounds)
	if s.Refused > 0 {
		rounds = fmt.Sprintf("%d of %d", s.Rounds, s.Rounds+s.Refused)
	}
	r.Cells = append(r.Cells, console.TextCell(rounds))
	for i, metric := range c.Metrics {
		v, ok := s.Metrics[metric]
		r.Cells = append(r.Cells, valueCell(v, ok, scales[i]))
		if i == 0 {
			r.Cells = append(r.Cells, c.ratioCells(s, v)...)
		}
	}
	return r
}

// label is a subject's name with its part in the case.
func (c *CaseSummary) label(s *SubjectSummary) string {
	var parts []string
	if s.Name == c.Baseline {
		parts = append(parts, "baseline")
	}
	if s.Name == c.Oracle {
		parts = append(parts, "oracle")
	}
	if len(parts) == 0 {
		return s.Name
	}
	return s.Name + " (" + strings.Join(parts, ", ") + ")"
}

func (c *CaseSummary) medians(metric string) []float64 {
	var values []float64
	for _, s := range c.Subjects {
		if v, ok := s.Metrics[metric]; ok {
			values = append(values, v.Median)
		}
	}
	return values
}

func (c *CaseSummary) hasBest(metric string) bool {
	return slices.ContainsFunc(c.Subjects, func(s SubjectSummary) bool { return s.Metrics[metric].Best })
}

func valueCell(v Value, known bool, s scale) console.Cell {
	if !known {
		return console.Cell{Text: "-", Tone: console.Faint}
	}
	text := s.write(v.Median)
	if v.CI != nil {
		text += " ± " + s.write(half(v.Median, *v.CI))
	}
	if v.Best {
		return console.Cell{Text: text, Tone: console.Good, Best: true}
	}
	return console.Cell{Text: text}
}

// ratioCells returns the ratios of the primary metric to the baseline and to the oracle.
func (c *CaseSummary) ratioCells(s *SubjectSummary, v Value) []console.Cell {
	cells := []console.Cell{ratioCell(v.Baseline, s.Name == c.Baseline, c.Primary)}
	if c.Oracle != "" && c.Oracle != c.Baseline {
		r := ratioCell(v.Oracle, s.Name == c.Oracle, c.Primary)
		r.Text, r.Tone = strings.TrimPrefix(r.Text, "~"), console.Plain
		cells = append(cells, r)
	}
	return cells
}

func ratioCell(r *measure.Ratio, self bool, metric string) console.Cell {
	switch {
	case self:
		return console.Cell{Text: "1", Tone: console.Faint}
	case r == nil:
		return console.Cell{Text: "-", Tone: console.Faint}
	case r.CI == nil:
		return console.Cell{Text: factor(r.Ratio)}
	case !r.Distinct():
		return console.Cell{Text: "~" + factor(r.Ratio)}
	case better(metric)*(r.Ratio-1) > 0:
		return console.Cell{Text: factor(r.Ratio), Tone: console.Good}
	}
	return console.Cell{Text: factor(r.Ratio), Tone: console.Bad}
}

// notes returns the lines below a case's table.
func notes(c *CaseSummary) []string {
	var all []string
	for _, s := range c.Subjects {
		name := console.Clean(s.Name)
		if s.Regret != nil {
			all = append(all, fmt.Sprintf("%s: regret %s connections of %d (warm-up included), %s in the second half",
				name, lost(s.Regret.Total), s.Regret.Connections, lost(s.Regret.LastHalf)))
		}
		if s.Errors > 0 {
			all = append(all, fmt.Sprintf("%s: %s; the first: %s", name, plural(int(s.Errors), "error"), s.FirstError))
		}
		if s.Refused > 0 && s.Rounds > 0 {
			all = append(all, fmt.Sprintf("%s: %s excluded; the first: %s", name, plural(s.Refused, "round"), s.RefusedWhy))
		}
	}
	return all
}

// lost formats a number of connections; adding 0 turns -0 into 0.
func lost(v float64) string { return strconv.FormatFloat(math.Round(10*v)/10+0, 'f', 1, 64) }

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n) + " " + one + "s"
}
