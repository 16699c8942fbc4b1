package report

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

const (
	cdfSteps   = 180 // steps of the logarithm of time
	curveSteps = 300 // steps of a curve over connections
	choiceBins = 200 // maximum number of bins over connections
)

// cdfPlot is the distribution of completion times of one group's requests, over all
// rounds that count.
type cdfPlot struct {
	Group  string     `json:"group"`
	Times  []num      `json:"x"` // seconds, evenly spaced in their logarithm
	Curves []cdfCurve `json:"curves"`
}

type cdfCurve struct {
	Subject int   `json:"s"`
	N       int   `json:"count"` // requests
	Share   []num `json:"y"`     // completed by each of the times
}

func newCDFs(c *CaseRounds, s *CaseSummary) []cdfPlot {
	times := make(map[string]map[string][]float64) // by group and subject
	var groups []string
	for _, r := range c.Rounds {
		if !r.counts() {
			continue
		}
		for i := range r.Requests {
			q := &r.Requests[i]
			if q.Elapsed <= 0 {
				continue
			}
			if times[q.Group] == nil {
				times[q.Group] = make(map[string][]float64)
				groups = append(groups, q.Group)
			}
			times[q.Group][r.Subject] = append(times[q.Group][r.Subject], q.Elapsed.Seconds())
		}
	}
	slices.Sort(groups)
	var plots []cdfPlot
	for _, group := range groups {
		plots = append(plots, newCDF(group, times[group], s))
	}
	return plots
}

func newCDF(group string, bySubject map[string][]float64, s *CaseSummary) cdfPlot {
	low, high := math.Inf(1), 0.0
	for _, times := range bySubject {
		slices.Sort(times)
		low, high = min(low, times[0]), max(high, times[len(times)-1])
	}
	p := cdfPlot{Group: group}
	var grid []float64
	for i := range cdfSteps + 1 {
		t := low * math.Pow(high/low, float64(i)/cdfSteps)
		grid = append(grid, t)
		p.Times = append(p.Times, num(t))
	}
	grid[cdfSteps] = high // exactly, without the rounding error
	for i := range s.Subjects {
		times := bySubject[s.Subjects[i].Name]
		if len(times) == 0 {
			continue
		}
		curve := cdfCurve{Subject: i, N: len(times)}
		for _, t := range grid {
			below := sort.Search(len(times), func(i int) bool { return times[i] > t })
			curve.Share = append(curve.Share, num(float64(below)/float64(len(times))))
		}
		p.Curves = append(p.Curves, curve)
	}
	return p
}

// regretPlot is a subject's regret over its connections.
type regretPlot struct {
	Subject int   `json:"s"`
	At      []int `json:"x"` // number of the connection, from 1
	Lost    []num `json:"y"`
}

// newRegretPlots makes plots of the subjects that learn, and of the baseline for
// comparison.
func newRegretPlots(c *CaseRounds, s *CaseSummary) []regretPlot {
	if !slices.ContainsFunc(s.Subjects, func(s SubjectSummary) bool { return s.Regret != nil }) {
		return nil
	}
	var plots []regretPlot
	for i := range s.Subjects {
		subject := &s.Subjects[i]
		var sums []float64
		if subject.Regret != nil {
			sums = subject.Regret.sums
		} else if subject.Name == s.Baseline && s.Baseline != s.Oracle {
			sums = c.regret(s, subject.Name)
		}
		if len(sums) == 0 {
			continue
		}
		p := regretPlot{Subject: i}
		for n := range min(len(sums), curveSteps) {
			at := (n + 1) * len(sums) / min(len(sums), curveSteps)
			p.At, p.Lost = append(p.At, at), append(p.Lost, num(sums[at-1]))
		}
		plots = append(plots, p)
	}
	return plots
}

// choicePlot shows with which congestion controls a subject's connections began, by the
// number of the connection, in bins. As in regret, connections of refused rounds are
// excluded. So are the groups whose congestion control does not depend on the subject
// (tunedGroups).
type choicePlot struct {
	Subject     int         `json:"s"`
	Connections int         `json:"count"`
	Warmup      [][2]int    `json:"warmup"` // each warm-up: number of connections before its first, and up to its last
	Rounds      []int       `json:"rounds"` // connections before each round but the first
	Rows        []choiceRow `json:"rows"`
}

type choiceRow struct {
	CC    string `json:"cc"`
	Count int    `json:"count"`
	Share []num  `json:"y"` // of each bin
}

func newChoicePlots(c *CaseRounds, s *CaseSummary, ccs map[string]int) []choicePlot {
	var plots []choicePlot
	for i := range s.Subjects {
		if s.Subjects[i].Learns {
			if p := newChoicePlot(c, s, i); len(p.Rows) > 0 {
				plots = append(plots, p)
				for _, row := range p.Rows {
					ccColour(ccs, row.CC)
				}
			}
		}
	}
	return plots
}

// tunedGroups returns the groups of connections whose congestion control depends on the
// subject, or all groups if none does.
func (c *CaseRounds) tunedGroups() map[string]bool {
	first, tuned, all := make(map[string]string), make(map[string]bool), make(map[string]bool)
	for _, r := range c.Rounds {
		for i := range r.Connections {
			conn := &r.Connections[i]
			all[conn.Group] = true
			if conn.CC == "" {
				continue // not known
			}
			if cc, ok := first[conn.Group]; !ok {
				first[conn.Group] = conn.CC
			} else if cc != conn.CC {
				tuned[conn.Group] = true
			}
		}
	}
	if len(tuned) == 0 {
		return all
	}
	return tuned
}

// warm adds connections of a warm-up.
func (p *choicePlot) warm(from, to int) {
	if last := len(p.Warmup) - 1; last >= 0 && p.Warmup[last][1] == from {
		p.Warmup[last][1] = to
	} else {
		p.Warmup = append(p.Warmup, [2]int{from, to})
	}
}

func newChoicePlot(c *CaseRounds, s *CaseSummary, subject int) choicePlot {
	p := choicePlot{Subject: subject}
	tuned := c.tunedGroups()
	var chosen []string
	for _, r := range c.Rounds {
		if r.Subject != s.Subjects[subject].Name || r.Refused != "" {
			continue
		}
		begin := len(chosen)
		if begin > 0 {
			p.Rounds = append(p.Rounds, begin)
		}
		for _, conn := range byStart(r.Connections) {
			if conn.CC != "" && tuned[conn.Group] {
				chosen = append(chosen, conn.CC)
			}
		}
		if r.Repeat == 0 {
			p.warm(begin, len(chosen))
		}
	}
	p.Connections = len(chosen)
	bins := min(len(chosen), choiceBins)
	counts := make([]float64, bins)
	byCC := make(map[string][]float64)
	for i, cc := range chosen {
		if byCC[cc] == nil {
			byCC[cc] = make([]float64, bins)
		}
		bin := i * bins / len(chosen)
		byCC[cc][bin]++
		counts[bin]++
	}
	for cc, bin := range byCC {
		row := choiceRow{CC: cc}
		for i := range bin {
			row.Count += int(bin[i])
			row.Share = append(row.Share, num(bin[i]/counts[i]))
		}
		p.Rows = append(p.Rows, row)
	}
	slices.SortFunc(p.Rows, func(a, b choiceRow) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.CC, b.CC)) })
	return p
}
