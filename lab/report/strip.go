package report

import (
	"math"
	"strconv"

	"github.com/tcpilot/tcpilot/lab/measure"
)

// Sizes of strips and panels, in the units of their SVG.
const (
	stripWidth  = 180
	stripHeight = 24
	panelLeft   = 96 // room for the names of subjects
	panelRow    = 22
	inset       = 6 // distance of the first and last value from the edge
	maxLabel    = 14
)

// axis maps a metric's values to x.
type axis struct {
	Metric    string
	low, high float64
	width     float64
	scale     scale
	Reference float64 // the baseline's median, in x; NaN if there is none
	HasRounds bool
}

// newAxis covers all rounds that count and all intervals. It starts at 0 if the values
// then still use at least half of it.
func newAxis(c *CaseRounds, s *CaseSummary, metric string) axis {
	a := axis{Metric: metric, low: math.Inf(1), high: math.Inf(-1), width: stripWidth, Reference: math.NaN()}
	var all []float64
	for _, subject := range s.Subjects {
		all = append(all, c.series(subject.Name, metric)...)
		if ci := subject.Metrics[metric].CI; ci != nil {
			all = append(all, ci.Low, ci.High)
		}
	}
	for _, v := range all {
		a.low, a.high = min(a.low, v), max(a.high, v)
	}
	if len(all) == 0 {
		return a
	}
	a.HasRounds = true
	if a.low > 0 && a.low < a.high/2 {
		a.low = 0
	}
	a.scale = scaleOf(metric, []float64{a.low, a.high})
	if b := s.Subject(s.Baseline); b != nil {
		if v, ok := b.Metrics[metric]; ok {
			a.Reference = a.X(v.Median)
		}
	}
	return a
}

// X returns the x of a value.
func (a *axis) X(v float64) float64 {
	if a.low == a.high {
		return a.width / 2
	}
	return round1(inset + (v-a.low)/(a.high-a.low)*(a.width-2*inset))
}

func round1(v float64) float64 { return math.Round(v*10) / 10 }

// HasReference reports whether there is a baseline to show.
func (a axis) HasReference() bool { return !math.IsNaN(a.Reference) }

// Unit is the unit of the ends.
func (a axis) Unit() string { return a.scale.unit }

// Ends returns the ends of the axis as text. If all values are the same, both are empty
// and Only is set.
func (a axis) Ends() [2]string {
	if a.low == a.high {
		return [2]string{}
	}
	return [2]string{a.scale.write(a.low), a.scale.write(a.high)}
}

// Only returns the value as text if all values are the same.
func (a axis) Only() string {
	if a.low != a.high {
		return ""
	}
	return a.scale.write(a.low)
}

// strip shows the rounds of one subject: a dot for each, a line for the median, and a
// bar for its confidence interval.
type strip struct {
	Dots             []dot
	Median, Low, Bar float64 // x, x, width; no bar if 0
	Reference        float64
	HasReference     bool
	Text             string // description for screen readers
}

type dot struct {
	X    float64
	Text string
}

// strip returns nil for a subject without rounds.
func (a *axis) strip(c *CaseRounds, s *SubjectSummary, metric string) *strip {
	v, ok := s.Metrics[metric]
	if !ok {
		return nil
	}
	p := &strip{Median: a.X(v.Median), Text: s.Name + ": " + value(metric, v.Median)}
	if a.HasReference() {
		p.Reference, p.HasReference = a.Reference, true
	}
	if v.CI != nil {
		p.Low, p.Bar = a.X(v.CI.Low), max(1, round1(a.X(v.CI.High)-a.X(v.CI.Low)))
		p.Text += ", 95 %: " + value(metric, v.CI.Low) + " to " + value(metric, v.CI.High)
	}
	for _, r := range c.Rounds {
		if r.Subject != s.Name || !r.counts() {
			continue
		}
		if v, ok := r.metric(metric); ok {
			p.Dots = append(p.Dots, dot{a.X(v), "round " + strconv.Itoa(r.Repeat) + ": " + value(metric, v)})
		}
	}
	return p
}

// panel shows the strips of all subjects for one metric.
type panel struct {
	Metric, Doc string
	Axis        axis
	Lines       []panelLine
}

type panelLine struct {
	Name   string
	Colour int
	Y      int // y of its middle
	Strip  *strip
}

// newPanel returns false if no subject has the metric.
func newPanel(c *CaseRounds, s *CaseSummary, metric string, colours []int) (panel, bool) {
	m, _ := measure.Find(metric)
	p := panel{Metric: metric, Doc: m.Doc, Axis: newAxis(c, s, metric)}
	for i := range s.Subjects {
		if strip := p.Axis.strip(c, &s.Subjects[i], metric); strip != nil {
			p.Lines = append(p.Lines, panelLine{shorten(s.Subjects[i].Name), colours[i], len(p.Lines)*panelRow + panelRow/2, strip})
		}
	}
	return p, len(p.Lines) > 0
}

func shorten(name string) string {
	if runes := []rune(name); len(runes) > maxLabel {
		return string(runes[:maxLabel-1]) + "…"
	}
	return name
}

// Bottom is the y of the axis; Height and Width are those of the panel.
func (p *panel) Bottom() int { return len(p.Lines)*panelRow + 4 }
func (p *panel) Height() int { return p.Bottom() + 18 }
func (p *panel) Width() int  { return panelLeft + stripWidth }
