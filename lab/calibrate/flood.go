package calibrate

import (
	"context"
	"slices"
	"time"
)

// Rate, queue and marks are measured with a flood of full packets.
const (
	// over is by how much a flood exceeds the rate, as a share of it. overPolicer is the
	// same for the rate of a policer, greater so that its bucket is soon empty.
	over, overPolicer = 0.2, 1.0
	// fill is the time in which a flood fills the queue, if the machine can send that fast.
	fill = 300 * time.Millisecond
	// longFill: a queue that takes longer than this to fill counts as one that cannot be
	// filled.
	longFill = 4 * time.Second
	// settle is extra time for the queue to become completely full.
	settle = 100 * time.Millisecond
	// enough is the number of packets that are needed to measure a rate.
	enough = 100
	// restarts is how often at most a flood begins again because the machine stalled, which lets the queue run
	// empty. The last one is measured, whatever happens.
	restarts = 5
	// reached is the share of a flood that must have been sent for its queue to count as
	// filled.
	reached = 0.97
)

// flood describes how one direction is flooded.
type flood struct {
	stream
	before time.Duration // time until the queue is full or the bucket empty
	fills  bool          // whether the queue will be full
}

// easyBits is a rate of full frames, in bit/s, that the machine carries easily.
func (w *direction) easyBits() float64 { return w.easy * 8 * (packetLen + ethernetHead) }

// plan makes a flood that goes on for the time hold after the queue is full.
func (w *direction) plan(number uint32, hold time.Duration) flood {
	a := w.asked
	payload := packetLen - (w.overhead - ethernetHead)
	pps := a.Rate / 8 / (packetLen + ethernetHead)
	// By how much the rate is exceeded, as a share of it: first to fill the queue, then
	// to keep it full.
	filling, holding, before := over, over, time.Duration(0)
	switch {
	case a.policed:
		filling, holding = overPolicer, overPolicer
		before = time.Duration(float64(a.bucket) * 8e9 / a.Rate / filling)
	case a.Queue > 0:
		filling = max(over, min(float64(a.Queue)/float64(fill), max(1, w.easyBits()/a.Rate)))
		before = time.Duration(float64(a.Queue) / filling)
	}
	pps /= 1 - min(a.Loss, 0.9) // loss may come before the limit
	f := flood{fills: before <= longFill}
	f.before = min(before, longFill) + settle
	hold = max(hold, min(longFill, time.Duration(enough/pps*1e9)))
	f.stream = stream{number: number, payload: payload, group: 1, restarts: restarts,
		segments: []segment{{f.before, (1 + filling) * pps}, {hold, (1 + holding) * pps}}}
	f.burst = int(max(8, pps/20)) // enough to fill the queue again after a late wake-up
	if a.offload {
		f.group = int(min(maxGroup, max(1, pps/1000)))
	}
	return f
}

// probeRate floods the direction, if its rate is limited.
func (w *direction) probeRate(ctx context.Context, number uint32, hold time.Duration, d *Direction) error {
	if w.asked.Rate == 0 {
		return nil
	}
	f := w.plan(number, hold)
	c, err := w.run(ctx, f.stream)
	if err != nil {
		return err
	}
	frame := float64(f.payload + w.overhead)
	d.Offered = float64(c.sent) * frame * 8 / (c.ended - c.began).Seconds()
	if len(c.arrivals) == 0 {
		return nil
	}
	// From the time when the queue is full until the last packet has left, the limit is
	// never idle. Packets sent in that time find a full queue.
	var busy []time.Duration // arrivals
	var waits []time.Duration
	marked := 0
	for _, a := range c.arrivals {
		if a.at >= c.arrivals[0].at+f.before {
			busy = append(busy, a.at)
		}
		if a.sent < c.began+f.before {
			continue
		}
		waits = append(waits, a.delay()-d.Delay.Median)
		if a.marked {
			marked++
		}
	}
	if len(busy) < 2 || len(waits) == 0 {
		return nil
	}
	d.Rate = perSecond(busy) * frame * 8
	d.Marked = float64(marked) / float64(len(waits))
	planned, _ := f.due(c.ended - c.began)
	d.filled = f.fills && float64(c.sent) >= reached*float64(planned)
	if !w.asked.policed {
		slices.Sort(waits)
		d.Queue = max(0, waits[len(waits)/2])
	}
	return nil
}

// perSecond is the rate of two or more arrivals, in 1/s: the median over all pairs that are
// half of the arrivals apart. A stall of the machine delays some arrivals, which then come
// together; the first or the last may be one of them.
func perSecond(at []time.Duration) float64 {
	half := len(at) / 2
	spans := make([]time.Duration, 0, len(at)-half)
	for i := half; i < len(at); i++ {
		spans = append(spans, at[i]-at[i-half])
	}
	slices.Sort(spans)
	return float64(half) / max(spans[len(spans)/2], time.Nanosecond).Seconds()
}
