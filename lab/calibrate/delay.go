package calibrate

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"
)

// Spread is how times are spread over probes.
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

// jitter is half the width of the uniform distribution whose tenth and ninetieth
// percentiles lie so far apart.
func (s Spread) jitter() time.Duration { return (s.P90 - s.P10) * 5 / 8 }

// round is the times of one set of probes: of the whole round trip, and of each
// way. There counts those too that were lost on their way back.
type round struct {
	sent              int
	trip, there, back Spread
}

// probe sends packets to a socket for a while, space apart, and each is sent back
// at once. It waits for those that are late, but not longer than linger. That
// none comes is no error.
func probe(ctx context.Context, number uint32, from, to *socket, within, space, linger time.Duration) (round, error) {
	var failed error
	var trips, theres, backs []time.Duration
	stopEcho := to.collect(number, func(a arrival, payload []byte) {
		theres = append(theres, a.delay())
		// It goes back as it came, with the time of its turn behind its head.
		head{sent: a.at}.put(payload[headLen:])
		failed = errors.Join(failed, to.write(payload, nil, from))
	})
	stop := from.collect(number, func(a arrival, payload []byte) {
		trips = append(trips, a.delay())
		backs = append(backs, a.at-readHead(payload[headLen:]).sent)
	})
	s := stream{number: number, payload: 2 * headLen, burst: 1, group: 1, legs: []leg{{within, 1 / space.Seconds()}}}
	sent, err := s.send(ctx, from, to)
	if err != nil {
		linger = 0
	}
	err = errors.Join(err, stop(ctx, sent, linger), stopEcho(ctx, 0, 0))
	if err = errors.Join(err, failed); err == nil {
		err = ctx.Err() // it cut the wait short
	}
	return round{sent, spread(trips), spread(theres), spread(backs)}, err
}

// worst is how long a packet may take, with room for a machine that is late.
func (a Asked) worst() time.Duration {
	return a.Delay + 2*a.Jitter + a.Queue + packetLen*a.perByte + 300*time.Millisecond
}

// Standard errors of what is found of a jitter, as shares of it, with one probe;
// they shrink with the root of the number of probes. By the density f at the
// quantiles that it is found from (the variance of a quantile q is
// q * (1-q) / (n * f^2)): of a uniform distribution, and of the normal one that the
// sum of several links comes close to, of the same standard deviation.
const (
	medianError     = 1.0 // 0.72 where it is normal
	jitterError     = 0.5
	jitterErrorMany = 0.82
)

// byChance is how far something may be off by chance, with 99.9 %, whose standard
// error with one probe is that share of a jitter.
func byChance(share float64, jitter time.Duration, probes int) time.Duration {
	const deviations = 3.29
	return time.Duration(deviations * share * float64(jitter) / math.Sqrt(float64(max(1, probes))))
}
