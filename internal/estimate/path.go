package estimate

import (
	"math"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

const (
	// rttWindow is how long the least round-trip time is remembered. The kernel keeps that
	// of a connection for half as long (tcp_min_rtt_wlen, 300 s): a path may have few
	// connections.
	rttWindow = 10 * time.Minute
	// rateWindow is the same for the greatest rates. The capacity of a path changes more
	// often than its length.
	rateWindow = 2 * time.Minute
	// ssthreshWindow is the same for the greatest slow start threshold (Hung, Zhang and Lu,
	// "Fine-Grained TCP Tuning", slow start threshold detection: 30 s).
	ssthreshWindow = 30 * time.Second
	// minSsthresh is the least slow start threshold that is remembered, in packets: the
	// initial window of RFC 6928. A short connection with an early loss ends below it, and
	// says nothing of what the path can carry.
	minSsthresh = 10

	// srttGain is the weight of a sample that comes soon after another (RFC 6298, alpha).
	srttGain = 1. / 8
	// srttHalfLife is the time in which the weight of older samples halves, if there are few.
	srttHalfLife = 10 * time.Second
	// lossHalfLife is the same for the share of lost packets.
	lossHalfLife = time.Minute

	// maxHandshake is the duration of a handshake from which it says nothing of the
	// round-trip time, because the SYN may have been sent again: the least timeout that
	// package policy computes.
	maxHandshake = 125 * time.Millisecond

	// mostLate is by how much a sample may be older than one that arrived before it.
	mostLate = time.Minute
)

// Path is the metrics of a path, in the direction from this host to the remote one unless a
// field says otherwise. The zero Path knows nothing.
type Path struct {
	MinRTT      Window  `json:"min_rtt_us"`                    // minimum, microseconds
	Rate        Window  `json:"rate_bytes_per_second"`         // greatest delivery rate that the application did not limit, bytes/s
	ReceiveRate Window  `json:"receive_rate_bytes_per_second"` // greatest rate at which a connection received, bytes/s: a lower bound
	Ssthresh    Window  `json:"ssthresh_packets"`              // greatest slow start threshold, packets
	Carried     Window  `json:"carried_packets"`               // most that connections had in flight together without a loss, packets
	SRTT        float32 `json:"srtt_us"`                       // smoothed round-trip time, microseconds; 0 is unknown
	RTTVar      float32 `json:"rttvar_us"`                     // its variation, within connections and between them, microseconds
	Sent        float32 `json:"sent_packets"`                  // data packets, discounted
	Lost        float32 `json:"lost_packets"`                  // those of them that the sender marked as lost
	RTTs        uint32  `json:"rtts"`                          // number of samples with a smoothed round-trip time
	RTTAt       int64   `json:"rtt_at_ns"`                     // Unix nanoseconds of the latest of them; 0 is never
	SsthreshAt  int64   `json:"ssthresh_at_ns"`                // Unix nanoseconds of the latest value of Ssthresh; 0 is never
	CarriedAt   int64   `json:"carried_at_ns"`                 // the same of Carried
	RTOMin      RTOMin  `json:"rto_min"`                       // what spurious retransmissions show of each RTO_MIN
	Updated     int64   `json:"updated_ns"`                    // Unix nanoseconds of the latest sample; 0 is never
	Policer     Policer `json:"policer"`                       // a rate limit without a queue

	// What only some rules ask for; nil: the path's rule does not.
	Incast *Incast `json:"incast,omitempty"` // what connections show that fill the queue together
	Delack *Delack `json:"delack,omitempty"` // what ACKs show of each DELACK_MAX
	Peer   *Peer   `json:"peer,omitempty"`   // what hosts told in the peer option

	// What only the type of network follows from.
	Floor   Floor   `json:"floor"`
	Queue   Window  `json:"queue_us"`  // greatest standing queue of a connection, microseconds: smoothed round-trip time less MinRTT
	Spread  float32 `json:"spread_us"` // geometric mean of what round-trip times within small connections differ by, microseconds
	Small   uint32  `json:"small"`     // number of connections that Spread is the mean of
	Network Network `json:"network"`

	earlySince int64 // time of the first of the samples since the clock was set back, as Updated; 0: it was not
}

// Clone returns a copy that shares nothing with p.
func (p *Path) Clone() Path {
	c := *p
	if p.Incast != nil {
		i := *p.Incast
		c.Incast = &i
	}
	if p.Delack != nil {
		d := *p.Delack
		c.Delack = &d
	}
	if p.Peer != nil {
		q := *p.Peer
		c.Peer = &q
	}
	return c
}

// at returns the time of a sample, which is not before that of an earlier one: samples may arrive out of order. If samples have
// been more than mostLate before for as long as round-trip times are remembered, the clock was set back, and what is known
// would not age until that time comes again: it is forgotten. A clock that is wrong for a short time, as that of a host
// that starts before it knows the time, changes nothing.
func (p *Path) at(s *tcp.Sample) int64 {
	switch {
	case p.Updated-s.At <= int64(mostLate):
		p.earlySince = 0
	case p.earlySince == 0 || p.earlySince-s.At > int64(mostLate):
		p.earlySince = s.At
	case s.At-p.earlySince > int64(rttWindow):
		p.forget()
	}
	return max(s.At, p.Updated)
}

// forget begins anew with the metrics that the path's rule asks for.
func (p *Path) forget() {
	old := *p
	*p = Path{Incast: old.Incast, Delack: old.Delack, Peer: old.Peer}
	if p.Incast != nil {
		*p.Incast = Incast{}
	}
	if p.Delack != nil {
		*p.Delack = Delack{}
	}
	if p.Peer != nil {
		*p.Peer = Peer{}
	}
}

// Observe updates the metrics by a sample, whether or not it can be scored.
func (p *Path) Observe(s *tcp.Sample) {
	at := p.at(s)
	elapsed := time.Duration(0)
	if p.Updated != 0 {
		elapsed = time.Duration(at - p.Updated)
	}
	p.observeRTT(s, at)
	p.observeLoss(s, elapsed)
	p.RTOMin.observe(s)
	if p.Delack != nil {
		p.Delack.observe(s)
	}
	if p.Peer != nil {
		p.Peer.observe(s)
	}
	p.Policer.observe(s, at)
	if p.Incast != nil {
		p.Incast.observe(s, p.MinRTT.Least(), at)
	}
	if s.Kind != tcp.KindFailedConnect {
		p.Rate.Max(at, deliveryRate(s), rateWindow)
		p.ReceiveRate.Max(at, receiveRate(s), rateWindow)
		p.observeWindows(s, at)
		p.observeDelay(s, at)
	}
	m := p.shown()
	now, _ := m.classify()
	p.Network.show(now, at)
	p.Updated = at
}

// ObserveLosses updates what losses show by a sample of a connection that is followed only since it has lost packets
// (tcp.Sample.SinceLosses). Everything else follows from samples that stand for all connections alike; round-trip times only as
// long as there are some.
func (p *Path) ObserveLosses(s *tcp.Sample) {
	at := p.at(s)
	if p.SRTT == 0 || at-p.RTTAt > int64(rttWindow/2) {
		p.observeRTT(s, at)
	}
	p.Policer.observe(s, at)
}

func (p *Path) observeRTT(s *tcp.Sample, at int64) {
	p.MinRTT.Min(at, uint64(s.MinRTT), rttWindow)
	if s.Connect < maxHandshake {
		p.MinRTT.Min(at, uint64(s.Connect.Microseconds()), rttWindow)
	}
	if s.SRTT == 0 {
		return
	}
	gain, off := float32(1), float32(0)
	if p.SRTT != 0 {
		gain = max(srttGain, 1-keep(time.Duration(at-p.RTTAt), srttHalfLife))
		off = float32(math.Abs(float64(s.SRTT) - float64(p.SRTT))) // between connections
	}
	p.SRTT += gain * (float32(s.SRTT) - p.SRTT)
	p.RTTVar += gain * (max(float32(s.RTTVar), off) - p.RTTVar)
	p.RTTAt = at
	p.RTTs += min(1, math.MaxUint32-p.RTTs)
}

func (p *Path) observeWindows(s *tcp.Sample, at int64) {
	if v := ssthresh(s); v != 0 {
		p.Ssthresh.Max(at, v, ssthreshWindow)
		p.SsthreshAt = at
	}
	if v := carried(s); v != 0 {
		p.Carried.Max(at, v, ssthreshWindow)
		p.CarriedAt = at
	}
}

func (p *Path) observeLoss(s *tcp.Sample, elapsed time.Duration) {
	k := keep(elapsed, lossHalfLife)
	p.Sent = p.Sent*k + float32(s.DataSegsOut)
	p.Lost = p.Lost*k + float32(min(s.Lost, s.DataSegsOut))
}

// keep is the weight that is left of older samples after a time.
func keep(elapsed, halfLife time.Duration) float32 {
	return float32(math.Exp2(-float64(elapsed) / float64(halfLife)))
}

// Loss is the recent share of data packets that were lost, 0 to 1; false if none were sent.
func (p *Path) Loss() (share float64, ok bool) {
	if p.Sent < 1 {
		return 0, false
	}
	return float64(p.Lost / p.Sent), true
}

// deliveryRate is the delivery rate of a connection in bytes/s; 0 if it is unknown, or was
// measured while the application sent too little.
func deliveryRate(s *tcp.Sample) uint64 {
	if s.Has(tcp.FlagAppLimited) {
		return 0
	}
	return s.DeliveryRate
}

// ShowsCapacity reports whether a sample shows how much the path carries, in either direction.
func ShowsCapacity(s *tcp.Sample) bool { return ssthresh(s)|carried(s)|receiveRate(s) != 0 }

// receiveRate is the mean rate at which a connection received, bytes/s; 0 if it received
// less than an initial window, or for less than a round trip.
func receiveRate(s *tcp.Sample) uint64 {
	took := s.Duration - s.Connect
	if s.BytesReceived < minSsthresh*uint64(s.MSS) || took < max(time.Millisecond, time.Duration(s.MinRTT)*time.Microsecond) {
		return 0
	}
	return uint64(float64(s.BytesReceived) / took.Seconds())
}

// ssthresh is the window in packets at which the connection left slow start; 0 if it did not.
// A congestion control that models the path, such as bbr, does not set the slow start threshold.
// If its connection lost packets, what that had in flight counts.
func ssthresh(s *tcp.Sample) uint64 {
	window := uint64(s.Ssthresh)
	if s.Ssthresh == 0 || s.Ssthresh >= tcp.InfiniteSsthresh {
		if s.Lost == 0 && s.Retrans == 0 {
			return 0
		}
		window = delivered(s)
	}
	if window < minSsthresh {
		return 0
	}
	return window
}

// delivered is what the connection had in flight at its delivery rate, without a queue: the
// bandwidth-delay product, in packets; 0 if it is unknown.
func delivered(s *tcp.Sample) uint64 {
	if s.MSS == 0 {
		return 0
	}
	return uint64(min(float64(deliveryRate(s))*float64(s.MinRTT)/1e6/float64(s.MSS), tcp.InfiniteSsthresh))
}

// mostFlows bounds the number of connections that are assumed to have carried as much as the
// sampled one, because tcp.Sample.Flows also counts idle ones.
const mostFlows = 8

// carried is a number of packets that the connections of the path have had in flight together,
// if this one had no losses; else 0. One that left slow start had its threshold in flight, unless
// its window was raised in mid-flight, beyond what it may have used. In
// slow start, the kernel lets the congestion window grow to at most twice what was in flight
// (tcp_is_cwnd_limited), so that the window must have grown from the value that it was raised to.
func carried(s *tcp.Sample) uint64 {
	if s.Lost > 0 || s.Retrans > 0 {
		return 0
	}
	one := delivered(s)
	switch {
	case s.Ssthresh != 0 && s.Ssthresh < tcp.InfiniteSsthresh && s.ResumeCwnd == 0:
		one = max(one, uint64(min(s.Ssthresh, s.DataSegsOut)))
	case !s.Has(tcp.FlagLater) && s.Cwnd > max(minSsthresh, uint32(s.InitCwnd), uint32(s.ResumeCwnd)):
		one = max(one, uint64(min(s.Cwnd/2, s.DataSegsOut)))
	}
	if one <= minSsthresh {
		return 0
	}
	return one * uint64(min(max(1, s.Flows), mostFlows))
}
