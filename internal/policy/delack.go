package policy

import (
	"fmt"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
)

// DELACK_MAX bounds by how much the kernel delays an ACK, so that the answer of the application can
// carry it. Of small segments, that is 40 ms or more. A peer that waits for the ACK before it sends
// more waits that long, and then for the round trip. On a long path, the delay is a small part of
// that. So a value is about a round trip, and the wait is no longer than the round trip itself. The
// shorter the delay, the more answers come too late to carry the ACK: estimate.Delack counts
// ACKs, and bars values that cost too many.

const (
	// leastDelackMax is the least value in microseconds, unless the rule has another bound.
	// With a clock of 250 Hz, 8 ms is the least value that the kernel takes.
	leastDelackMax = 8000
	// leastWaits is how often peers must have waited for a delayed ACK, per segment that is received
	// with data, for a value to be set: as often as additional ACKs may be sent (estimate's
	// extraACKs). leastWaitsKept is the same for a value that is in use.
	leastWaits     = 0.1
	leastWaitsKept = 0.05
	// tripMarginKept is the ratio of the round trip to the next longer value from which that
	// replaces the value in use.
	tripMarginKept = 1.25
)

// delackMax is the DELACK_MAX for a path, in milliseconds; 0: the kernel's. was is the one in use,
// or 0; least is the rule's bound in microseconds.
func delackMax(m *estimate.Path, was uint16, least uint64, now int64, why *estimate.Why) uint16 {
	// The least round-trip time: others contain the delays of the peer's own ACKs.
	trip, d := leastRTT(m), m.Delack
	need := float32(leastWaits)
	if was != 0 {
		need = leastWaitsKept
	}
	switch {
	case d == nil || trip == 0:
		why.Is(func() string { return "no connection has been sampled yet since the rule adapts it" })
		return 0
	case trip >= estimate.KernelDelay:
		why.Is(func() string {
			return fmt.Sprintf("the least round-trip time, %s, is not shorter than the kernel's delay of %s", trip, estimate.KernelDelay)
		})
		return 0
	case d.Share() < need:
		why.Is(func() string {
			return fmt.Sprintf("peers waited for a delayed ACK %.0f times in %.0f received segments: a shorter delay needs %.0f times or more",
				d.Waits, d.Received, need*max(estimate.LeastReceived, d.Received))
		})
		return 0
	case !d.Comparable():
		why.Is(func() string {
			return fmt.Sprintf("connections with the kernel's delay have received %.0f small segments: %d are needed to compare how many ACKs are sent", d.Counts[0][0].Received, estimate.LeastReceived)
		})
		return 0
	}
	// The longest that is not longer than a round trip; if none is, the shortest.
	for i, ms := range slices.Backward(estimate.DelackMaxes[1:]) { // the last reason is that of the longest value
		i++
		if uint64(ms)*1000 < least {
			why.Is(func() string {
				return fmt.Sprintf("the rule's bound, %s, is longer than any adapted value (%s at most)", time.Duration(least)*time.Microsecond, millis(ms))
			})
			continue
		}
		if d.Bars(i, now, why) {
			continue
		}
		if i == 1 || d.IsBarred(i-1, now) {
			return ms
		}
		longer := time.Duration(estimate.DelackMaxes[i-1]) * time.Millisecond
		if was == ms {
			longer = time.Duration(tripMarginKept * float64(longer))
		}
		if longer > trip {
			return ms
		}
	}
	return 0
}

func whyDelackMax(m *estimate.Path) string {
	d := m.Delack
	if d == nil {
		return "the value in use; the samples that it was computed from are no longer known"
	}
	text := fmt.Sprintf("of %.0f segments that peers sent, they sent %.0f only after they had waited for a delayed ACK; the least round trip takes %s", d.Received, d.Waits, micros(float32(m.MinRTT.Least())))
	for i, ms := range estimate.DelackMaxes[1:] {
		if extra, of := d.Extra(i + 1); of > 0 {
			text += fmt.Sprintf("; with %d ms, %+.3f ACKs per segment received, compared with the kernel's", ms, extra/of)
		}
	}
	return text
}
