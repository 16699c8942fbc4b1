package link

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// String describes the link for people.
func (s Spec) String() string {
	var words []string
	say := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	if s.Rate > 0 {
		say("%s", inBits(s.Rate))
	}
	switch {
	case s.Jitter > 0:
		say("%s ± %s", duration(s.Delay), duration(s.Jitter))
	case s.Delay > 0:
		say("%s", duration(s.Delay))
	}
	if s.Reorder > 0 {
		say("%s reordered", percent(s.Reorder))
	}
	if s.Loss > 0 {
		say("%s loss", percent(s.Loss))
	}
	if share := s.Bursts.Share(); share > 0 {
		say("%s loss in bursts", percent(share))
	}
	if s.Queue.Bytes > 0 {
		say("queue %s", inBytes(s.Queue.Bytes))
	}
	if s.Queue.Packets > 0 {
		say("queue %d packets", s.Queue.Packets)
	}
	if s.ECN > 0 {
		say("ECN from %s", inBytes(s.ECN))
	}
	if s.Policer.Rate > 0 {
		say("policed to %s, burst %s", inBits(s.Policer.Rate), inBytes(s.Policer.Burst))
	}
	if len(words) == 0 {
		say("perfect")
	}
	if s.Offload {
		say("offloads on")
	}
	return strings.Join(words, ", ")
}

func inBits(perSecond uint64) string { return scaled(perSecond, "bit/s", "kbit/s", "Mbit/s", "Gbit/s") }
func inBytes(n uint64) string        { return scaled(n, "B", "KB", "MB", "GB") }

// scaled formats n in the greatest unit that it reaches, as number does.
func scaled(n uint64, units ...string) string {
	value, i := float64(n), 0
	for value >= 1000 && i < len(units)-1 {
		value /= 1000
		i++
	}
	return number(value) + " " + units[i]
}

func percent(share float64) string { return number(100*share) + " %" }

func duration(d time.Duration) string {
	switch {
	case d >= time.Second:
		return number(d.Seconds()) + " s"
	case d >= time.Millisecond:
		return number(d.Seconds()*1e3) + " ms"
	}
	return number(d.Seconds()*1e6) + " µs"
}

// number formats v with three significant digits, or with all before the decimal point
// if there are more.
func number(v float64) string {
	if v >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
