package report

import (
	"cmp"
	"math"
	"slices"

	"github.com/tcpilot/tcpilot/lab/measure"
)

// Regret is what a subject that learns has lost compared with using the oracle from the
// first connection on, warm-up included.
type Regret struct {
	Connections int     `json:"connections"`
	Total       float64 `json:"total"` // in whole connections
	// LastHalf is the part of Total that the second half of the connections lost: near
	// 0 if everything was learned in the first half.
	LastHalf float64 `json:"last_half"`

	sums []float64
}

func (c *CaseRounds) addRegret(s *CaseSummary) {
	for i := range s.Subjects {
		if !s.Subjects[i].Learns {
			continue
		}
		if sums := c.regret(s, s.Subjects[i].Name); len(sums) > 0 {
			last, half := sums[len(sums)-1], sums[(len(sums)-1)/2]
			s.Subjects[i].Regret = &Regret{len(sums), last, last - half, sums}
		}
	}
}

// speeds are the primary metrics by which the oracle also has the most goodput. An oracle
// by another metric, such as round trips, may have less goodput than others, so that a
// comparison of goodput would not show regret.
var speeds = []string{"goodput", "connection_goodput", "fct_mean", "fct_p50", "fct_p75", "fct_p90", "fct_p95", "fct_p99"}

// regret returns the subject's series over its connections, in the order in which they
// began, or nil if there is no oracle or the oracle is not the best in goodput.
// Connections that no subject tunes are excluded and, if the primary metric is of one
// group, those of other groups.
func (c *CaseRounds) regret(s *CaseSummary, subject string) []float64 {
	group, metric := measure.Split(s.Primary)
	if s.Oracle == "" || !slices.Contains(speeds, metric) {
		return nil
	}
	groups := c.tunedGroups()
	if group != "" {
		groups = map[string]bool{group: groups[group]}
	}
	reference := newReference(groups)
	for _, r := range c.Rounds {
		if r.Subject == s.Oracle && r.counts() {
			reference.add(r)
		}
	}
	var shares []float64
	for _, r := range c.Rounds {
		if r.Subject == subject && r.Refused == "" {
			shares = append(shares, reference.shares(r)...)
		}
	}
	return measure.Regret(shares, 1)
}

// reference is the oracle's mean goodput by the amount of data. Requests are grouped by
// the power of two of their size, because a small one ends before the path is full.
// Connections without requests are one group.
type reference struct {
	groups map[string]bool // groups that count
	sums   map[int]total
}

type total struct{ sum, n float64 }

func (t total) plus(v float64) total { return total{t.sum + v, t.n + 1} }

// mean is NaN if there are no values.
func (t total) mean() float64 { return t.sum / t.n }

// stream is the key of connections without requests.
const stream = -1

func newReference(groups map[string]bool) *reference {
	return &reference{groups, make(map[int]total)}
}

func (f *reference) add(r *RoundData) {
	f.each(r, func(_, key int, goodput float64) { f.sums[key] = f.sums[key].plus(goodput) })
}

// shares returns, for each connection of the round in the order in which they began, its
// goodput as a share of the oracle's: the mean over its requests if it has any.
func (f *reference) shares(r *RoundData) []float64 {
	byConn := make(map[int]total)
	f.each(r, func(conn, key int, goodput float64) {
		if of := f.sums[key]; of.sum > 0 {
			byConn[conn] = byConn[conn].plus(goodput / of.mean())
		}
	})
	var shares []float64
	for _, c := range byStart(r.Connections) {
		if t := byConn[c.ID]; t.n > 0 {
			shares = append(shares, t.mean())
		}
	}
	return shares
}

func (f *reference) each(r *RoundData, do func(conn, key int, goodput float64)) {
	asked := make(map[int]bool)
	for i := range r.Requests {
		q := &r.Requests[i]
		asked[q.Conn] = true
		if f.groups[q.Group] && q.Elapsed > 0 && q.Bytes > 0 {
			do(q.Conn, math.Ilogb(float64(q.Bytes)), 8*float64(q.Bytes)/q.Elapsed.Seconds())
		}
	}
	for i := range r.Connections {
		c := &r.Connections[i]
		if goodput, ok := c.Goodput(); ok && f.groups[c.Group] && !asked[c.ID] {
			do(c.ID, stream, goodput)
		}
	}
}

// byStart returns the connections in the order in which they began.
func byStart(connections []measure.Connection) []*measure.Connection {
	all := make([]*measure.Connection, len(connections))
	for i := range connections {
		all[i] = &connections[i]
	}
	slices.SortStableFunc(all, func(a, b *measure.Connection) int { return cmp.Compare(a.Start, b.Start) })
	return all
}
