package report

import (
	"cmp"
	"math"
	"slices"

	"github.com/tcpilot/tcpilot/internal/lab/measure"
)

// Regret is what a subject that learns has lost by not being the oracle from the
// first connection on, warm-up included.
type Regret struct {
	Connections int     `json:"connections"`
	Total       float64 `json:"total"` // whole connections lost
	// LastHalf is the part of it that the second half of the connections lost:
	// near 0 when all was learned in the first.
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

// regret is the subject's series over its connections, in the order in which
// they began; nil without an oracle. Where the primary metric is of one group
// only that group's connections count.
func (c *CaseRounds) regret(s *CaseSummary, subject string) []float64 {
	if s.Oracle == "" {
		return nil
	}
	group, _ := measure.Split(s.Primary)
	reference := newReference(group)
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

// reference is the oracle's mean goodput by the amount of data: of requests by
// the power of two of their size, since a small one ends before the path is
// full; of connections without requests in one.
type reference struct {
	group string // empty is all
	sums  map[int]total
}

type total struct{ sum, n float64 }

func (t total) plus(v float64) total { return total{t.sum + v, t.n + 1} }

// mean is NaN of nothing.
func (t total) mean() float64 { return t.sum / t.n }

// stream is the key of connections without requests.
const stream = -1

func newReference(group string) *reference {
	return &reference{group, make(map[int]total)}
}

func (f *reference) add(r *RoundData) {
	f.each(r, func(_, key int, goodput float64) { f.sums[key] = f.sums[key].plus(goodput) })
}

// shares is, for each connection of the round by the order in which they began,
// its goodput as a share of the oracle's, mean of its requests if it has any.
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
		if f.wants(q.Group) && q.Elapsed > 0 && q.Bytes > 0 {
			do(q.Conn, math.Ilogb(float64(q.Bytes)), 8*float64(q.Bytes)/q.Elapsed.Seconds())
		}
	}
	for i := range r.Connections {
		c := &r.Connections[i]
		if goodput, ok := c.Goodput(); ok && f.wants(c.Group) && !asked[c.ID] {
			do(c.ID, stream, goodput)
		}
	}
}

func (f *reference) wants(group string) bool { return f.group == "" || f.group == group }

// byStart returns the connections in the order in which they began.
func byStart(connections []measure.Connection) []*measure.Connection {
	all := make([]*measure.Connection, len(connections))
	for i := range connections {
		all[i] = &connections[i]
	}
	slices.SortStableFunc(all, func(a, b *measure.Connection) int { return cmp.Compare(a.Start, b.Start) })
	return all
}
