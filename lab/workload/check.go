package workload

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// Limits of a part.
const (
	MaxCount   = load.MaxFlows // of requests, flows, connections: for each host of From
	MaxStreams = 1000
	// MaxDuration is the maximum time of a part, from the beginning of the round.
	MaxDuration = load.MaxDuration
	// MaxConcurrency is the maximum concurrency of one agent, which needs a file descriptor for
	// each connection.
	MaxConcurrency = 4096
	// maxPoints bounds the points of one connection: 10 minutes each 10 ms.
	maxPoints = 60_000
)

// field is a field of Spec that not all kinds have.
type field struct {
	name string
	set  func(Spec) bool
	of   []Kind
}

var fields = []field{
	{"end", func(s Spec) bool { return s.End != 0 }, []Kind{Bulk}},
	{"count", func(s Spec) bool { return s.Count != 0 }, []Kind{Bulk, RPC, Flows, Churn, Mux, Iperf3, Web}},
	{"streams", func(s Spec) bool { return s.Streams != 0 }, []Kind{Bulk, RPC, Churn, Mux, Iperf3}},
	{"cc", func(s Spec) bool { return s.CC != "" }, []Kind{Bulk, RPC, Flows, Churn, Mux, Iperf3}},
	{"request", func(s Spec) bool { return s.Request != 0 }, []Kind{RPC, Churn, Mux}},
	{"reply", func(s Spec) bool { return s.Reply != 0 }, []Kind{RPC, Churn}},
	{"deadline", func(s Spec) bool { return s.Deadline != 0 }, []Kind{RPC}},
	{"think", func(s Spec) bool { return s.Think != 0 }, []Kind{RPC, Mux}},
	{"concurrency", func(s Spec) bool { return s.Concurrency != 0 }, []Kind{Flows, Mux, Wrk, Web}},
	{"gap", func(s Spec) bool { return s.Gap != 0 }, []Kind{Flows}},
	{"rate", func(s Spec) bool { return s.Rate != 0 }, []Kind{Flows, Churn}},
	{"size", func(s Spec) bool { return s.Size != Size{} }, []Kind{Flows, Mux, Wrk, Web}},
	{"client", func(s Spec) bool { return s.Client != "" }, []Kind{Web}},
	{"first", func(s Spec) bool { return s.First != 0 }, []Kind{Web}},
	{"trace", func(s Spec) bool { return len(s.Trace) != 0 }, []Kind{Flows}},
	{"paths", func(s Spec) bool { return s.Paths != 0 }, []Kind{Churn}},
	{"sample", func(s Spec) bool { return s.Sample != 0 }, []Kind{Bulk, RPC, Flows, Mux, Iperf3}},
}

// kinds are all kinds of traffic.
var kinds = []Kind{Bulk, RPC, Flows, Churn, Mux, Iperf3, Wrk, Web}

// mistakes collects lines "FIELD: what is wrong".
type mistakes []error

func (m *mistakes) unless(ok bool, field, format string, args ...any) {
	if !ok {
		*m = append(*m, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
	}
}

// Check returns all mistakes in the part: a line for each, beginning with the field's name
// in lower case and a colon.
func (s Spec) Check() error {
	if !slices.Contains(kinds, s.Kind) {
		return fmt.Errorf("kind: %q is no kind of traffic; there are %v", s.Kind, kinds)
	}
	var m mistakes
	for _, f := range fields {
		m.unless(!f.set(s) || slices.Contains(f.of, s.Kind), f.name, "%s traffic has none", s.Kind)
	}
	m.unless(s.From == "" || s.To == "" || s.From != s.To, "to", "%s has no traffic with itself", s.To)
	m.unless(0 <= s.Start && s.Start <= MaxDuration, "start", "%s is not in 0 to %s", s.Start, MaxDuration)
	m.unless(0 <= s.Duration && s.Duration <= MaxDuration, "duration", "%s is not in 0 to %s", s.Duration, MaxDuration)
	m.unless(s.End == 0 || s.Start < s.End && s.End <= MaxDuration, "end",
		"%s is not after the start, %s, and at most %s", s.End, s.Start, MaxDuration)
	m.unless(0 <= s.Count && s.Count <= MaxCount, "count", "%d is not in 0 to %d", s.Count, MaxCount)
	m.unless(0 <= s.Streams && s.Streams <= MaxStreams, "streams", "%d is not in 0 to %d", s.Streams, MaxStreams)
	m.unless(0 <= s.Think && s.Think <= load.MaxThink, "think", "%s is not in 0 to %s", s.Think, load.MaxThink)
	m.unless(0 <= s.Deadline && s.Deadline <= MaxDuration, "deadline", "%s is not in 0 to %s", s.Deadline, MaxDuration)
	m.unless(0 <= s.Gap && s.Gap <= load.MaxThink, "gap", "%s is not in 0 to %s", s.Gap, load.MaxThink)
	m.unless(0 <= s.Rate && s.Rate <= 1e6, "rate", "%v is not in 0 to a million a second", s.Rate)
	m.unless(0 <= s.Paths && s.Paths <= topology.MaxSpread, "paths", "%d is not in 0 to %d", s.Paths, topology.MaxSpread)
	m.unless(len(s.CC) < 16, "cc", "%q is longer than a congestion control's name", s.CC)
	m.sample(s)
	m.messages(s)
	m.kind(s)
	return errors.Join(m...)
}

func (m *mistakes) sample(s Spec) {
	least := load.MinSample
	if s.Kind == Iperf3 {
		least = 100 * time.Millisecond // the minimum of its option -i
	}
	m.unless(s.Sample == 0 || s.Sample >= least, "sample", "%s is less than %s", s.Sample, least)
	m.unless(s.Sample <= 0 || s.Duration/s.Sample <= maxPoints, "sample",
		"%s in %s is more than %d points", s.Sample, s.Duration, maxPoints)
}

// messages are requests, replies and sizes.
func (m *mistakes) messages(s Spec) {
	m.unless(s.Request <= load.MaxMessage, "request", "%d bytes, at most %d", s.Request, load.MaxMessage)
	m.unless(s.Reply <= load.MaxMessage, "reply", "%d bytes, at most %d", s.Reply, load.MaxMessage)
	switch {
	case s.Request == 0:
	case s.Kind == Mux:
		m.unless(s.Request >= load.MinMuxRequest && s.Request <= 64<<10, "request",
			"%d bytes is not in %d to %d", s.Request, load.MinMuxRequest, 64<<10)
	default:
		m.unless(s.Request >= load.MinRequest, "request", "%d bytes, at least %d", s.Request, load.MinRequest)
	}
	for i, a := range s.Trace {
		m.unless(0 < a.Size && a.Size <= load.MaxMessage, "trace", "arrival %d has %d bytes, want 1 to %d", i, a.Size, load.MaxMessage)
		m.unless(0 <= a.At && a.At <= MaxDuration, "trace", "arrival %d is at %s, not in 0 to %s", i, a.At, MaxDuration)
		m.unless(i == 0 || a.At >= s.Trace[max(i, 1)-1].At, "trace", "arrival %d is before the one above it", i)
	}
	m.unless(len(s.Trace) <= MaxCount, "trace", "%d arrivals, at most %d", len(s.Trace), MaxCount)
	if s.Size != (Size{}) {
		m.size(s.Size)
	}
}

func (m *mistakes) size(s Size) {
	if s.Fixed > 0 {
		m.unless(s.Fixed <= load.MaxMessage, "size", "%d bytes, at most %d", s.Fixed, load.MaxMessage)
		m.unless(s == Size{Fixed: s.Fixed}, "size", "it is either fixed or distributed")
		return
	}
	m.unless(0.1 <= s.Alpha && s.Alpha <= 10, "size", "alpha %v is not in 0.1 to 10", s.Alpha)
	m.unless(1 <= s.Scale && s.Scale < s.Max && s.Max <= load.MaxMessage, "size",
		"want 1 <= scale < max <= %d, not %.0f and %.0f", load.MaxMessage, s.Scale, s.Max)
}

// kind checks what the kind needs.
func (m *mistakes) kind(s Spec) {
	switch s.Kind {
	case Bulk:
		m.unless(s.Duration > 0, "duration", "a bulk connection must end")
		m.unless(max(s.Count, 1) <= int(MaxDuration/max(s.Duration, 1)), "count", "%d times %s is more than %s", s.Count, s.Duration, MaxDuration)
	case Flows:
		m.flows(s)
	case Churn:
		m.unless(s.Count > 0 || s.Duration > 0, "duration", "churn needs an end: a duration or a count")
		m.unless(s.Paths == 0 || s.To != "senders", "paths", "they are addresses of a receiver")
	case Mux:
		m.unless(s.Size != Size{}, "size", "replies need one")
		m.unless(s.Concurrency <= load.MaxConcurrency && s.Concurrency >= 0, "concurrency", "%d is not in 0 to %d", s.Concurrency, load.MaxConcurrency)
	case Web:
		m.unless(s.Count > 0, "count", "web needs an end: a count")
		m.unless(s.Size.Fixed > 0, "size", "a file has a fixed size")
		m.unless(s.Concurrency >= 0 && s.Concurrency <= MaxConcurrency, "concurrency", "%d is not in 0 to %d", s.Concurrency, MaxConcurrency)
		m.unless(0 <= s.First && (s.First == 0 || s.First < s.Count), "first", "%d is not less than the count, %d", s.First, s.Count)
		m.unless(slices.Contains([]Client{"", OwnClient, Curl}, s.Client), "client", "%q is neither %s nor %s", s.Client, OwnClient, Curl)
	case Iperf3, Wrk:
		m.unless(s.Duration >= time.Second && s.Duration%time.Second == 0, "duration", "%s takes whole seconds, at least one", s.Kind)
		m.unless(s.Streams <= 128, "streams", "iperf3 takes at most 128") // its MAX_STREAMS
		m.unless(s.Kind != Wrk || s.Size.Fixed > 0, "size", "wrk asks for a file of fixed size")
		m.unless(s.Concurrency >= 0 && s.Concurrency <= MaxConcurrency, "concurrency", "%d is not in 0 to %d", s.Concurrency, MaxConcurrency)
	}
}

func (m *mistakes) flows(s Spec) {
	m.unless(s.Concurrency >= 0 && s.Concurrency <= MaxConcurrency, "concurrency", "%d is not in 0 to %d", s.Concurrency, MaxConcurrency)
	m.unless(len(s.Trace) == 0 || s.Size == Size{}, "size", "the trace has the sizes")
	m.unless(len(s.Trace) == 0 || s.Count == 0, "count", "the trace has its own")
	m.unless(len(s.Trace) == 0 || s.Rate == 0, "rate", "the trace has the times")
	m.unless(len(s.Trace) > 0 || s.Size != Size{}, "size", "flows need one")
	m.unless(!s.openLoop() || s.Concurrency == 0, "concurrency", "flows begin by rate or trace, however many go on")
	m.unless(!s.openLoop() || s.Gap == 0, "gap", "flows begin by rate or trace")
	if s.Count == 0 {
		m.unless(s.Rate*s.Duration.Seconds() <= MaxCount/2, "rate", "%v a second for %s is more than %d flows", s.Rate, s.Duration, MaxCount/2)
	}
}
