package calibrate

import (
	"math"
	"time"

	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// Want is the configuration of a path: the Specs of its links in each direction, in the
// order in which packets cross them.
type Want struct {
	Forward, Backward []link.Spec
	IPv6              bool
	// Quick measures for 3 s instead of 10 s: it detects a loss twice as high as asked, but
	// not one that differs by a fifth.
	Quick bool
	// Emulated widens the tolerances for the processors of an emulated machine.
	Emulated bool
}

// Along collects the Specs of the links between two hosts; spec returns what a link was
// asked to do in each of its own directions.
func Along(l *topology.Layout, from, to *topology.Host, spec func(wire string) (forward, backward link.Spec)) (Want, error) {
	var w Want
	there, err := l.Path(from, to)
	if err != nil {
		return w, err
	}
	for _, hop := range there {
		out, back := spec(hop.Name)
		if hop.Backward {
			out, back = back, out
		}
		w.Forward = append(w.Forward, out)
		w.Backward = append([]link.Spec{back}, w.Backward...)
	}
	return w, nil
}

// Asked is the combined effect of the Specs of one direction.
type Asked struct {
	Delay   time.Duration `json:"delay_ns"`
	Jitter  time.Duration `json:"jitter_ns"`            // of several links, the root of the sum of squares
	Loss    float64       `json:"loss"`                 // share of packets
	Reorder float64       `json:"reorder"`              // share of packets
	Rate    float64       `json:"rate_bits_per_second"` // of frames; 0 is no limit
	// Queue is how long a packet waits that finds a full queue; 0 if nothing waits.
	Queue time.Duration `json:"queue_ns"`
	ECN   bool          `json:"ecn"`

	// jitterError is the standard error of a measurement of Jitter: see byChance.
	jitterError float64
	// inflation is the factor by which losses in bursts vary more than single ones.
	inflation float64
	marks     bool   // packets are certainly marked when the queue is full
	policed   bool   // Rate is a policer's
	bucket    uint64 // bytes that the policer lets pass at first
	// burstBytes and burstPackets are how many bytes, and packets, fit into the smallest
	// queue.
	burstBytes, burstPackets float64
	perByte                  time.Duration // time to send a byte, over all links
	offload                  bool          // all links carry aggregates
	loose                    float64       // factor of the tolerances, 1 or slack
}

// ask adds up the Specs of a direction.
func ask(specs []link.Spec) Asked {
	a := Asked{inflation: 1, loose: 1, jitterError: jitterError, offload: len(specs) > 0, burstBytes: math.Inf(1), burstPackets: math.Inf(1)}
	pass, keep, jitter := 1.0, 1.0, 0.0
	for _, s := range specs {
		if jitter > 0 && s.Jitter > 0 {
			a.jitterError = jitterErrorMany
		}
		a.Delay += s.Delay
		jitter += s.Jitter.Seconds() * s.Jitter.Seconds()
		pass *= 1 - s.LossShare()
		keep *= 1 - s.Reorder
		a.inflation = max(a.inflation, inflation(s))
		a.offload = a.offload && s.Offload
		a.narrow(s)
	}
	a.Jitter = time.Duration(math.Sqrt(jitter) * 1e9)
	a.Loss, a.Reorder = 1-pass, 1-keep
	return a
}

// narrow takes the limits of one link into account.
func (a *Asked) narrow(s link.Spec) {
	if r := float64(s.Rate); r > 0 {
		room := s.Room()
		if room.Bytes > 0 {
			a.burstBytes = min(a.burstBytes, float64(room.Bytes))
		}
		if room.Packets > 0 {
			a.burstPackets = min(a.burstPackets, float64(room.Packets))
		}
		a.perByte += time.Duration(8e9 / r)
		a.ECN = a.ECN || s.ECN > 0
		if a.Rate == 0 || r < a.Rate {
			a.Rate, a.Queue, a.policed = r, s.QueueDelay(), false
			a.marks = s.ECN > 0 && float64(s.ECN) < a.Queue.Seconds()*r/8/2
		}
	}
	if r := float64(s.Policer.Rate); r > 0 {
		a.burstBytes = min(a.burstBytes, float64(s.Policer.Burst))
		if a.Rate == 0 || r < a.Rate {
			a.Rate, a.Queue, a.marks, a.policed, a.bucket = r, 0, false, true, s.Policer.Burst
		}
	}
}

// inflation is the factor by which the variance of the share of lost packets exceeds that
// of independent losses: 1 + 2 * the sum of the autocorrelations. The state of a
// Gilbert-Elliott channel k packets later is correlated by (1-ToBad-ToGood)^k.
func inflation(s link.Spec) float64 {
	b, p := s.Bursts, s.LossShare()
	memory := 1 - b.ToBad - b.ToGood
	if b.ToBad == 0 || p <= 0 || p >= 1 {
		return 1
	}
	if memory >= 1 {
		return math.Inf(1)
	}
	bad := b.ToBad / (b.ToBad + b.ToGood)
	spread := (1 - s.Loss) * (b.LossBad - b.LossGood)
	shared := bad * (1 - bad) * spread * spread / (p * (1 - p))
	return max(1, 1+2*shared*memory/(1-memory))
}
