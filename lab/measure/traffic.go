package measure

import "time"

// traffic is what metrics are computed from: all of a round's traffic, or one group's.
type traffic struct {
	elapsed     float64 // seconds
	connections []*Connection
	requests    []*Request
	total       Total
	done        uint64 // requests, or connections if a group has no requests
	floors      map[pair]RTT
	cpu         time.Duration // 0 if unknown
	machine     time.Duration // 0 if unknown
	errors      uint64
	errorsKnown bool
	noRTOs      bool
}

// pair is two hosts, and so a path: its connections have the same propagation delay.
type pair struct{ from, to string }

func whole(r *Result) *traffic {
	t := &traffic{
		elapsed: r.Elapsed.Seconds(), floors: make(map[pair]RTT),
		machine: r.Machine, errors: r.Errors, errorsKnown: true, noRTOs: r.NoRTOs,
	}
	for i := range r.Connections {
		c := &r.Connections[i]
		t.connections = append(t.connections, c)
		p := pair{c.From, c.To}
		if floor, ok := t.floors[p]; c.MinRTT > 0 && (!ok || c.MinRTT < floor) {
			t.floors[p] = c.MinRTT
		}
	}
	for i := range r.Requests {
		t.requests = append(t.requests, &r.Requests[i])
	}
	for _, cpu := range r.CPU {
		t.cpu += cpu.User + cpu.System
	}
	for _, sum := range r.totals() {
		t.add(sum)
	}
	return t
}

// add adds the total of a group.
func (t *traffic) add(sum Total) {
	t.total = t.total.Plus(sum)
	if sum.Requests > 0 {
		t.done += sum.Requests
	} else {
		t.done += sum.Connections
	}
}

// totals returns Totals, or counts the records if they are complete.
func (r *Result) totals() map[string]Total {
	if r.Totals != nil {
		return r.Totals
	}
	totals := make(map[string]Total)
	for _, c := range r.Connections {
		sum := totals[c.Group]
		sum.Bytes += c.Bytes
		if c.Delivered {
			sum.Connections++
		}
		totals[c.Group] = sum
	}
	for _, q := range r.Requests {
		sum := totals[q.Group]
		sum.Requests++
		totals[q.Group] = sum
	}
	return totals
}

// Goodput is the connection's payload over its time, in bit/s; false if that time is 0.
func (c *Connection) Goodput() (float64, bool) {
	if c.Elapsed <= 0 {
		return 0, false
	}
	return 8 * float64(c.Bytes) / c.Elapsed.Seconds(), true
}

// goodputs returns one value for each connection whose goodput is known.
func (t *traffic) goodputs() (values []float64) {
	for _, c := range t.connections {
		if g, ok := c.Goodput(); ok {
			values = append(values, g)
		}
	}
	return values
}

// span is the time from the first connection's start to the last one's end, in seconds.
// If the records are a sample, it is that of the totals, but no less than that of the
// records.
func (t *traffic) span() float64 {
	first, last := t.total.Begin, t.total.End
	for i, c := range t.connections {
		if i == 0 && t.total.End == 0 {
			first = c.Start
		}
		first, last = min(first, c.Start), max(last, c.Start+c.Elapsed)
	}
	return (last - first).Seconds()
}

func (t *traffic) perSecond(amount float64) (float64, bool) {
	return amount / t.elapsed, t.elapsed > 0
}

func goodput(t *traffic) (float64, bool) {
	if len(t.connections) == 0 {
		return 0, false
	}
	return t.perSecond(8 * float64(t.total.Bytes))
}

func connectionGoodput(t *traffic) (float64, bool) {
	values := t.goodputs()
	return Median(values), len(values) > 0
}

func (t *traffic) completions() []float64 {
	values := make([]float64, len(t.requests))
	for i, r := range t.requests {
		values[i] = r.Elapsed.Seconds()
	}
	return values
}

func completionMean(t *traffic) (float64, bool) {
	return mean(t.completions()), len(t.requests) > 0
}

func completion(p float64) func(*traffic) (float64, bool) {
	return func(t *traffic) (float64, bool) {
		return quantile(t.completions(), p), len(t.requests) > 0
	}
}

func requestsPerSecond(t *traffic) (float64, bool) {
	if len(t.requests) == 0 {
		return 0, false
	}
	return t.perSecond(float64(t.total.Requests))
}

func connectionsPerSecond(t *traffic) (float64, bool) {
	if len(t.connections) == 0 {
		return 0, false
	}
	return t.perSecond(float64(t.total.Connections))
}

func retrans(t *traffic) (float64, bool) {
	var again, all float64
	for _, c := range t.connections {
		again += float64(c.Retrans)
		all += float64(c.Segments)
	}
	return again / all, all > 0
}

func rtt(t *traffic) (float64, bool) {
	var values []float64
	for _, c := range t.connections {
		if c.MeanRTT > 0 {
			values = append(values, c.MeanRTT.Seconds())
		}
	}
	return mean(values), len(values) > 0
}

func rttInflation(t *traffic) (float64, bool) {
	var values []float64
	for _, c := range t.connections {
		if floor := t.floors[pair{c.From, c.To}]; c.MeanRTT > 0 && floor > 0 {
			values = append(values, float64(c.MeanRTT)/float64(floor))
		}
	}
	return mean(values), len(values) > 0
}

func fairness(t *traffic) (float64, bool) {
	values := t.goodputs()
	if len(values) < 2 {
		return 0, false
	}
	return jain(values)
}

func cpuPerByte(t *traffic) (float64, bool) {
	bytes := float64(t.total.Bytes)
	return t.cpu.Seconds() / bytes, t.cpu > 0 && bytes > 0
}

func cpuPerRequest(t *traffic) (float64, bool) {
	return t.cpu.Seconds() / float64(t.done), t.cpu > 0 && t.done > 0
}

func machinePerByte(t *traffic) (float64, bool) {
	bytes := float64(t.total.Bytes)
	return t.machine.Seconds() / bytes, t.machine > 0 && bytes > 0
}

func machinePerRequest(t *traffic) (float64, bool) {
	return t.machine.Seconds() / float64(t.done), t.machine > 0 && t.done > 0
}

// overdue returns how many requests have a deadline, how many of these missed it, by how
// much in sum, and on how many connections the requests were.
func (t *traffic) overdue() (all, missed int, by time.Duration, connections int) {
	seen := map[int]bool{}
	for _, r := range t.requests {
		if r.Deadline == 0 {
			continue
		}
		all++
		seen[r.Conn] = true
		if over := r.Elapsed - r.Deadline; over > 0 {
			missed++
			by += over
		}
	}
	return all, missed, by, len(seen)
}

func late(t *traffic) (float64, bool) {
	all, missed, _, _ := t.overdue()
	return float64(missed) / float64(all), all > 0
}

func stalled(t *traffic) (float64, bool) {
	_, _, by, connections := t.overdue()
	return by.Seconds() / t.elapsed / float64(connections), connections > 0 && t.elapsed > 0
}

func failed(t *traffic) (float64, bool) {
	tried := float64(t.done + t.errors)
	return float64(t.errors) / tried, t.errorsKnown && tried > 0
}

func timeouts(t *traffic) (float64, bool) {
	var n float64
	for _, c := range t.connections {
		n += float64(c.RTOs)
	}
	return n, len(t.connections) > 0 && !t.noRTOs
}
