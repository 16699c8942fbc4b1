package workload

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcpinfo"
	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/measure"
)

// round is one round of traffic and its measurements.
type round struct {
	*Fleet
	hostPairs []*hostPair
	begin     load.Time

	mu       sync.Mutex
	blocks   uint64
	accounts map[uint64]load.Account // of servers, by number
	entries  []entry
	end      time.Duration // of the traffic, since begin
	result   measure.Result
}

// entry is a connection that has no number yet.
type entry struct {
	measure.Connection
	account   uint64        // the number of the server's account of it
	own       *load.Account // or the client's, if the client sent the data
	exchanges []load.Exchange
	points    []measure.Point // from another program
	requests  []measure.Request
	deadline  time.Duration // of each exchange; 0 is none
}

// block reserves account numbers for all connections that a request may make, and returns
// the first.
func (r *round) block() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blocks++
	return r.blocks << 32
}

// at is a time relative to the beginning of the round, as in the result.
func (r *round) at(m load.Time) time.Duration { return m.Sub(r.begin) }

func (r *round) add(e entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = append(r.entries, e)
	r.end = max(r.end, e.Start+e.Elapsed)
}

// until extends the end of the traffic.
func (r *round) until(t time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end = max(r.end, t)
}

// total adds to the totals of a group.
func (r *round) total(group string, t measure.Total) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.result.Totals == nil {
		r.result.Totals = map[string]measure.Total{}
	}
	r.result.Totals[group] = r.result.Totals[group].Plus(t)
}

// fail counts failures.
func (r *round) fail(err error) { r.failed(1, err.Error()) }

func (r *round) failed(n uint64, first string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Errors += n
	if r.result.FirstError == "" {
		r.result.FirstError = first
	}
}

// cpu is the CPU time of the agents; an agent that has exited is left out.
func (r *round) cpu(ctx context.Context) map[string]load.CPU {
	spent := map[string]load.CPU{}
	for host, a := range r.agents {
		if c, err := a.CPU(ctx); err == nil {
			spent[host] = c
		}
	}
	return spent
}

// addAgentsCPU adds the CPU time of the agents since before.
func (r *round) addAgentsCPU(before, after map[string]load.CPU) {
	for host, c := range after {
		r.addCPU(host, c.Sub(before[host]))
	}
}

// addCPU adds CPU time that a program spent on a host.
func (r *round) addCPU(host string, c load.CPU) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.result.CPU == nil {
		r.result.CPU = map[string]measure.CPU{}
	}
	sum := r.result.CPU[host]
	sum.User += c.User
	sum.System += c.System
	r.result.CPU[host] = sum
}

// finish numbers the connections in the order in which they began and makes the result.
func (r *round) finish() measure.Result {
	slices.SortStableFunc(r.entries, func(a, b entry) int { return int(a.Start - b.Start) })
	out := &r.result
	out.Elapsed = r.end
	counts, err := tcpinfo.CountsTimeouts()
	out.NoRTOs = err != nil || !counts
	for id := range r.entries {
		e := &r.entries[id]
		e.ID = id
		if a, ok := r.accounts[e.account]; ok {
			e.own = &a
		}
		if e.own != nil {
			e.points = r.points(e.Start, e.own.Points)
			e.complete(e.own)
		}
		out.Connections = append(out.Connections, e.Connection)
		for _, x := range e.exchanges {
			e.requests = append(e.requests, measure.Request{Start: r.at(x.Begin), Elapsed: x.Elapsed, Bytes: x.Bytes, Deadline: e.deadline})
		}
		for _, q := range e.requests {
			q.Group, q.Conn = e.Group, id
			out.Requests = append(out.Requests, q)
		}
		for _, p := range e.points {
			p.Conn = id
			out.Points = append(out.Points, p)
		}
	}
	return *out
}

// complete adds what the sender's kernel recorded.
func (e *entry) complete(a *load.Account) {
	e.CC = a.CCStart
	if a.CCEnd != a.CCStart {
		e.CCEnd = a.CCEnd
	}
	e.Segments, e.Retrans, e.RTOs = a.Segments, a.Retrans, a.RTOs
	e.MinRTT, e.SRTT, e.MeanRTT = measure.RTTOf(a.MinRTT), measure.RTTOf(a.SRTT), measure.RTTOf(a.SRTT)
	if n := len(a.Points); n > 0 {
		var sum time.Duration
		for _, p := range a.Points {
			sum += p.SRTT
		}
		e.MeanRTT = measure.RTTOf(sum / time.Duration(n))
	}
}

// points converts a connection's points. Goodput is that of the bytes acknowledged since
// the previous point, or since the start of the connection.
func (r *round) points(start time.Duration, all []load.Point) []measure.Point {
	points := make([]measure.Point, len(all))
	before, acked := start, uint64(0)
	for i, p := range all {
		points[i] = measure.Point{At: r.at(p.At), SRTT: measure.RTTOf(p.SRTT), Cwnd: p.Cwnd, Retrans: p.Retrans, CC: p.CC}
		points[i].Goodput = float64(p.BytesAcked-acked) * 8 / (points[i].At - before).Seconds()
		before, acked = points[i].At, p.BytesAcked
	}
	return points
}
