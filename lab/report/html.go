package report

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"path/filepath"
	"strings"

	"github.com/tcpilot/tcpilot/internal/console"
)

//go:embed assets
var assets embed.FS

// page is what assets/page.html shows.
type page struct {
	Style, PlotStyle   template.CSS
	Script, PlotScript template.JS
	Runs               []runView
	Columns            []console.Column // of the overview
	Overview           []overviewView
	Cases              []caseView
	Notes              []string
	Data               pageData
}

type runView struct {
	Name     string // if there are several
	Line     string
	Problems []string
	Command  string
}

type overviewView struct {
	ID   string
	Run  string
	Cell []console.Cell
	Note string
}

// caseView is one case of the page.
type caseView struct {
	ID          string
	Run         string // the report's name if there are several
	Summary     CaseSummary
	Link        string
	Source      string
	Expect      string
	Columns     []console.Column
	Rows        []subjectView
	Axis        axis // for the strips in the table
	Notes       []string
	Panels      []panel
	Calibration string
	States      []stateView
	Plots       *casePlots
}

// subjectView is a row of the case's table.
type subjectView struct {
	console.GridRow
	Colour int
	Strip  *strip
}

type stateView struct{ Subject, Text string }

// HTML writes reports as one self-contained page: tables, and plots that a script in
// the page draws.
func HTML(w io.Writer, reports ...*Report) error {
	p := page{Data: pageData{CC: make(map[string]int)}}
	if err := p.load(); err != nil {
		return fmt.Errorf("load assets: %w", err)
	}
	budget := pointBudget(reports)
	var cases []CaseSummary
	for i, name := range names(reports) {
		r := reports[i]
		p.Runs = append(p.Runs, runView{name, runLine(r), problems(r), r.Run.Command})
		for _, c := range r.Cases {
			view := newCaseView(c, fmt.Sprintf("case-%d", len(p.Cases)+1), p.Data.CC, budget)
			view.Run = name
			p.Cases = append(p.Cases, view)
			p.Data.Cases = append(p.Data.Cases, view.Plots)
			cases = append(cases, view.Summary)
		}
	}
	p.setOverview(cases)
	p.Notes = p.Data.notes()
	t, err := template.ParseFS(assets, "assets/page.html", "assets/case.html")
	if err != nil {
		return fmt.Errorf("parse page: %w", err)
	}
	if err := t.ExecuteTemplate(w, "page.html", &p); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

// names gives reports distinct names: their files without directories, with a number if
// these are equal. A single report needs no name.
func names(reports []*Report) []string {
	all := make([]string, len(reports))
	if len(reports) == 1 {
		return all
	}
	seen := make(map[string]bool)
	for i, r := range reports {
		all[i] = "report"
		if r.File != "" {
			all[i] = filepath.Base(r.File)
		}
		if seen[all[i]] {
			all[i] += fmt.Sprintf(" (%d)", i+1)
		}
		seen[all[i]] = true
	}
	return all
}

// load reads the embedded files. They are part of the program, so they are not escaped.
func (p *page) load() error {
	var texts [5]string
	for i, name := range []string{"page.css", "uplot/uPlot.min.css", "uplot/uPlot.iife.min.js", "draw.js", "page.js"} {
		text, err := assets.ReadFile("assets/" + name)
		if err != nil {
			return err
		}
		texts[i] = string(text)
	}
	p.Style, p.PlotStyle = template.CSS(texts[0]), template.CSS(texts[1])
	p.PlotScript, p.Script = template.JS(texts[2]), template.JS(texts[3]+texts[4])
	return nil
}

func (p *page) setOverview(cases []CaseSummary) {
	g := overviewGrid(cases, nil)
	p.Columns = g.Columns
	for i, r := range g.Rows {
		p.Overview = append(p.Overview, overviewView{p.Cases[i].ID, p.Cases[i].Run, r.Cells, r.Note})
	}
}

func newCaseView(c *CaseRounds, id string, ccs map[string]int, budget int) caseView {
	s := c.summarise()
	v := caseView{
		ID: id, Summary: s, Link: linkLine(&s), Source: c.Source, Expect: c.Expect, Notes: notes(&s),
		Calibration: pretty(c.Calibration), Plots: &casePlots{ID: id},
	}
	if s.Refused != "" && len(c.Rounds) == 0 {
		return v
	}
	colours := subjectColours(s.Subjects, ccs)
	g := caseGrid(&s)
	v.Columns = g.Columns
	v.Axis = newAxis(c, &s, s.Primary)
	for i := range s.Subjects {
		v.Rows = append(v.Rows, subjectView{g.Rows[i], colours[i], v.Axis.strip(c, &s.Subjects[i], s.Primary)})
	}
	for _, metric := range s.Metrics[1:] {
		if p, ok := newPanel(c, &s, metric, colours); ok {
			v.Panels = append(v.Panels, p)
		}
	}
	for _, r := range c.Rounds {
		if text := pretty(r.State); text != "" {
			v.States = append(v.States, stateView{fmt.Sprintf("%s, round %d", r.Subject, r.Repeat), text})
		}
	}
	v.Plots = newCasePlots(c, &s, id, colours, ccs, budget)
	return v
}

// pretty indents JSON; the result is empty if there is none.
func pretty(raw json.RawMessage) string {
	if len(raw) == 0 || string(raw) == "null" {
		return ""
	}
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return string(raw)
	}
	return b.String()
}

// Scenarios groups the cases for the table of contents.
func (p *page) Scenarios() []scenarioView {
	var all []scenarioView
	for i := range p.Cases {
		c := &p.Cases[i]
		if n := len(all); n == 0 || all[n-1].Name != c.Summary.Scenario || all[n-1].Run != c.Run {
			all = append(all, scenarioView{Name: c.Summary.Scenario, Run: c.Run, ID: c.ID})
		}
		if c.Summary.Case != "" {
			last := &all[len(all)-1]
			last.Cases = append(last.Cases, c)
		}
	}
	return all
}

type scenarioView struct {
	Name, Run, ID string
	Cases         []*caseView
}

// Title is the title of the page.
func (p *page) Title() string {
	var names []string
	for _, s := range p.Scenarios() {
		names = append(names, s.Name)
	}
	if len(names) > 3 {
		names = append(names[:3], "...")
	}
	return "tcpilot lab: " + strings.Join(names, ", ")
}
