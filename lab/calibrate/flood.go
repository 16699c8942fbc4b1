package calibrate

import (
	"context"
	"slices"
	"time"
)

// Rate, queue and marks are found by a flood of full packets.
const (
	// over is how much more than the rate is sent while it is measured, as a share
	// of it, and overPolicer than a policer's, so that its bucket is soon empty.
	over, overPolicer = 0.2, 1.0
	// fill is how soon a flood fills the queue, if the machine can send so much.
	fill = 300 * time.Millisecond
	// longFill is from when on a queue counts as one that cannot be filled.
	longFill = 4 * time.Second
	// settle is left for the queue to be as full as it gets.
	settle = 100 * time.Millisecond
	// enough is how many packets tell a rate.
	enough = 100
	// reached is the share of a flood that must have been sent for it to have filled
	// a queue.
	reached = 0.97
)

// flood is how a way is flooded.
type flood struct {
	stream
	before time.Duration // until its queue is full or its bucket empty
	fills  bool          // whether the queue will be full
}

// easyBits is the rate of full frames that the machine carries easily.
func (w *way) easyBits() float64 { return w.easy * 8 * (packetLen + ethernetHead) }

// plan makes a flood that lasts hold once the queue is full.
func (w *way) plan(number uint32, hold time.Duration) flood {
	a := w.asked
	payload := packetLen - (w.overhead - ethernetHead)
	pps := a.Rate / 8 / (packetLen + ethernetHead)
	// What is sent beyond the rate, as a share of it: first to fill, then to hold.
	hot, warm, before := over, over, time.Duration(0)
	switch {
	case a.policed:
		hot, warm = overPolicer, overPolicer
		before = time.Duration(float64(a.bucket) * 8e9 / a.Rate / hot)
	case a.Queue > 0:
		hot = max(over, min(float64(a.Queue)/float64(fill), max(1, w.easyBits()/a.Rate)))
		before = time.Duration(float64(a.Queue) / hot)
	}
	pps /= 1 - min(a.Loss, 0.9) // loss may come before the limit
	f := flood{fills: before <= longFill}
	f.before = min(before, longFill) + settle
	hold = max(hold, min(longFill, time.Duration(enough/pps*1e9)))
	f.stream = stream{number: number, payload: payload, group: 1,
		legs: []leg{{f.before, (1 + hot) * pps}, {hold, (1 + warm) * pps}}}
	f.burst = int(max(8, pps/20)) // a late wake-up is to fill the queue again
	if a.offload {
		f.group = int(min(maxGroup, max(1, pps/1000)))
	}
	return f
}

// probeRate floods the way, if its rate is limited.
func (w *way) probeRate(ctx context.Context, number uint32, hold time.Duration, d *Direction) error {
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
	// From when the queue is full the limit is never idle, until the last packet has
	// left. What is sent from then on meets a full queue.
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

// perSecond is how many arrivals there are in a second, of two or more: the median over all
// that are half of them apart. A machine that stood still delays some, which then come at
// once; what is first or last may be one of these.
func perSecond(at []time.Duration) float64 {
	half := len(at) / 2
	spans := make([]time.Duration, 0, len(at)-half)
	for i := half; i < len(at); i++ {
		spans = append(spans, at[i]-at[i-half])
	}
	slices.Sort(spans)
	return float64(half) / max(spans[len(spans)/2], time.Nanosecond).Seconds()
}
