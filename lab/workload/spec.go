package workload

import "time"

// Kind is a kind of traffic.
type Kind string

// The kinds of traffic.
const (
	// Bulk is streams that send as fast as they can for Duration, Count of them one
	// after the other in each of Streams lines. At End all lines end.
	Bulk Kind = "bulk"
	// RPC is a closed loop on Streams lasting connections: From connects and asks
	// with Request bytes, To answers with Reply bytes, the next at once or after
	// Think. Count is of requests on each connection.
	RPC Kind = "rpc"
	// Flows is Count transfers, each a connection of its own: To connects and asks,
	// From sends Size bytes. Concurrency of them go on at a time, Gap apart (closed
	// loop), or they begin at Rate by Poisson, or as Trace says (open loop).
	Flows Kind = "flows"
	// Churn is connect, one request, one reply, close, Streams connections at a
	// time: From connects; see load.ChurnSpec.
	Churn Kind = "churn"
	// Mux is Streams long-lived connections in the manner of HTTP/2: To connects and
	// asks in Count bursts of Concurrency requests, whose replies of Size from From
	// share the connection, Think between bursts.
	Mux Kind = "mux"
	// Iperf3 and Wrk (with nginx) are outside witnesses of Bulk and Flows. Durations
	// are whole seconds; wrk has Concurrency connections at a time, one request on
	// each.
	Iperf3 Kind = "iperf3"
	Wrk    Kind = "wrk"
	// Web is flows over HTTP: nginx at From, and at To a client that makes Count
	// requests for a file of Size, Concurrency at a time, each on a connection of its
	// own.
	Web Kind = "web"
)

// Client is what makes the requests of Web.
type Client string

// The clients.
const (
	OwnClient Client = "go" // net/http, in the load agent
	Curl      Client = "curl"
)

// The groups of a part whose First is not 0 have these behind its name.
const (
	FirstGroup = "/first"
	LaterGroup = "/later"
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
	// End is bulk's, after the round's begin: no connection begins after it, and one
	// that sends is cut short. Parts with the same End share the links to the end,
	// however long their connections took to come about; 0 is none.
	End     time.Duration
	Count   int // see the kinds; 1 if 0 and no Duration bounds it
	Streams int // for each host of From; 1 if 0
	// CC is the own choice of the application that sends the larger part of the data;
	// empty leaves it.
	CC      string
	Request uint64        // bytes; 64 if 0
	Reply   uint64        // bytes; 256 if 0
	Think   time.Duration // between requests or bursts
	// Deadline is RPC's: how long a request may take. What takes longer is late.
	Deadline time.Duration
	// Client is web's; OwnClient if empty.
	Client Client
	// First is web's: the first so many connections are one group, FirstGroup, the
	// others another, LaterGroup. A subject that begins without knowledge is at work
	// in the one and has learned in the other. 0 is one group for all.
	First int
	// Concurrency is for flows, mux, wrk and web; 1 if 0. Gap is for flows.
	Concurrency int
	Gap         time.Duration
	// Rate is begins per second: Poisson for flows, evenly spaced for churn. What is
	// late to begin counts from when it was due, as with Trace.
	Rate  float64
	Size  Size // of flows and of mux replies
	Trace []Arrival
	// Paths is churn's: connections go to so many addresses in turn, each in an IPv4
	// /24 or IPv6 /48 of its own. To has them by topology.Layout.Spread.
	Paths int
	Seed  int64 // of sizes and arrivals: the same numbers for every subject
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
