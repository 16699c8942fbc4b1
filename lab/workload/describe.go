package workload

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/console"
)

// Defaults of Spec in bytes: a small request and its reply.
const (
	defaultRequest = 64
	defaultReply   = 256
)

func (s Spec) request() int { return int(cmp.Or(s.Request, defaultRequest)) }
func (s Spec) reply() int   { return int(cmp.Or(s.Reply, defaultReply)) }
func (s Spec) streams() int { return cmp.Or(s.Streams, 1) }

// places is the concurrency of a closed loop.
func (s Spec) places() int { return cmp.Or(s.Concurrency, 1) }

// bound is the time after which the part is ended, if it has not ended by itself.
func (s Spec) bound() time.Duration { return cmp.Or(s.Duration, MaxDuration) }

// openLoop reports whether flows begin at set times, whether or not others have ended.
func (s Spec) openLoop() bool { return s.Rate > 0 || len(s.Trace) > 0 }

// endless reports whether only the duration ends the part.
func (s Spec) endless() bool { return s.Count == 0 && s.Duration > 0 }

// times is the count, or otherwise if there is no count and a duration bounds the part, or
// 1.
func (s Spec) times(otherwise int) int {
	switch {
	case s.Count > 0:
		return s.Count
	case s.Duration > 0:
		return otherwise
	}
	return 1
}

// group is the name of the part's connections.
func (s Spec) group() string { return cmp.Or(s.Name, string(s.Kind)) }

// Length is about how long the part takes, from the beginning of the round: exact if it has
// a duration, a lower bound if it has only a count.
func (s Spec) Length() time.Duration {
	var takes time.Duration
	n := time.Duration(s.times(0))
	switch s.Kind {
	case Bulk, Iperf3:
		takes = s.Start + max(n, 1)*s.Duration
		return min(takes, cmp.Or(s.End, takes))
	case RPC, Mux:
		takes = n * s.Think
	case Flows:
		takes = n * s.Gap
		if k := len(s.Trace); k > 0 {
			takes = s.Trace[k-1].At
		}
	}
	if s.Rate > 0 {
		takes = time.Duration(min(float64(n)/s.Rate, s.bound().Seconds()) * float64(time.Second))
	}
	if s.Duration > 0 && (s.Count == 0 && len(s.Trace) == 0 || takes > s.Duration) {
		takes = s.Duration
	}
	return s.Start + takes
}

// String describes the part.
func (s Spec) String() string {
	parts := []string{s.what()}
	add := func(ok bool, format string, args ...any) {
		if ok {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(s.Concurrency > 0 && s.Kind != Mux, "%d at a time", s.Concurrency)
	add(s.Gap > 0, "%s apart", s.Gap)
	add(s.Rate > 0, "%s a second", strconv.FormatFloat(s.Rate, 'g', 4, 64))
	add(s.Think > 0, "%s apart", s.Think)
	add(s.Deadline > 0, "late after %s", s.Deadline)
	add(s.Paths > 1, "over %d paths", s.Paths)
	add(s.CC != "", "%s by its own choice", s.CC)
	add(s.IPv6, "IPv6")
	add(s.Start > 0, "from %s on", s.Start)
	add(s.End > 0, "until %s", s.End)
	return strings.Join(parts, ", ")
}

func (s Spec) what() string {
	switch s.Kind {
	case Bulk:
		return s.sequences(s.streams(), "bulk stream")
	case Iperf3:
		return s.sequences(s.streams(), "iperf3 stream")
	case RPC:
		return fmt.Sprintf("%s of %s and %s back on %s", s.amount("request"), console.Bytes(float64(s.request())),
			console.Bytes(float64(s.reply())), several(s.streams(), "connection"))
	case Flows:
		if n := len(s.Trace); n > 0 {
			return several(n, "flow") + " by trace"
		}
		return s.amount("flow") + " of " + s.Size.String()
	case Churn:
		return fmt.Sprintf("%s, %d at a time", s.amount("short connection"), s.streams())
	case Mux:
		return fmt.Sprintf("%s of %s of %s on %s", s.amount("burst"), several(s.places(), "reply"), s.Size,
			several(s.streams(), "connection"))
	case Web:
		return s.amount("HTTP request") + " for a file of " + s.Size.String() + ", a connection each"
	case Wrk:
		return fmt.Sprintf("wrk for %s, files of %s", s.Duration, s.Size)
	}
	return fmt.Sprintf("traffic of kind %q", s.Kind)
}

// sequences describes streams: Count of them one after the other in each of n sequences.
func (s Spec) sequences(n int, what string) string {
	if s.Count > 1 {
		return fmt.Sprintf("%s of %d %ss of %s", several(n, "sequence"), s.Count, what, s.Duration)
	}
	return fmt.Sprintf("%s of %s", several(n, what), s.Duration)
}

// amount is the count, or the duration.
func (s Spec) amount(what string) string {
	if n := s.times(0); n > 0 {
		return several(n, what)
	}
	return fmt.Sprintf("%s for %s", several(0, what)[len("0 "):], s.Duration)
}

func several(n int, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "y"):
		return fmt.Sprintf("%d %sies", n, strings.TrimSuffix(what, "y"))
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// String describes the size.
func (s Size) String() string {
	if s.Fixed > 0 || s.Alpha == 0 {
		return console.Bytes(float64(s.Fixed))
	}
	return fmt.Sprintf("%s on average (Pareto %v, %s to %s)", console.Bytes(s.Mean()), s.Alpha, console.Bytes(s.Scale), console.Bytes(s.Max))
}
