package estimate

import (
	"fmt"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Many connections that send to one host at a time fill the queue in front of it (incast). Each of
// them grows until packets are lost, and then some wait for timeouts. A clamp of their windows keeps
// the queue short. What all connections of all hosts may have in flight together is the
// bandwidth-delay product plus a short queue. A sender does not know the other hosts, but it knows the
// rate of its own connections. Their part of the sum is this rate times the round-trip time with the
// short queue. If each host computes its part in this way, the sum is right for any number of hosts.

const (
	// MostIncastRTT is the greatest least round-trip time of paths with a clamp, microseconds: incast
	// is a matter of hosts that are close, and on longer paths a clamp that is too small costs more.
	MostIncastRTT = 10_000
	// The round-trip time that is aimed at is incastStretch times the least one, plus incastSlack
	// microseconds, which hosts and network cards take to handle packets. The queue of two
	// bandwidth-delay products absorbs requests that begin together.
	incastStretch, incastSlack = 3, 100
	// A clamp begins when the round-trip time is at least incastBegins times the one aimed at. If
	// packets are lost, it begins when the round-trip time is at least incastBeginsLossy times the
	// least one, the ratio from which there is a queue at all.
	incastBegins, incastBeginsLossy = 2, 1.5
	// incastLoss is the share of lost packets from which the queue counts as lossy. Then the
	// round-trip time aimed at is at most incastShorter times the present one, but not less than
	// incastLeast times the least one.
	incastLoss, incastShorter, incastLeast = 0.002, 0.7, 1.25
	// incastFlows is the least number of connections of the path that are clamped. A connection
	// that is alone fills its own queue only, which is left to its congestion control.
	incastFlows = 2

	// A step is made after at least stepSamples samples with at least stepPackets packets
	// together. A sample with fewer than leastIncastPackets packets shows no rate.
	stepPackets, stepSamples, leastIncastPackets = 200, 3, 10
	// incastGain is the weight of a step in the exponentially weighted mean of the clamp.
	incastGain = 0.5
	// peakWindow is for how long the greatest number of connections is remembered: connections
	// that end together each report how many are left.
	peakWindow = 2 * time.Second

	// A clamp ends incastEnds after the latest step with a queue, and ClampAge after it if there are no more steps: of samples
	// with few packets, none is made.
	incastEnds = time.Minute
	ClampAge   = 2 * time.Minute
	// If, after incastTest, the round-trip time is more than stillFull times that without a clamp,
	// and the rate less than lostRate times, then other hosts fill the queue: the clamp ends, and is
	// tried again after a minute, then two, up to four hours (leastRetry, mostRetry).
	incastTest          = 10 * time.Second
	stillFull, lostRate = 0.8, 0.5
)

// Incast is what the samples of a path show of connections that fill its queue together. The zero
// Incast knows nothing.
type Incast struct {
	// Window is how many packets all connections of the path may have in flight together; 0: there
	// is no clamp.
	Window float32   `json:"window_packets,omitempty"`
	Before Aggregate `json:"before"` // without a clamp: what the clamp began with
	Now    Aggregate `json:"now"`    // at the latest step

	Since   int64  `json:"since_ns,omitempty"`    // when the clamp began, Unix nanoseconds
	QueueAt int64  `json:"queue_at_ns,omitempty"` // latest step with a queue
	RetryAt int64  `json:"retry_at_ns,omitempty"` // until then there is no clamp
	Retry   uint32 `json:"retry_s,omitempty"`     // the pause after the next failure, seconds

	Peak Window `json:"peak"` // greatest number of the path's connections
	sums aggregateSums
}

// Aggregate describes the connections of one path at a time by means over their packets.
type Aggregate struct {
	RTT   float32 `json:"rtt_us,omitempty"`              // smoothed round-trip time, microseconds
	Loss  float32 `json:"loss,omitempty"`                // share of packets
	Rate  float32 `json:"rate_packets_per_us,omitempty"` // of all connections together
	Flows float32 `json:"connections,omitempty"`         // number of connections
}

// aggregateSums are sums over samples since the latest step, weighted by packets. They are not stored.
type aggregateSums struct {
	samples                      uint32
	sent, lost, rtt, rate, flows float64
}

func (i *Incast) observe(s *tcp.Sample, least uint64, at int64) {
	if s.Kind == tcp.KindFailedConnect || s.Flows == 0 {
		return
	}
	i.Peak.Max(at, uint64(s.Flows), peakWindow)
	if i.Window != 0 && time.Duration(at-i.QueueAt) > ClampAge {
		i.end()
	}
	busy := s.SendLimited()
	if least == 0 || least > MostIncastRTT || s.Has(tcp.FlagHoldOut) || s.SRTT == 0 || busy <= 0 || s.DataSegsOut < leastIncastPackets {
		return
	}
	n, sent := float64(i.Peak.Greatest()), float64(s.DataSegsOut)
	c := &i.sums
	c.samples++
	c.sent += sent
	c.lost += float64(min(s.Lost, s.DataSegsOut))
	c.rtt += sent * float64(s.SRTT)
	c.rate += sent * sent / max(float64(busy.Microseconds()), float64(least)) * n
	c.flows += sent * n
	if c.samples >= stepSamples && c.sent >= stepPackets {
		i.Now = Aggregate{RTT: float32(c.rtt / c.sent), Loss: float32(c.lost / c.sent), Rate: float32(c.rate / c.sent), Flows: float32(c.flows / c.sent)}
		i.sums = aggregateSums{}
		i.step(float64(least), at)
	}
}

// step follows the latest means. least is the least round-trip time in microseconds.
func (i *Incast) step(least float64, at int64) {
	now, rtt := &i.Now, float64(i.Now.RTT)
	aim := incastStretch*least + incastSlack
	if i.lossy() {
		aim = min(aim, max(incastShorter*rtt, incastLeast*least))
	}
	window := float32(float64(now.Rate) * aim)
	if i.Window == 0 {
		if i.begins(least, at, nil) {
			i.Before, i.Since, i.QueueAt, i.Window = *now, at, at, window
		}
		return
	}
	i.Window += incastGain * (window - i.Window)
	if rtt >= incastBeginsLossy*least || i.lossy() {
		i.QueueAt = at
	}
	switch {
	case time.Duration(at-i.QueueAt) > incastEnds:
		i.end()
	case time.Duration(at-i.Since) > incastTest && now.RTT > stillFull*i.Before.RTT && now.Rate < lostRate*i.Before.Rate:
		i.Retry = max(leastRetry, min(i.Retry, mostRetry))
		i.Window, i.RetryAt = 0, at+int64(i.Retry)*int64(time.Second)
		i.Retry *= 2
	}
}

// end ends a clamp that is not needed any more.
func (i *Incast) end() { i.Window, i.RetryAt, i.Retry = 0, 0, 0 }

// lossy reports whether the queue was lossy at the latest step.
func (i *Incast) lossy() bool { return i.Now.Loss >= incastLoss }

// begins reports whether a clamp begins with the latest means.
func (i *Incast) begins(least float64, at int64, why *Why) bool {
	now, from := &i.Now, incastBegins*(incastStretch*least+incastSlack)
	if i.lossy() {
		from = min(from, incastBeginsLossy*least)
	}
	switch {
	case at < i.RetryAt:
		why.Is(func() string {
			return fmt.Sprintf("the latest clamp lowered the rate and left the queue full: it is not tried again for another %s", until(i.RetryAt, at))
		})
	case now.RTT == 0:
		why.Is(func() string {
			return fmt.Sprintf("too little is sampled of connections that are counted and that the path limits: %d packets in %d samples are needed", stepPackets, stepSamples)
		})
	case float64(now.RTT) < from:
		why.Is(func() string {
			return fmt.Sprintf("connections do not fill the queue together: at the latest step, round trips took %.2f ms, %.1f%% of the packets were lost, and the number of connections was %.0f; from %.2f ms on there is a clamp",
				now.RTT/1000, 100*now.Loss, now.Flows, from/1000)
		})
	case now.Flows < incastFlows:
		why.Is(func() string {
			return fmt.Sprintf("the queue is full (round trips took %.2f ms), but of one connection only: a clamp needs %d", now.RTT/1000, incastFlows)
		})
	default:
		return true
	}
	return false
}

// WhyNone writes why there is no clamp. least is the least round-trip time in microseconds.
func (i *Incast) WhyNone(least uint64, now int64, why *Why) {
	why.Is(func() string { return "a clamp begins with the next samples" })
	i.begins(float64(least), now, why)
}
