package link

import (
	"fmt"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/console"
)

// String describes the link for people.
func (s Spec) String() string {
	var parts []string
	say := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if s.Rate > 0 {
		say("%s", console.BitRate(float64(s.Rate)))
	}
	switch {
	case s.Jitter > 0:
		say("%s ± %s", duration(s.Delay), duration(s.Jitter))
	case s.Delay > 0:
		say("%s", duration(s.Delay))
	}
	if s.Reorder > 0 {
		say("%s reordered", console.Percent(s.Reorder))
	}
	if s.Loss > 0 {
		say("%s loss", console.Percent(s.Loss))
	}
	if share := s.Bursts.share(); share > 0 {
		say("%s loss in bursts", console.Percent(share))
	}
	if s.Queue.Bytes > 0 {
		say("queue %s", console.Bytes(float64(s.Queue.Bytes)))
	}
	if s.Queue.Packets > 0 {
		say("queue %d packets", s.Queue.Packets)
	}
	if s.ECN > 0 {
		say("ECN from %s", console.Bytes(float64(s.ECN)))
	}
	if s.Policer.Rate > 0 {
		say("policed to %s, burst %s", console.BitRate(float64(s.Policer.Rate)), console.Bytes(float64(s.Policer.Burst)))
	}
	if len(parts) == 0 {
		say("perfect")
	}
	if s.Offload {
		say("offloads on")
	}
	return strings.Join(parts, ", ")
}

func duration(d time.Duration) string {
	switch {
	case d >= time.Second:
		return console.Digits(d.Seconds()) + " s"
	case d >= time.Millisecond:
		return console.Digits(d.Seconds()*1e3) + " ms"
	}
	return console.Digits(d.Seconds()*1e6) + " µs"
}
