package policy

import (
	"fmt"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
)

// RTO_MIN is what the kernel adds to the smoothed round-trip time before it retransmits, if four
// times the variation is less. It has to exceed what the round-trip time of the path may rise by
// all at once, and the time by which peers delay their ACKs: 40 ms (TCP_DELACK_MIN of Linux), and
// up to 200 ms on other systems. If it is too short, packets are retransmitted that were only late:
// estimate.RTOMin counts them.

const (
	// rtoMinMargin is the least ratio of RTO_MIN to the bound of what round trips take beyond
	// the least one, and rtoMinMarginKept the same for a value that is not shorter than the
	// one in use.
	rtoMinMargin     = 2
	rtoMinMarginKept = 1.5
	// leastRTOMin is the least value in microseconds, unless the rule has another bound: the
	// usual delay of ACKs, and a jiffy.
	leastRTOMin = 50_000
)

// rtoMin is the least RTO_MIN that is long enough for the path, in milliseconds; 0: the kernel's.
// was is the one in use, or 0; least is the rule's bound in microseconds.
func rtoMin(m *estimate.Path, was uint16, least uint64, now int64, why *estimate.Why) uint16 {
	in := max(0, slices.Index(estimate.RTOMins[:], was))
	rise := rttRise(m)
	for i := len(estimate.RTOMins) - 1; i > 0; i-- { // the last reason is that of the longest value
		ms, margin := estimate.RTOMins[i], float64(rtoMinMargin)
		if i <= in {
			margin = rtoMinMarginKept
		}
		switch {
		case uint64(ms)*1000 < least:
			why.Is(func() string {
				return fmt.Sprintf("the rule's bound, %s, is longer than any adapted value (%s at most)", time.Duration(least)*time.Microsecond, millis(ms))
			})
		case millis(ms) < time.Duration(margin*float64(rise)):
			why.Is(func() string {
				return fmt.Sprintf("%s: the longest adapted value, %s, is less than %g times that", whyRTTRise(m), millis(ms), margin)
			})
		case m.RTOMin.Allows(i, in, now, why):
			return ms
		}
	}
	return 0
}

// rttRise is a bound of what round trips take beyond the least one: rttBound less that.
func rttRise(m *estimate.Path) time.Duration {
	return max(0, rttBound(m)-leastRTT(m))
}

func whyRTOMin(a Adapted, m *estimate.Path) string {
	c := m.RTOMin.Counts[max(0, slices.Index(estimate.RTOMins[:], a.RTOMin))]
	return fmt.Sprintf("%s; times 1.5 to 2, rounded up to the next allowed value; of %.0f packets sent with it, %.0f were spurious retransmissions", whyRTTRise(m), c.Sent, c.Resent)
}

func whyRTTRise(m *estimate.Path) string {
	return fmt.Sprintf("srtt %s + 4 x rttvar %s is %s above the least round-trip time", micros(m.SRTT), micros(m.RTTVar), rttRise(m).Round(100*time.Microsecond))
}
