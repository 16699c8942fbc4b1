package measure

import (
	"slices"
	"strings"
)

// Metric is one figure of a round.
type Metric struct {
	Name   string
	Unit   string // bit/s, s, s/B, 1/s, share (of 1), or empty for plain numbers
	Doc    string
	Better int // +1: higher is better, -1: lower is

	// of computes the metric; false if the records do not have what it needs.
	of func(*traffic) (float64, bool)
}

// Metrics are all metrics, in the order of reports.
var Metrics = []Metric{
	{"goodput", "bit/s", "payload that arrived, of all connections, over the time of the round's traffic", +1, goodput},
	{"connection_goodput", "bit/s", "payload over the connection's own time, median of connections", +1, connectionGoodput},
	{"fct_mean", "s", "completion time of requests and flows, mean", -1, completionMean},
	{"fct_p50", "s", "completion time of requests and flows, median", -1, completion(0.50)},
	{"fct_p75", "s", "completion time of requests and flows, 75th percentile", -1, completion(0.75)},
	{"fct_p90", "s", "completion time of requests and flows, 90th percentile", -1, completion(0.90)},
	{"fct_p95", "s", "completion time of requests and flows, 95th percentile", -1, completion(0.95)},
	{"fct_p99", "s", "completion time of requests and flows, 99th percentile", -1, completion(0.99)},
	{"requests_per_second", "1/s", "requests and flows completed over the time of the round's traffic", +1, requestsPerSecond},
	{"connections_per_second", "1/s", "connections that delivered all of their data, over the time of the round's traffic", +1, connectionsPerSecond},
	{"retrans", "share", "retransmits among the segments sent with data", -1, retrans},
	{"rtt", "s", "mean of the connections' mean round trips, each connection counted once", -1, rtt},
	{"rtt_inflation", "", "a connection's mean round trip over the least between the same two hosts in the round, mean of connections", -1, rttInflation},
	{"jain", "", "fairness of the connections' goodput (Jain's index): 1 if all are equal, 1/n if one takes all", +1, fairness},
	{"cpu_per_byte", "s/B", "processor time of the programs that made the traffic, both ends, per byte of payload", -1, cpuPerByte},
	{"cpu_per_request", "s", "processor time of the programs that made the traffic, both ends, per request (or connection, if there are no requests)", -1, cpuPerRequest},
	{"machine_per_byte", "s/B", "processor time of the whole machine, per byte of payload", -1, machinePerByte},
	{"machine_per_request", "s", "processor time of the whole machine, per request (or connection, if there are no requests)", -1, machinePerRequest},
	{"late", "share", "requests that took longer than their deadline", -1, late},
	{"stalled", "share", "time by which a connection's requests exceeded their deadline, over the time of the round's traffic, mean of connections: how long a player that has one chunk in advance stalls", -1, stalled},
	{"errors", "share", "requests (or connections, if there are no requests) that failed, among those tried", -1, failed},
	{"rtos", "", "retransmission timeouts of all connections", -1, timeouts},
}

// Find returns a metric by its name, also if it is of a group (GROUP/METRIC).
func Find(name string) (Metric, bool) {
	_, name = Split(name)
	i := slices.IndexFunc(Metrics, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		return Metric{}, false
	}
	return Metrics[i], true
}

// Split separates GROUP/METRIC. A group's name may have slashes, a metric's has none.
func Split(name string) (group, metric string) {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i], name[i+1:]
	}
	return "", name
}

// Lookup returns a metric of a round by its name: METRIC from those of the whole
// round, GROUP/METRIC from those of a group.
func Lookup(round map[string]float64, groups map[string]map[string]float64, name string) (float64, bool) {
	if group, metric := Split(name); group != "" {
		v, ok := groups[group][metric]
		return v, ok
	}
	v, ok := round[name]
	return v, ok
}

// Of computes the metrics of a round. A metric that cannot be computed from the records is
// absent, never 0.
func Of(r *Result) map[string]float64 { return whole(r).metrics() }

// Groups computes the metrics of each group of connections, over the time from the
// group's first start to its last end. Metrics that are known only for the whole round
// (processor time, errors) are absent.
func Groups(r *Result) map[string]map[string]float64 {
	all := whole(r)
	parts := make(map[string]*traffic)
	part := func(group string) *traffic {
		if parts[group] == nil {
			parts[group] = &traffic{floors: all.floors, noRTOs: r.NoRTOs}
		}
		return parts[group]
	}
	for i := range r.Connections {
		p := part(r.Connections[i].Group)
		p.connections = append(p.connections, &r.Connections[i])
	}
	for i := range r.Requests {
		p := part(r.Requests[i].Group)
		p.requests = append(p.requests, &r.Requests[i])
	}
	for group, sum := range r.totals() {
		part(group).add(sum)
	}
	metrics := make(map[string]map[string]float64, len(parts))
	for group, t := range parts {
		t.elapsed = t.span()
		metrics[group] = t.metrics()
	}
	return metrics
}

func (t *traffic) metrics() map[string]float64 {
	values := make(map[string]float64, len(Metrics))
	for _, m := range Metrics {
		if v, ok := m.of(t); ok && finite(v) {
			values[m.Name] = v
		}
	}
	return values
}
