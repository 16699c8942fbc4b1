package policy

import (
	"fmt"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
)

// Connections that fill the queue of a short path together get a clamp of their congestion windows.
// How many packets all of them may have in flight follows from their rate: package estimate. The
// programs divide by the number of the path's connections, also while they run.

const (
	// leastClamp is the least clamp of a connection, packets, unless the rule has another bound:
	// with fewer packets in flight than the three duplicate ACKs of RFC 5681 and the lost one
	// itself, losses are found by timeouts.
	leastClamp = 4
	// mostClamp is the greatest sum that is written.
	mostClamp = 1 << 30

	// A sum that is up to clampRise times the one in use, and not below clampFall times, does not
	// replace it.
	clampRise, clampFall = 1.25, 0.8
)

// clamp is how many packets the connections of a path may have in flight together; 0: they have
// no clamp. was is the number in use.
func clamp(m *estimate.Path, was uint32, now int64, why *estimate.Why) uint32 {
	least := m.MinRTT.Least()
	switch {
	case m.Incast == nil:
		why.Is(func() string { return "no connection has been sampled yet since the rule adapts it" })
		return 0
	case least > estimate.MostIncastRTT:
		why.Is(func() string {
			return fmt.Sprintf("the least round-trip time is %s: there are clamps up to %s", leastRTT(m), time.Duration(estimate.MostIncastRTT)*time.Microsecond)
		})
		return 0
	case m.Incast.Window == 0:
		m.Incast.WhyNone(least, now, why)
		return 0
	case !isRecent("the latest queue", m.Incast.QueueAt, now, estimate.ClampAge, why):
		return 0
	}
	w := float64(m.Incast.Window)
	if old := float64(was); was != 0 && w >= clampFall*old && w <= clampRise*old {
		return was
	}
	return uint32(max(leastClamp, min(w, mostClamp)))
}

// whyClamp explains a clamp by what connections have shown without it and with it.
func whyClamp(m *estimate.Path) string {
	if m.Incast == nil {
		return "the value in use; the samples that it was computed from are no longer known"
	}
	before, now, least := &m.Incast.Before, &m.Incast.Now, float32(max(1, m.MinRTT.Least()))
	return fmt.Sprintf("%.0f connections filled the queue: round trips took %.1f times the least, and %.1f%% of their packets were lost; now %.0f, %.1f times, %.1f%%; "+
		"the sum is what they deliver in 3 times the least round-trip time, and each gets its share",
		before.Flows, before.RTT/least, 100*before.Loss, now.Flows, now.RTT/least, 100*now.Loss)
}
