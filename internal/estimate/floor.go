package estimate

import (
	"math"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

const (
	// floorNear is the greatest difference from the floor of a connection that met it, as a
	// share. leastNear and mostNear bound it, in microseconds: interrupts of the hosts and
	// departure times of paced packets (recorded: 0.2 ms) do not depend on the path's length.
	floorNear, leastNear, mostNear = 0.05, 300, 1000
	// floorClose is the greatest difference of connections that came close to the floor, as a
	// multiple of the greatest difference of those that met it (near).
	floorClose = 6
	// manyFloors is the number of connections at which the counts are halved, so that the
	// latest ones count most.
	manyFloors = 512

	// mostSmall is the number of data packets up to which a connection is small: packets that
	// are sent at once wait for each other.
	mostSmall = 4
	// shortSmall is how many least round-trip times a small connection may last. In a later
	// exchange the peer may delay its acknowledgement by more than the path does.
	shortSmall = 8
	// leastDifference is the least difference within a connection, in microseconds: a geometric
	// mean with 0 is 0.
	leastDifference = 10
	// spreadGain is the weight of a small connection in the spread.
	spreadGain = 1. / 16

	// queueSegs is the number of data packets from which a connection can keep a queue.
	queueSegs = 64
	// queueWindow is how long the greatest queue is remembered.
	queueWindow = 2 * time.Minute
)

// Floor counts how the least round-trip times of connections relate to that of the path. The
// connection that lowered it does not count as one that met it.
type Floor struct {
	RTT   float32 `json:"rtt_us"` // least round-trip time of a connection, microseconds; 0 is unknown
	Met   float32 `json:"met"`    // connections that had the same
	Close float32 `json:"close"`  // connections that came close, including these
	All   float32 `json:"all"`    // all connections
}

// near is the greatest difference from the floor of a connection that met it, microseconds.
func (f *Floor) near() float32 { return min(max(leastNear, floorNear*f.RTT), mostNear) }

// observe counts a connection by its least round-trip time. path is that of the path; both
// are in microseconds.
func (f *Floor) observe(rtt, path float32) {
	near := f.near()
	switch {
	case f.RTT == 0 || path > f.RTT+floorClose*near: // unknown, or the path became longer
		*f = Floor{RTT: rtt, All: 1}
		return
	case rtt < f.RTT-near/2: // a new floor, which the connections before this one did not meet
		if rtt < f.RTT-floorClose*near {
			f.Close = 0
		}
		f.RTT, f.Met = rtt, 0
	case rtt <= f.RTT+near:
		f.RTT = min(f.RTT, rtt)
		f.Met++
		f.Close++
	case rtt <= f.RTT+floorClose*near:
		f.Close++
	}
	if f.All++; f.All >= manyFloors {
		f.Met, f.Close, f.All = f.Met/2, f.Close/2, f.All/2
	}
}

// sharpOdds and apartOdds are what one connection adds to the natural logarithm of the likelihood
// ratio of a fixed delay to one that varies: sharpOdds if it met the floor, apartOdds if it only
// came close.
var sharpOdds, apartOdds = float32(math.Log(fixedShare / varyingShare)), float32(math.Log((1 - fixedShare) / (1 - varyingShare)))

// decided reports whether the counts tell if the delay is fixed or varies.
func (f *Floor) decided() bool {
	odds := f.Met*sharpOdds + (f.Close-f.Met)*apartOdds
	return odds >= floorOdds || odds <= -floorOdds || f.All >= leastFloors && f.Met <= seldomMet*f.All
}

// observeDelay notes what a sample shows of how the delay of the path varies, and of its queue.
func (p *Path) observeDelay(s *tcp.Sample, at int64) {
	floor := float32(p.MinRTT.Least())
	if s.MinRTT == 0 || s.SRTT == 0 || floor == 0 {
		return
	}
	if s.Whole() && s.Retrans == 0 { // round-trip times of retransmitted packets are in milliseconds (tcp_rtt_tsopt_us)
		p.Floor.observe(float32(s.MinRTT), floor)
	}
	if s.Whole() && isSmall(s) {
		d := float64(max(leastDifference, max(s.SRTT, s.MinRTT)-s.MinRTT))
		p.Small += min(1, math.MaxUint32-p.Small)
		if p.Spread > 0 {
			d = float64(p.Spread) * math.Pow(d/float64(p.Spread), max(spreadGain, 1/float64(p.Small)))
		}
		p.Spread = float32(d)
	}
	// A round-trip time that still changes by much shows no standing queue.
	if d := float32(s.SRTT) - floor; s.DataSegsOut >= queueSegs && d > 4*float32(s.RTTVar) {
		p.Queue.Max(at, uint64(d), queueWindow)
	}
}

// isSmall reports whether a sample is of a connection that sent a few packets at once, without
// a loss.
func isSmall(s *tcp.Sample) bool {
	return s.DataSegsOut > 0 && s.DataSegsOut <= mostSmall && s.Lost == 0 && s.Retrans == 0 &&
		s.Duration <= shortSmall*time.Duration(s.MinRTT)*time.Microsecond
}
