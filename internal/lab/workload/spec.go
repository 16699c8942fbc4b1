package workload

import "time"

// Kind is a kind of traffic.
type Kind string

// The kinds of traffic.
const (
	// Bulk is streams that send as fast as they can for Duration, Count of them one
	// after the other in each of Streams lines.
	Bulk Kind = "bulk"
	// RPC is a closed loop on Streams lasting connections: Request bytes from the
	// sender, Reply bytes back, the next at once or after Think.
	RPC Kind = "rpc"
	// Flows is Count transfers, each a connection of its own: the receiver connects
	// and asks, the sender sends Size bytes. Concurrency of them go on at a time,
	// Gap apart (closed loop), or they begin at Rate by Poisson, or as Trace says
	// (open loop).
	Flows Kind = "flows"
	// Churn is connect, one request, one reply, close; see load.ChurnSpec.
	Churn Kind = "churn"
	// Mux is long-lived connections in the manner of HTTP/2: bursts of Concurrency
	// requests at a time whose replies share the connection, Think between bursts.
	Mux Kind = "mux"
	// Iperf3 and Wrk (with nginx) are outside witnesses of Bulk and Flows.
	Iperf3 Kind = "iperf3"
	Wrk    Kind = "wrk"
)

// Spec is one part of a round's traffic. All parts of a round run at the same
// time, each from its Start on.
type Spec struct {
	Name string // the group of its connections in reports
	Kind Kind
	// From and To are "senders", "receivers", or a host's name; empty is senders and
	// receivers. Each host of From has traffic to the host of To with the same
	// index modulo their number.
	From, To string
	IPv6     bool
	Start    time.Duration // after the round's begin
	Duration time.Duration // of a connection of bulk, of the whole of other kinds
	Count    int           // see the kinds; 1 if 0 and no Duration bounds it
	Streams  int           // for each host of From; 1 if 0
	CC       string        // the sending application's own choice; empty leaves it
	Request  uint64        // bytes
	Reply    uint64        // bytes
	Think    time.Duration // between requests
	// Concurrency and Gap are for flows and mux.
	Concurrency int
	Gap         time.Duration
	Rate        float64 // begins per second: Poisson for flows, evenly spaced for churn
	Size        Size    // of flows and of mux replies
	Trace       []Arrival
	Paths       int   // churn: spread over so many addresses, each in its own /24
	Seed        int64 // of sizes and arrivals: the same numbers for every subject
	// Sample is how often points are taken of a connection, 0 never.
	Sample time.Duration
}

// Size is a distribution of bytes.
type Size struct {
	// Fixed is the size of all, if not 0.
	Fixed uint64
	// Pareto with shape Alpha and minimum Scale, cut at Max: bounded Pareto.
	Alpha      float64
	Scale, Max float64
}

// Arrival is a flow of a trace.
type Arrival struct {
	At   time.Duration // after the part's start
	Size uint64        // bytes
}
