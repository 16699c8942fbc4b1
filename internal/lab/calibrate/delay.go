package calibrate

import (
	"context"
	"errors"
	"fmt"
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
// way.
type round struct{ trip, there, back Spread }

// probe sends packets to a socket for a while, space apart, and each is sent back
// at once. It waits for those that are late, but not longer than linger.
func probe(ctx context.Context, number uint32, from, to *socket, within, space, linger time.Duration) (round, error) {
	var failed error
	stopEcho := to.collect(number, func(a arrival, payload []byte) {
		// It goes back as it came, with the time of its turn behind its head.
		head{sent: a.at}.put(payload[headLen:])
		failed = errors.Join(failed, to.write(payload, nil, from))
	})
	var trips, theres, backs []time.Duration
	stop := from.collect(number, func(a arrival, payload []byte) {
		turned := readHead(payload[headLen:]).sent
		trips = append(trips, a.at-a.sent)
		theres = append(theres, turned-a.sent)
		backs = append(backs, a.at-turned)
	})
	s := stream{number: number, payload: 2 * headLen, burst: 1, group: 1, legs: []leg{{within, 1 / space.Seconds()}}}
	sent, err := s.send(ctx, from, to)
	if err != nil {
		linger = 0
	}
	if err := errors.Join(err, stop(sent, linger), stopEcho(0, 0), failed); err != nil {
		return round{}, err
	}
	if len(trips) == 0 {
		return round{}, fmt.Errorf("none of %d probes came back", sent)
	}
	return round{spread(trips), spread(theres), spread(backs)}, nil
}

// worst is how long a packet may take, with room for a machine that is late.
func (a Asked) worst() time.Duration {
	return a.Delay + 2*a.Jitter + a.Queue + packetLen*a.perByte + 300*time.Millisecond
}

// medianError is how far the median of so many probes may be from the true one
// by chance, with 99.9 %: the standard error of the median of a uniform
// distribution of half width j is j / sqrt(n).
func medianError(j time.Duration, probes int) time.Duration {
	return time.Duration(3.29 * float64(j) / math.Sqrt(float64(max(1, probes))))
}
