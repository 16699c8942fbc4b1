package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/tcpilot/tcpilot/lab/measure"
)

// Verdict is the result of comparing the same figure of two reports.
type Verdict string

// The verdicts. Better and Worse describe B, by the metric's direction.
const (
	// Agree: the confidence intervals of the medians overlap, or the medians differ by less
	// than the share negligible.
	Agree   Verdict = "agree"
	Better  Verdict = "better"
	Worse   Verdict = "worse"
	Unknown Verdict = "unknown" // too few rounds for an interval
	OnlyA   Verdict = "only in A"
	OnlyB   Verdict = "only in B"
)

// negligible is a difference of medians, as a share, that does not matter even if both
// medians are known more exactly: links are calibrated only to a few percent.
const negligible = 0.01

// Comparison is two reports side by side.
type Comparison struct {
	A Run `json:"a"`
	B Run `json:"b"`
	// Differences are those of machine and run that a reader must know about, Cases
	// those between cases of the same name.
	Differences []string          `json:"differences,omitempty"`
	Cases       []CaseDifferences `json:"cases,omitempty"`
	Figures     []Figure          `json:"figures"`
	Counts      map[Verdict]int   `json:"counts"`
}

// CaseDifferences are the differences between a case of one report and the case of the
// same name of the other.
type CaseDifferences struct {
	Scenario    string   `json:"scenario"`
	Case        string   `json:"case"`
	Differences []string `json:"differences"`
}

// Figure is one metric of one subject in one case.
type Figure struct {
	Scenario string         `json:"scenario"`
	Case     string         `json:"case"`
	Subject  string         `json:"subject"`
	Metric   string         `json:"metric"`
	Primary  bool           `json:"primary,omitempty"` // of the case
	A        *Value         `json:"a,omitempty"`
	B        *Value         `json:"b,omitempty"`
	Ratio    *measure.Ratio `json:"ratio,omitempty"` // B/A, unpaired
	Verdict  Verdict        `json:"verdict"`
}

// Compared compares b with a: every metric that the cases of either show.
func Compared(a, b *Report) Comparison {
	c := Comparison{A: a.Run, B: b.Run, Differences: differences(&a.Run, &b.Run), Counts: make(map[Verdict]int)}
	for _, ours := range a.Cases {
		c.addCase(ours, find(b, ours))
	}
	for _, theirs := range b.Cases {
		if find(a, theirs) == nil {
			c.addCase(nil, theirs)
		}
	}
	for _, f := range c.Figures {
		c.Counts[f.Verdict]++
	}
	return c
}

// compared lists what differs between A and B.
type compared []string

func (all *compared) add(what, a, b string) {
	if a != b {
		*all = append(*all, fmt.Sprintf("%s: %s in A, %s in B", what, cmp.Or(a, "none"), cmp.Or(b, "none")))
	}
}

func differences(a, b *Run) []string {
	var all compared
	yes := map[bool]string{true: "yes", false: "no"}
	all.add("kernel", a.Kernel, b.Kernel)
	all.add("processor", cpus(a), cpus(b))
	all.add("emulated processor", yes[a.Emulated], yes[b.Emulated])
	all.add("virtual time", yes[a.VirtualTime], yes[b.VirtualTime])
	all.add("quick", yes[a.Quick], yes[b.Quick])
	all.add("tcpilot", a.Tcpilot, b.Tcpilot)
	return all
}

func caseDifferences(a, b *Case) []string {
	var all compared
	all.add("link", a.Link, b.Link)
	all.add("backend", a.Backend, b.Backend)
	all.add("first metric", a.Primary, b.Primary)
	all.add("baseline", a.Baseline, b.Baseline)
	return all
}

// find returns the same case of another report.
func find(r *Report, c *CaseRounds) *CaseRounds {
	i := slices.IndexFunc(r.Cases, func(o *CaseRounds) bool { return o.Scenario == c.Scenario && o.Case.Case == c.Case.Case })
	if i < 0 {
		return nil
	}
	return r.Cases[i]
}

// addCase adds the figures of a case; a or b may be nil.
func (c *Comparison) addCase(a, b *CaseRounds) {
	from := a
	if from == nil {
		from = b
	}
	if a != nil && b != nil {
		if differ := caseDifferences(&a.Case, &b.Case); len(differ) > 0 {
			c.Cases = append(c.Cases, CaseDifferences{a.Scenario, a.Case.Case, differ})
		}
	}
	var subjects, metrics []string
	for _, side := range []*CaseRounds{a, b} {
		if side == nil {
			continue
		}
		for _, s := range side.Subjects {
			subjects = appendNew(subjects, s.Name)
		}
		for _, m := range append([]string{side.Primary}, side.Metrics...) {
			metrics = appendNew(metrics, m)
		}
	}
	for _, subject := range subjects {
		for _, metric := range metrics {
			f := Figure{Scenario: from.Scenario, Case: from.Case.Case, Subject: subject, Metric: metric, Primary: metric == from.Primary}
			if f.fill(a.series(subject, metric), b.series(subject, metric)) {
				c.Figures = append(c.Figures, f)
			}
		}
	}
}

func appendNew(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// series returns a subject's values of a metric; none if the case is nil.
func (c *CaseRounds) series(subject, metric string) []float64 {
	if c == nil {
		return nil
	}
	return measured(c.values(subject, metric))
}

// fill computes the figure. It returns false if neither side has it.
func (f *Figure) fill(a, b []float64) bool {
	if len(a) > 0 {
		v := valueOf(f.Metric, a)
		f.A = &v
	}
	if len(b) > 0 {
		v := valueOf(f.Metric, b)
		f.B = &v
	}
	if ratio, ok := measure.UnpairedRatio(b, a); ok {
		f.Ratio = &ratio
	}
	switch {
	case f.A == nil && f.B == nil:
		return false
	case f.B == nil:
		f.Verdict = OnlyA
	case f.A == nil:
		f.Verdict = OnlyB
	case f.A.CI == nil || f.B.CI == nil:
		f.Verdict = Unknown
	case f.A.CI.Overlaps(*f.B.CI), math.Abs(f.B.Median-f.A.Median) < negligible*math.Abs(f.A.Median):
		f.Verdict = Agree
	case better(f.Metric)*(f.B.Median-f.A.Median) > 0:
		f.Verdict = Better
	default:
		f.Verdict = Worse
	}
	return true
}
