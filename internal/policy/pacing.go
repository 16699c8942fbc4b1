package policy

import (
	"fmt"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// A path with a policer drops what exceeds its rate. Connections that are paced just under it
// lose nothing, and are faster than those that lose packets. The search for the rate is in package
// estimate, because each step follows from what the connections of the step before have shown. The
// rate is divided among the path's connections like the rate limit of a rule (package limit).

// leastPacingRate is the least rate of a path to which its connections are paced, bytes/s,
// unless the rule has another bound: 1 Mbit/s. Below it, a wrong result would cost much, and a
// connection sends only a few packets in a round trip.
const leastPacingRate = 125_000

// LeastPacingRate is the least rate of a path, bytes/s, to which the rule has its connections paced.
func (r *Rule) LeastPacingRate() uint32 {
	return uint32(min(r.bound(tcp.MaxPacingRate, leastPacingRate), estimate.MostPacingRate))
}

// pacingRate is the rate at which all connections of a path together are to be paced, bytes/s;
// 0 if they are not.
func pacingRate(m *estimate.Path, least uint32, now int64, why *estimate.Why) uint32 {
	rate := m.Policer.Pace
	switch {
	case knownShort(m, false):
		why.Is(func() string {
			return fmt.Sprintf("the least round-trip time is %s: a policer is not searched for on paths of less than %s", leastRTT(m), leastWindowRTT/2)
		})
	case rate == 0:
		m.Policer.WhyNone(now, why)
	case rate < least:
		why.Is(func() string {
			return fmt.Sprintf("the rate, %s, is below the least that is used, %s", mbits(float64(rate)), mbits(float64(least)))
		})
	case rate > estimate.MostPacingRate:
		why.Is(func() string { return fmt.Sprintf("the rate, %s, is more than can be set", mbits(float64(rate))) })
	default:
		return rate
	}
	return 0
}

// mbits writes a rate in bytes/s.
func mbits(rate float64) string { return fmt.Sprintf("%.1f Mbit/s", rate*8/1e6) }

// WhyRateLimit explains a rate limit that was found, or that is searched for, by what connections
// have shown.
func WhyRateLimit(m *estimate.Path) string {
	p := &m.Policer
	mbits := func(rate uint32) string { return mbits(float64(rate)) }
	what := "a rate limit is suspected"
	if limit, ok := p.Limit(); ok {
		what = "rate limit " + mbits(limit)
	} else if p.State == estimate.PolicerFound {
		what = "a rate limit below " + mbits(p.Excess)
	}
	text := fmt.Sprintf("%s: connections without pacing lost %.1f%% of their packets at %s, while round trips were %.2f times the least",
		what, 100*p.Free.Loss(), mbits(p.Free.Rate()), p.Free.Stretch)
	if p.Clean != 0 {
		text += "; paced at " + mbits(p.Clean) + ", hardly any"
	}
	if p.Excess != 0 {
		text += "; at " + mbits(p.Excess) + ", many again"
	}
	if p.Pace != p.Clean {
		text += "; the pacing test is at " + mbits(p.Pace)
	}
	return text
}
