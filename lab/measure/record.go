package measure

import "time"

// Result has all records of one round of traffic. Times in it count from the round's
// start.
type Result struct {
	Elapsed     time.Duration // of the traffic
	Connections []Connection
	Requests    []Request
	Points      []Point
	// Errors counts connections and requests that failed; FirstError is the error of the
	// first failure.
	Errors     uint64
	FirstError string
	// NoRTOs says that the kernel does not count RTOs (before Linux 6.7), so that zeros
	// mean nothing.
	NoRTOs bool
	// CPU is the processor time of the processes that made the traffic, by host.
	CPU map[string]CPU
	// Machine is the processor time of the whole machine meanwhile, the kernel's included that
	// belongs to no process; 0 is unknown.
	Machine time.Duration
	// Totals are exact, by group, also if Connections and Requests are only an even
	// sample of very many.
	Totals map[string]Total
}

// Total sums up the connections of a group.
type Total struct {
	Connections uint64 // that delivered all of their data
	Requests    uint64 // completed
	Bytes       uint64 // of payload that arrived
	// Begin and End are the times of the group's traffic if its records are a sample,
	// whose last record may be long before the last connection. End is 0 if the records
	// are complete.
	Begin, End time.Duration
}

// Plus returns the sum of both.
func (t Total) Plus(o Total) Total {
	sum := Total{t.Connections + o.Connections, t.Requests + o.Requests, t.Bytes + o.Bytes, t.Begin, max(t.End, o.End)}
	if t.End == 0 || o.End > 0 && o.Begin < t.Begin {
		sum.Begin = o.Begin
	}
	return sum
}

// CPU is processor time.
type CPU struct {
	User   time.Duration `json:"user_ns"`
	System time.Duration `json:"system_ns"`
}

// RTT is a round-trip time in microseconds, as the kernel has it; 0 is unknown.
type RTT uint32

// RTTOf returns d in whole microseconds.
func RTTOf(d time.Duration) RTT { return RTT(d.Microseconds()) }

// Seconds returns the time in seconds.
func (r RTT) Seconds() float64 { return (time.Duration(r) * time.Microsecond).Seconds() }

// Connection is the record of one TCP connection. The data flows from From to To,
// whichever of them connected.
type Connection struct {
	Group    string        `json:"group"` // the workload's name
	ID       int           `json:"id"`    // within the round, from 0, by start time
	From     string        `json:"from"`  // host names
	To       string        `json:"to"`
	Start    time.Duration `json:"start_ns"`
	Elapsed  time.Duration `json:"elapsed_ns"`         // connect to the end of data
	Bytes    uint64        `json:"bytes"`              // of payload that arrived
	CC       string        `json:"cc,omitempty"`       // the data sender's, once established
	CCEnd    string        `json:"cc_end,omitempty"`   // at the end, if it differs
	Segments uint32        `json:"segments,omitempty"` // sent with data, retransmits included
	Retrans  uint32        `json:"retrans,omitempty"`  // segments
	RTOs     uint32        `json:"rtos,omitempty"`     // Linux 6.7 and later
	MinRTT   RTT           `json:"min_rtt_us,omitempty"`
	SRTT     RTT           `json:"srtt_us,omitempty"` // at the end
	// MeanRTT is the mean of the smoothed round trips of the connection's points, or the
	// SRTT at the end if the connection was too short for points.
	MeanRTT   RTT  `json:"mean_rtt_us,omitempty"`
	Delivered bool `json:"delivered"` // whether all of its data or requests were completed
}

// Request is one request and its reply, or one flow, on a connection.
type Request struct {
	Group   string        `json:"group"`
	Conn    int           `json:"conn"` // Connection.ID
	Start   time.Duration `json:"start_ns"`
	Elapsed time.Duration `json:"elapsed_ns"` // first byte of the request to last of the reply
	Bytes   uint64        `json:"bytes"`      // of the larger of request and reply
	// Deadline is the longest time that a user does not notice; 0 is none.
	Deadline time.Duration `json:"deadline_ns,omitempty"`
}

// Point is the kernel's state of a connection at one time.
type Point struct {
	Conn    int           `json:"conn"` // Connection.ID
	At      time.Duration `json:"at_ns"`
	Goodput float64       `json:"goodput_bits_per_second"` // acknowledged since the previous point
	SRTT    RTT           `json:"srtt_us"`
	Cwnd    uint32        `json:"cwnd"` // packets
	Retrans uint32        `json:"retrans"`
	CC      string        `json:"cc,omitempty"`
}
