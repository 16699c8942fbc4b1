package scenario

import (
	"time"

	"github.com/tcpilot/tcpilot/lab/subject"
	"github.com/tcpilot/tcpilot/lab/workload"
)

// Time that a case takes in addition to its traffic: once for the network and its
// calibration, and in each round for starting the subject, ending connections and
// reading counters. Measured on two busy cores.
const (
	caseCost  = 10 * time.Second
	roundCost = time.Second
)

// Estimate is about how long the case takes with all of its subjects.
func (c Case) Estimate() time.Duration {
	rounds := 0
	for _, s := range c.Subjects {
		rounds += c.Repeat
		switch {
		case c.Fresh && s.Kind == subject.Tcpilot:
			rounds += c.Warmup * c.Repeat
		case s.Kind == subject.Tcpilot, s.Kind == subject.Pods && s.Config != "":
			rounds += c.Warmup
		case s.Kind == subject.Bpftune, s.Kind == subject.Command:
			rounds += c.Warmup * c.Repeat // they lose what they learned at each stop
		}
	}
	return caseCost + time.Duration(rounds)*(c.round()+c.Pause+roundCost)
}

// round is about how long one round's traffic takes: exact if durations determine it,
// else estimated from the links.
func (c Case) round() time.Duration {
	var longest time.Duration
	for _, p := range c.Traffic {
		takes := p.Length()
		if p.Kind != workload.Bulk && p.Kind != workload.Iperf3 && (p.Count > 0 || p.Duration == 0) {
			takes = max(takes, p.Start+c.transfer(p))
		}
		longest = max(longest, takes)
	}
	return longest
}

// transfer is about how long a part takes that has a count but no duration: its bytes
// at the bottleneck's rate, or a few round trips for each connection in turn, whichever
// is more.
func (c Case) transfer(p workload.Spec) time.Duration {
	const trips = 4 // connect, ask, and a window or two
	rate, rtt := c.bottleneck()
	count := float64(max(p.Count, 1))
	bytes := count * (float64(p.Request+p.Reply) + p.Size.Mean()) * float64(c.numSenders(p))
	turns := count / float64(max(p.Streams, 1)*max(p.Concurrency, 1))
	takes := max(bytes*8/rate, turns*trips*rtt.Seconds())
	if p.Duration > 0 {
		takes = min(takes, p.Duration.Seconds())
	}
	return time.Duration(min(takes, workload.MaxDuration.Seconds()) * float64(time.Second))
}

// numSenders is how many hosts run this part.
func (c Case) numSenders(p workload.Spec) (n int) {
	for _, h := range c.Graph.Nodes {
		from := p.From
		if from == "" {
			from = "senders"
		}
		if h.Name == from || string(h.Role)+"s" == from {
			n++
		}
	}
	return n
}

// bottleneck returns the lowest rate of the links in bit/s, at most 1 Gbit/s, and the
// longest round trip without queues.
func (c Case) bottleneck() (rate float64, rtt time.Duration) {
	rate = 1e9
	for _, l := range c.Links {
		for _, r := range []uint64{l.Forward.Rate, l.Forward.Policer.Rate} {
			if r > 0 {
				rate = min(rate, float64(r))
			}
		}
	}
	return rate, rttThrough(c.Graph, c.Links, "")
}
