package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/tcpilot/tcpilot/lab/measure"
)

// pageData is what the page's script draws.
type pageData struct {
	CC    map[string]int `json:"cc"` // colour of each congestion control
	Cases []*casePlots   `json:"cases"`
}

// casePlots are the plots of a case; those without data are empty.
type casePlots struct {
	ID       string        `json:"id"`
	Subjects []plotSubject `json:"subjects"`
	Series   []*roundPlot  `json:"series,omitempty"`  // one round of each subject
	CDFs     []cdfPlot     `json:"cdfs,omitempty"`    // by group of requests
	Group    string        `json:"group,omitempty"`   // the connections that regret counts; empty is all
	Regret   []regretPlot  `json:"regret,omitempty"`  // of those that learn, and the baseline's
	Choices  []choicePlot  `json:"choices,omitempty"` // of those that learn
}

type plotSubject struct {
	Name   string `json:"name"`
	Colour int    `json:"colour"`
}

// num is a number with as many digits as a plot can show; NaN is null.
type num float64

// MarshalJSON writes four significant digits.
func (n num) MarshalJSON() ([]byte, error) {
	v := float64(n)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return []byte("null"), nil
	}
	if a := math.Abs(v); a >= 1000 && a < 1e15 {
		step := math.Pow(10, math.Floor(math.Log10(a))-3)
		return strconv.AppendFloat(nil, math.Round(v/step)*step, 'f', 0, 64), nil
	}
	return strconv.AppendFloat(nil, v, 'g', 4, 64), nil
}

func newCasePlots(c *CaseRounds, s *CaseSummary, id string, colours []int, ccs map[string]int, budget int) *casePlots {
	p := &casePlots{ID: id}
	for i, subject := range s.Subjects {
		p.Subjects = append(p.Subjects, plotSubject{subject.Name, colours[i]})
		if r := typical(c, s, subject.Name); r != nil {
			if plot := newRoundPlot(i, r, budget, ccs); plot != nil {
				p.Series = append(p.Series, plot)
			}
		}
	}
	p.CDFs = newCDFs(c, s)
	p.Group, _ = measure.Split(s.Primary)
	p.Regret = newRegretPlots(c, s)
	p.Choices = newChoicePlots(c, s, ccs)
	return p
}

// typical returns the round of a subject that is nearest to its median in the primary
// metric, the last if several are equally near, or nil if none has points.
func typical(c *CaseRounds, s *CaseSummary, subject string) *RoundData {
	var best *RoundData
	least := math.Inf(1)
	median := s.Subject(subject).Metrics[s.Primary].Median
	for _, r := range c.Rounds {
		if r.Subject != subject || !r.counts() || len(r.Points) == 0 {
			continue
		}
		distance := math.Inf(1)
		if v, ok := r.metric(s.Primary); ok {
			distance = math.Abs(v - median)
		}
		if distance <= least {
			best, least = r, distance
		}
	}
	return best
}

// familiar are congestion controls that have the same colour on every page. Colour 0 is for
// subjects that learn.
var familiar = map[string]int{"cubic": 1, "bbr": 2, "reno": 3, "dctcp": 4, "htcp": 5}

// colourCount is how many colours page.css has.
const colourCount = 8

// ccColour returns the colour of a congestion control. Those that are not familiar get
// the remaining colours in the order of the calls.
func ccColour(ccs map[string]int, cc string) int {
	if colour, ok := ccs[cc]; ok {
		return colour
	}
	colour, ok := familiar[cc]
	if !ok {
		others := 0
		for known := range ccs {
			if _, ok := familiar[known]; !ok {
				others++
			}
		}
		colour = 6 + others%2
	}
	ccs[cc] = colour
	return colour
}

// subjectColours gives fixed congestion controls their own colour, the first subject
// that learns colour 0, and the others the remaining colours.
func subjectColours(subjects []SubjectSummary, ccs map[string]int) []int {
	colours := make([]int, len(subjects))
	used := make([]bool, colourCount)
	take := func(i, colour int) { colours[i], used[colour] = colour, true }
	var rest []int
	for i, s := range subjects {
		switch {
		case s.Learns && !used[0]:
			take(i, 0)
		case s.Fixed != "" && !used[ccColour(ccs, s.Fixed)]:
			take(i, ccColour(ccs, s.Fixed))
		default:
			rest = append(rest, i)
		}
	}
	for n, i := range rest {
		if free := slices.Index(used, false); free >= 0 {
			take(i, free)
		} else {
			colours[i] = n % colourCount
		}
	}
	return colours
}

// notes say what the plots leave out.
func (d *pageData) notes() []string {
	var shown, all, columns int
	for _, c := range d.Cases {
		for _, s := range c.Series {
			shown, all = shown+s.Shown, all+s.Of
			columns = max(columns, s.Columns)
		}
	}
	if all == 0 {
		return nil
	}
	note := fmt.Sprintf("Over time, each subject shows its round nearest to the median, reduced to means over at most %d steps of time", columns)
	if shown < all {
		note += fmt.Sprintf(" and to the %d longest of %d connections", shown, all)
	}
	return []string{note + "."}
}
