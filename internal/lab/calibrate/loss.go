package calibrate

import (
	"context"
	"math"
	"time"
)

// Loss is found by small packets at a constant rate.
const (
	// lossPPS is at most the rate, in packets per second: what two processors carry
	// in both directions at the same time, with room to spare.
	lossPPS = 10_000
	// lossShare is at most how much of a limited rate they take, so that none waits
	// for long and none is dropped for want of room.
	lossShare = 0.5
)

// probeLoss counts what is lost and what overtakes.
func (w *way) probeLoss(ctx context.Context, number uint32, within time.Duration, d *Direction) error {
	const payload = 2 * headLen
	frame := float64(payload + w.overhead)
	s := stream{number: number, payload: payload, group: 1, legs: []leg{{within, lossPPS}}}
	if w.asked.Rate > 0 {
		s.legs[0].pps = min(lossPPS, lossShare*w.asked.Rate/8/frame)
	}
	// A quarter of the narrowest queue leaves room for what waits there already.
	s.burst = int(max(1, min(lossPPS/100, w.asked.burstPackets/4, w.asked.burstBytes/4/frame)))
	c, err := w.run(ctx, s)
	if err != nil {
		return err
	}
	d.Sent, d.Lost = c.sent, c.sent-len(c.arrivals)
	d.Loss = float64(d.Lost) / math.Max(1, float64(c.sent))
	seqs := make([]uint32, len(c.arrivals))
	for i, a := range c.arrivals {
		seqs[i] = a.seq
	}
	d.Reorder = float64(overtakers(seqs)) / math.Max(1, float64(len(seqs)))
	// Without the delay a packet arrives before those that were sent up to a delay
	// earlier: with none in that time it overtakes nothing.
	d.canReorder = w.asked.Delay.Seconds()*s.legs[0].pps >= 3
	return nil
}
