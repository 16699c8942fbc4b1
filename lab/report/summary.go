package report

import (
	"math"
	"slices"

	"github.com/tcpilot/tcpilot/lab/measure"
)

// Summary is the result of a report.
type Summary struct {
	File      string        `json:"file,omitempty"`
	Run       Run           `json:"run"`
	End       *End          `json:"end"`                 // null if the run was killed
	Truncated string        `json:"truncated,omitempty"` // what is missing if the run was killed
	Cases     []CaseSummary `json:"cases"`
}

// CaseSummary is the result of a case.
type CaseSummary struct {
	Scenario string           `json:"scenario"`
	Case     string           `json:"case"`
	Title    string           `json:"title"`
	Link     string           `json:"link"`
	Backend  string           `json:"backend"`
	Primary  string           `json:"primary"`
	Metrics  []string         `json:"metrics"` // the case's, Primary first
	Baseline string           `json:"baseline"`
	Ratios   bool             `json:"ratios,omitempty"` // see Case
	Oracle   string           `json:"oracle,omitempty"` // the best of the fixed congestion controls by Primary
	Refused  string           `json:"refused,omitempty"`
	Subjects []SubjectSummary `json:"subjects"`
}

// fullName is SCENARIO/CASE, or SCENARIO if it has only one case.
func (c *CaseSummary) fullName() string { return fullName(c.Scenario, c.Case) }

// Subject returns the subject with this name, or nil.
func (c *CaseSummary) Subject(name string) *SubjectSummary {
	for i := range c.Subjects {
		if c.Subjects[i].Name == name {
			return &c.Subjects[i]
		}
	}
	return nil
}

// SubjectSummary is the result of a subject in a case.
type SubjectSummary struct {
	Name    string `json:"name"`
	Fixed   string `json:"fixed,omitempty"`
	Learns  bool   `json:"learns,omitempty"`
	Skipped string `json:"skipped,omitempty"`
	Rounds  int    `json:"rounds"` // that count
	Warmup  int    `json:"warmup,omitempty"`
	// Refused is the number of refused rounds, RefusedWhy the reason of the first.
	Refused    int    `json:"refused,omitempty"`
	RefusedWhy string `json:"refused_why,omitempty"`
	// Errors is the number of errors in the rounds that count.
	Errors     uint64           `json:"errors,omitempty"`
	FirstError string           `json:"first_error,omitempty"`
	Metrics    map[string]Value `json:"metrics"` // of the rounds that count, by name
	Regret     *Regret          `json:"regret,omitempty"`
}

// Value is a metric over the rounds of a subject.
type Value struct {
	Unit     string            `json:"unit,omitempty"` // of Median and quartiles, as of measure.Metric
	N        int               `json:"n"`
	Median   float64           `json:"median"`
	Q1       float64           `json:"q1"`
	Q3       float64           `json:"q3"`
	CI       *measure.Interval `json:"ci,omitempty"`       // of the median; nil for too few rounds
	Baseline *measure.Ratio    `json:"baseline,omitempty"` // to the baseline, round by round
	Oracle   *measure.Ratio    `json:"oracle,omitempty"`   // to the oracle, round by round
	// Pooled is the ratio to the baseline over the requests of all rounds together; for
	// completion times in cases with Ratios.
	Pooled *measure.Ratio `json:"pooled,omitempty"`
	Best   bool           `json:"best,omitempty"` // of the subjects of the case, unless all are alike
}

// Summary computes the result of the report.
func (r *Report) Summary() Summary {
	return Summary{r.File, r.Run, r.End, r.Truncated, Summarise(r)}
}

// Summarise computes the result of each case.
func Summarise(r *Report) []CaseSummary {
	all := make([]CaseSummary, 0, len(r.Cases))
	for _, c := range r.Cases {
		all = append(all, c.summarise())
	}
	return all
}

// summarise computes the result of the case.
func (c *CaseRounds) summarise() CaseSummary {
	s := CaseSummary{
		Scenario: c.Scenario, Case: c.Case.Case, Title: c.Title, Link: c.Link, Backend: c.Backend,
		Primary: c.Primary, Metrics: slices.Clone(c.Metrics), Baseline: c.Baseline, Ratios: c.Ratios, Refused: c.Refused,
	}
	if !slices.Contains(s.Metrics, s.Primary) {
		s.Metrics = slices.Insert(s.Metrics, 0, s.Primary)
	}
	for _, subject := range c.Subjects {
		s.Subjects = append(s.Subjects, c.subject(subject))
	}
	s.Oracle = oracle(&s)
	for _, name := range c.names(s.Metrics) {
		c.compare(&s, name)
	}
	c.addRegret(&s)
	return s
}

// names returns the metrics to compute: those that are shown, and all others of whole
// rounds.
func (c *CaseRounds) names(shown []string) []string {
	names := slices.Clone(shown)
	for _, m := range measure.Metrics {
		if !slices.Contains(names, m.Name) {
			names = append(names, m.Name)
		}
	}
	return names
}

func (c *CaseRounds) subject(subject Subject) SubjectSummary {
	s := SubjectSummary{
		Name: subject.Name, Fixed: subject.Fixed, Learns: subject.Learns, Skipped: subject.Skipped,
		Metrics: make(map[string]Value),
	}
	for _, r := range c.Rounds {
		switch {
		case r.Subject != s.Name:
			continue
		case r.Refused != "":
			if s.Refused++; s.RefusedWhy == "" {
				s.RefusedWhy = r.Refused
			}
			continue
		case r.Repeat == 0:
			s.Warmup++
			continue
		}
		s.Rounds++
		s.Errors += r.Errors
		if s.FirstError == "" {
			s.FirstError = r.FirstError
		}
	}
	for _, name := range c.names(c.Metrics) {
		if values := c.values(s.Name, name); len(values) > 0 {
			s.Metrics[name] = valueOf(name, measured(values))
		}
	}
	return s
}

// values returns a subject's values of a metric by repeat.
func (c *CaseRounds) values(subject, metric string) map[int]float64 {
	values := make(map[int]float64)
	for _, r := range c.Rounds {
		if r.Subject != subject || !r.counts() {
			continue
		}
		if v, ok := r.metric(metric); ok {
			values[r.Repeat] = v
		}
	}
	return values
}

// measured returns the values in the order of the repeats.
func measured(byRepeat map[int]float64) []float64 {
	var values []float64
	for _, repeat := range repeats(byRepeat) {
		values = append(values, byRepeat[repeat])
	}
	return values
}

func repeats(byRepeat map[int]float64) []int {
	var all []int
	for repeat := range byRepeat {
		all = append(all, repeat)
	}
	slices.Sort(all)
	return all
}

func valueOf(metric string, values []float64) Value {
	m, _ := measure.Find(metric)
	v := Value{Unit: m.Unit, N: len(values), Median: measure.Median(values)}
	v.Q1, v.Q3 = measure.Quartiles(values)
	if ci, ok := measure.MedianCI(values); ok {
		v.CI = &ci
	}
	return v
}

// oracle returns the fixed subject with the best median of the primary metric, the first
// of several equal ones. It is empty if one that could have run has no round that counts,
// because that one might have been the best.
func oracle(s *CaseSummary) string {
	best, name := math.Inf(-1), ""
	for _, subject := range s.Subjects {
		if subject.Fixed == "" || subject.Skipped != "" && subject.Skipped != NotChosen {
			continue
		}
		v, ok := subject.Metrics[s.Primary]
		if !ok {
			return ""
		}
		if rank := better(s.Primary) * v.Median; rank > best {
			best, name = rank, subject.Name
		}
	}
	return name
}

// better is +1 or -1, the factor with which higher values of a metric are better.
func better(metric string) float64 {
	m, ok := measure.Find(metric)
	if !ok {
		return 1
	}
	return float64(m.Better)
}

// compare compares the subjects with baseline and oracle in a metric, and marks the best.
func (c *CaseRounds) compare(s *CaseSummary, metric string) {
	baseline, oracle := c.values(s.Baseline, metric), c.values(s.Oracle, metric)
	best, worst := math.Inf(-1), math.Inf(1)
	for _, subject := range s.Subjects {
		if v, ok := subject.Metrics[metric]; ok {
			best, worst = max(best, better(metric)*v.Median), min(worst, better(metric)*v.Median)
		}
	}
	for _, subject := range s.Subjects {
		v, ok := subject.Metrics[metric]
		if !ok {
			continue
		}
		own := c.values(subject.Name, metric)
		v.Baseline, v.Oracle = paired(own, baseline), paired(own, oracle)
		if s.Ratios {
			v.Pooled = c.pooled(subject.Name, s.Baseline, metric)
		}
		v.Best = better(metric)*v.Median == best && best > worst
		subject.Metrics[metric] = v
	}
}

// paired compares the values of the repeats that both have.
func paired(subject, other map[int]float64) *measure.Ratio {
	var a, b []float64
	for _, repeat := range repeats(subject) {
		if v, ok := other[repeat]; ok {
			a, b = append(a, subject[repeat]), append(b, v)
		}
	}
	ratio, ok := measure.PairedRatio(a, b)
	if !ok {
		return nil
	}
	return &ratio
}
