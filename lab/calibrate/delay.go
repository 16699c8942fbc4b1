package calibrate

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"
)

// Spread is the distribution of times over probes.
type Spread struct {
	Probes int           `json:"probes"` // that came back
	Min    time.Duration `json:"min_ns"`
	Median time.Duration `json:"median_ns"`
	P10    time.Duration `json:"p10_ns"`
	P90    time.Duration `json:"p90_ns"`
}

func spread(times []time.Duration) Spread {
	if len(times) == 0 {
		return Spread{}
	}
	slices.Sort(times)
	at := func(q float64) time.Duration { return times[int(q*float64(len(times)-1)+0.5)] }
	return Spread{Probes: len(times), Min: times[0], Median: at(0.5), P10: at(0.1), P90: at(0.9)}
}

// jitter is half the width of the uniform distribution with this distance between its
// tenth and ninetieth percentiles.
func (s Spread) jitter() time.Duration { return (s.P90 - s.P10) * 5 / 8 }

// round is the result of one set of probes: the times of the whole round trip, and of each
// direction. Those of there include probes that were lost on the way back.
type round struct {
	sent              int
	trip, there, back Spread
}

// probe sends packets to a socket for the time within, one every space; each is sent back
// at once. It waits for late ones, but not longer than linger. It is not an error if none
// arrives.
func probe(ctx context.Context, number uint32, from, to *socket, within, space, linger time.Duration) (round, error) {
	var failed error
	var trips, theres, backs []time.Duration
	stopEcho := to.collect(number, func(a arrival, payload []byte) {
		theres = append(theres, a.delay())
		// The packet is sent back unchanged, with the time of its return after its head.
		head{sent: a.at}.put(payload[headLen:])
		failed = errors.Join(failed, to.write(payload, nil, from))
	})
	stop := from.collect(number, func(a arrival, payload []byte) {
		trips = append(trips, a.delay())
		backs = append(backs, a.at-readHead(payload[headLen:]).sent)
	})
	s := stream{number: number, payload: 2 * headLen, burst: 1, group: 1, segments: []segment{{within, 1 / space.Seconds()}}}
	d, err := s.send(ctx, from, to)
	if err != nil {
		linger = 0
	}
	err = errors.Join(err, stop(ctx, d.sent, linger), stopEcho(ctx, 0, 0))
	if err = errors.Join(err, failed); err == nil {
		err = ctx.Err() // ctx ended the wait early
	}
	return round{d.sent, spread(trips), spread(theres), spread(backs)}, err
}

// worst is the longest time that a packet may take, with a reserve of 300 ms for delays of
// the machine.
func (a Asked) worst() time.Duration {
	return a.Delay + 2*a.Jitter + a.Queue + packetLen*a.perByte + 300*time.Millisecond
}

// Standard errors of measurements of a jitter, as shares of it, with one probe; they
// shrink with the square root of the number of probes. They follow from the density f at
// the quantiles that are measured (the variance of a quantile q is q * (1-q) / (n * f^2)),
// for a uniform distribution, and for the normal distribution of the same standard
// deviation, which the sum of several links approximates.
const (
	medianError     = 1.0 // 0.72 if normal
	jitterError     = 0.5
	jitterErrorMany = 0.82
)

// byChance is by how much a measurement may be off by chance, with a probability of
// 99.9 %, if its standard error with one probe is the given share of a jitter.
func byChance(share float64, jitter time.Duration, probes int) time.Duration {
	const deviations = 3.29
	return time.Duration(deviations * share * float64(jitter) / math.Sqrt(float64(max(1, probes))))
}
