package workload

import "time"

// Kind is a kind of traffic.
type Kind string

// The kinds of traffic.
const (
	// Bulk is connections that send as fast as they can for Duration. Streams sequences run
	// at the same time, each of Count connections one after the other. All end at End.
	Bulk Kind = "bulk"
	// RPC is a closed loop on each of Streams long-lived connections: From connects and
	// sends a request of Request bytes, To answers with Reply bytes, and the next request
	// follows at once or after Think. Count is the number of requests on each connection.
	RPC Kind = "rpc"
	// Flows is Count transfers, each on a connection of its own: To connects and asks, From
	// sends Size bytes. Either Concurrency of them run at a time and begin Gap apart
	// (closed loop), or they begin at Rate as a Poisson process, or as Trace says (open
	// loop).
	Flows Kind = "flows"
	// Churn is many short connections: From connects, one request, one reply, close.
	// Streams of them are open at a time; see load.ChurnSpec.
	Churn Kind = "churn"
	// Mux is Streams long-lived connections similar to HTTP/2: To connects and sends Count
	// bursts of Concurrency requests, with Think between bursts. The replies of Size bytes
	// from From share the connection.
	Mux Kind = "mux"
	// Iperf3 and Wrk (with nginx) are other programs that make the traffic of Bulk and
	// Flows, to check the load agents. Durations are whole seconds; wrk has Concurrency
	// connections at a time, with one request on each.
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

// Suffixes of the names of the groups of a part whose First is not 0.
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
	Start    time.Duration // after the beginning of the round
	Duration time.Duration // of each connection of bulk; of all traffic of the part for other kinds
	// End is for bulk, after the beginning of the round: no connection begins after it, and
	// one that sends then ends. Parts with the same End share the links to the end, however
	// long their connections took to be established; 0 is none.
	End     time.Duration
	Count   int // see the kinds; 1 if 0 and no Duration bounds the part
	Streams int // for each host of From; 1 if 0
	// CC is the congestion control that the application which sends the larger part of the
	// data sets itself; empty is none.
	CC      string
	Request uint64        // bytes; 64 if 0
	Reply   uint64        // bytes; 256 if 0
	Think   time.Duration // between requests or bursts
	// Deadline is for RPC: how long a request may take. A request that takes longer is
	// late.
	Deadline time.Duration
	// Client is for web; OwnClient if empty.
	Client Client
	// First is for web: the first so many connections are one group, FirstGroup, the others
	// another, LaterGroup. In FirstGroup a subject that learns has just begun, in
	// LaterGroup it has learned. 0 is one group for all.
	First int
	// Concurrency is for flows, mux, wrk and web; 1 if 0. Gap is for flows.
	Concurrency int
	Gap         time.Duration
	// Rate is the number of connections that begin per second: a Poisson process for flows,
	// evenly spaced for churn. A connection that begins late is measured from the time at
	// which it was due, as with Trace.
	Rate  float64
	Size  Size // of flows and of mux replies
	Trace []Arrival
	// Paths is for churn: connections go to so many addresses in turn, each in an IPv4 /24
	// or IPv6 /48 of its own. topology.Layout.Spread gives them to the host To.
	Paths int
	Seed  int64 // of sizes and arrivals: the same numbers for every subject
	// Sample is the interval between points of a connection; 0 takes none.
	Sample time.Duration
}

// Size is a distribution of bytes.
type Size struct {
	// Fixed is the size of each, if not 0.
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
