package calibrate

import (
	"context"
	"math"
	"time"
)

// lossShare is the maximum share of a limited rate that the small probes of loss use, so
// that none waits for long and none is dropped because the queue is full.
const lossShare = 0.5

// lossHits is how many losses should be expected, so that twice or half as many can be
// distinguished from chance; to reach it the probes run up to lossLonger times longer.
const (
	lossHits   = 60
	lossLonger = 3
)

// probeLoss counts packets that are lost and packets that overtake.
func (w *direction) probeLoss(ctx context.Context, number uint32, within time.Duration, d *Direction) error {
	const payload = 2 * headLen
	frame := float64(payload + w.overhead)
	s := stream{number: number, payload: payload, group: 1, segments: []segment{{within, w.easy}}}
	if w.asked.Rate > 0 {
		s.segments[0].pps = min(w.easy, lossShare*w.asked.Rate/8/frame)
	}
	if a := w.asked; a.Loss > 0 {
		need := lossHits / a.Loss * a.inflation / s.segments[0].pps
		s.segments[0].duration = max(within, min(lossLonger*within, time.Duration(need*1e9)))
	}
	// A quarter of the smallest queue leaves room for packets that already wait there.
	s.burst = int(max(1, min(w.easy/100, w.asked.burstPackets/4, w.asked.burstBytes/4/frame)))
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
	// A packet without the delay overtakes those that were sent less than a delay before
	// it; if there are none, it overtakes nothing.
	d.canReorder = w.asked.Delay.Seconds()*s.segments[0].pps >= 3
	return nil
}
