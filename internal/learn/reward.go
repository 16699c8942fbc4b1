package learn

import (
	"math"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Ignored says why a sample is not scored; 0 means that it is. The list is
// closed, so that it can label a metric.
type Ignored uint8

const (
	Scored          Ignored = iota
	FailedConnect           // never established: the network or the peer, not the arm
	AppCC                   // the application or its route chose the congestion control
	ArmFailed               // the kernel refused the arm
	CCChanged               // another congestion control than the arm was in use at the end
	Adopted                 // older than tcpilot: its arm was not drawn
	Aborted                 // given up before it was complete, under an objective that asks for completion
	TooSmall                // fitted the initial window or nearly: no congestion control acted
	AppLimited              // the application sent less than the path would have taken
	ReceiverLimited         // the peer's window bounded it
	SndbufLimited           // the send buffer bounded it
	NoRTT                   // no round-trip time to compare
	SliceEdge               // one of many overlapping connections, begun near the edge of a slice
	NumIgnored
)

// String returns the label that metrics and the API use.
func (i Ignored) String() string {
	if i >= NumIgnored {
		return "unknown"
	}
	return [...]string{"scored", "failed-connect", "app-cc", "arm-failed", "cc-changed", "adopted", "aborted",
		"too-small", "app-limited", "receiver-limited", "sndbuf-limited", "no-rtt",
		"slice-edge"}[i]
}

const (
	// minPackets acknowledged make a sample large enough to score: two initial
	// windows (RFC 6928: 10 packets), so that at least one came after feedback.
	minPackets = 20
	// minRTTPackets is enough where only round-trip times count.
	minRTTPackets = 8
	// halfPackets is the number of packets at which a sample weighs 1/2: after about
	// 5 round trips of slow start a congestion control has made a difference.
	halfPackets = 50
	// stallTime is how long the path must have blocked a connection for it to be scored in
	// spite of few packets: the kernel's TCP_RTO_MIN. Without this, the worst arm of all
	// would never be scored.
	stallTime = 200 * time.Millisecond
	stallRTTs = 8 // and so many round trips

	// limitedShare is the share of the busy time from which on, if the receiver's window or the
	// send buffer was the limit for so long, a sample says nothing about the path's throughput.
	// Below it, the weight falls in proportion.
	limitedShare = 0.9
	// appLimitedShare is the share of path-limited time in a connection's life below which an
	// application-limited connection is not scored.
	appLimitedShare = 0.1
	// windowShare of the congestion window in use, on average, below which an
	// application-limited connection never filled it (bbr keeps cwnd at 2 BDP,
	// and so uses a half).
	windowShare = 0.25

	// jiffy is the resolution of tcpi_busy_time: the kernel's chronographs count
	// jiffies (net/ipv4/tcp_output.c tcp_chrono_set); 4 ms is HZ=250.
	jiffy = 4 * time.Millisecond

	// lossPackets are added to a connection's packets when its share of
	// retransmits is taken: one loss in ten packets is not 10 % loss.
	lossPackets = 100
	// delayPerRetrans is the price of retransmits for objectives of delay: 1 % of
	// retransmits counts as 10 % more delay. A retransmitted packet arrives at least one
	// round trip late, 200 ms after a timeout, and delays those behind it.
	delayPerRetrans = 10
	// goodputPerRetrans is the same for throughput: 1 % counts as 5 % less. At 1, an arm
	// would be rewarded for overfilling a queue as long as it gains more than it retransmits,
	// whatever other connections lose there. Random loss of a path costs all arms the same.
	goodputPerRetrans = 5
	// goodputPerDelay: e times the round-trip time counts as 10 % less throughput. It only
	// decides between arms that both fill the link: the one with the shorter queue delays
	// other connections less.
	goodputPerDelay = 0.1

	// initialWindow in packets, RFC 6928.
	initialWindow = 10
	// bulkBytes is the size from which a completion time grows with the size
	// rather than with the rounds of slow start.
	bulkBytes = 1 << 20

	// intervalWeight is the weight of a sample of a live connection relative to a whole
	// connection, because samples of one connection are correlated.
	intervalWeight = 0.5
)

// Reward scores a sample for an objective. minRTT is the least round-trip time
// known of the path in microseconds, 0 if unknown. The sample's own min_rtt and the
// duration of its handshake count as well. All rewards are natural logarithms, so that a
// factor is the same difference on any link:
//
//	throughput  ln(goodput) - ln(srtt/min_rtt)/10  -  5 x retransmitted share
//	latency     -ln(srtt/min_rtt)                  - 10 x retransmitted share
//	realtime    -ln((srtt+4 rttvar)/min_rtt)       - 10 x retransmitted share
//	fct         -ln(Busy / reference(size, min_rtt))
//
// Goodput is BytesAcked / Busy, bytes/s: over the time with data outstanding. It is weighted
// by the share of that time in which the path was the limit (SendLimited). Dividing by
// SendLimited alone would count the bytes acknowledged in the other time, but not that time:
// a connection limited by its receiver for 90 % would score ten times the link's speed.
// Retransmits take capacity from other connections, and a queue delays them, which the
// sender's own goodput does not show: of two arms that fill the link, the one that
// retransmits less and keeps the queue shorter is better.
//
// srtt + 4 rttvar is the tail estimate of RFC 6298. The reference completion
// time is the rounds of slow start that the size needs from an initial window of
// 10 (each doubling is one bucket), times min_rtt, and in proportion to the size
// above 1 MiB: so neither small nor large responses drown the other.
//
// Weight is packets/(packets+50), halved for samples of live connections, and,
// if a busy time is used, times busy/(busy+4 ms) for the resolution of the kernel's clock; 0 to 1.
func Reward(o Objective, s *tcp.Sample, minRTT uint32) (Outcome, Ignored) {
	if why := unattributable(s); why != Scored {
		return Outcome{}, why
	}
	minRTT = leastRTT(s, minRTT)
	pkts := packets(s)
	out := outcomeOf(s, pkts)
	var why Ignored
	switch o {
	case Throughput:
		why = throughput(&out, s, pkts, minRTT)
	case FCT:
		why = completion(&out, s, pkts, minRTT)
	default:
		why = latency(&out, s, pkts, minRTT, o == Realtime)
	}
	if why != Scored {
		return Outcome{}, why
	}
	return out, Scored
}

// Goodput is the outcome of a sample by ln(goodput) alone, with the weight that it has for
// throughput. Guards use it, because an arm with next to no goodput does harm under any
// objective.
func Goodput(s *tcp.Sample) (Outcome, Ignored) {
	if why := unattributable(s); why != Scored {
		return Outcome{}, why
	}
	pkts := packets(s)
	out := outcomeOf(s, pkts)
	if why := goodput(&out, s, pkts); why != Scored {
		return Outcome{}, why
	}
	return out, Scored
}

// outcomeOf sets what does not depend on the objective.
func outcomeOf(s *tcp.Sample, pkts float64) Outcome {
	out := Outcome{
		At: s.At, MinRTT: s.MinRTT, Rate: s.DeliveryRate,
		Loss: float64(s.Retrans) / float64(max(s.DataSegsOut, s.Retrans)+lossPackets),
		Sent: float64(max(s.DataSegsOut, s.Retrans)), Again: float64(s.Retrans),
		Weight: pkts / (pkts + halfPackets),
	}
	if s.MinRTT != 0 {
		out.Stretch = stretch(float64(s.SRTT), s.MinRTT)
		out.Queue = stretch(float64(s.SRTT)-float64(s.RTTVar), s.MinRTT)
	}
	if s.Kind == tcp.KindInterval {
		out.Weight *= intervalWeight
	}
	return out
}

// unattributable says why a sample cannot be scored for any arm, whatever the objective.
func unattributable(s *tcp.Sample) Ignored {
	switch {
	case s.Kind == tcp.KindFailedConnect:
		return FailedConnect
	case s.Has(tcp.FlagAppCC):
		return AppCC
	case s.Has(tcp.FlagArmFailed):
		return ArmFailed
	case s.Has(tcp.FlagCCChanged):
		return CCChanged
	case s.Has(tcp.FlagAdopted):
		return Adopted
	}
	return Scored
}

func throughput(out *Outcome, s *tcp.Sample, pkts float64, minRTT uint32) Ignored {
	if why := goodput(out, s, pkts); why != Scored {
		return why
	}
	out.Price = goodputPerRetrans * retransShare(s)
	if s.SRTT != 0 && minRTT != 0 {
		out.Price += goodputPerDelay * stretch(float64(s.SRTT), minRTT)
	}
	out.Reward -= out.Price
	return Scored
}

func goodput(out *Outcome, s *tcp.Sample, pkts float64) Ignored {
	busy := busyTime(s)
	if pkts < minPackets && !stalled(s, pkts) {
		return TooSmall
	}
	if s.RwndLtd > time.Duration(limitedShare*float64(busy)) {
		return ReceiverLimited
	}
	if s.RwndLtd+s.SndbufLtd > time.Duration(limitedShare*float64(busy)) {
		return SndbufLimited
	}
	rate := float64(s.BytesAcked) / busy.Seconds()
	if s.Has(tcp.FlagAppLimited) || neverFilledWindow(s) {
		// Little's law: what was in flight on average is the rate times srtt.
		flight := rate * float64(s.SRTT) * 1e-6
		if s.SendLimited() < time.Duration(appLimitedShare*float64(s.Duration)) ||
			flight < windowShare*float64(s.Cwnd)*float64(s.MSS) {
			return AppLimited
		}
	}
	out.Reward = math.Log(rate)
	out.Weight *= precision(busy)
	if s.Busy > 0 {
		out.Weight *= float64(s.SendLimited()) / float64(s.Busy)
	}
	return Scored
}

// neverFilledWindow reports whether nothing has made the connection slow down. Then only the used
// share of its window shows whether it ever filled the path. The kernel's flag is not
// enough: it is about the latest round trip, which is often not application-limited when
// the connection ends with its last request. A tail loss probe that the peer did not need, because a
// machine stalled, does not slow a connection down either.
func neverFilledWindow(s *tcp.Sample) bool {
	return s.Ssthresh >= tcp.InfiniteSsthresh && s.Retrans <= s.DSACKs && s.Lost == 0
}

func latency(out *Outcome, s *tcp.Sample, pkts float64, minRTT uint32, realtime bool) Ignored {
	if pkts < minRTTPackets && !stalled(s, pkts) {
		return TooSmall
	}
	if s.SRTT == 0 || minRTT == 0 {
		return NoRTT
	}
	rtt := float64(s.SRTT)
	if realtime {
		rtt += 4 * float64(s.RTTVar)
	}
	out.Reward = -stretch(rtt, minRTT) - delayPerRetrans*retransShare(s)
	return Scored
}

// stretch is the natural log of how many times minRTT a round-trip time is, both in
// microseconds. A smoothed one may lag below a min_rtt that has just risen.
func stretch(rtt float64, minRTT uint32) float64 {
	return math.Log(max(1, rtt/float64(minRTT)))
}

func completion(out *Outcome, s *tcp.Sample, pkts float64, minRTT uint32) Ignored {
	if s.End == tcp.EndAborted || s.End == tcp.EndReset {
		return Aborted
	}
	if pkts < minPackets && !stalled(s, pkts) {
		return TooSmall
	}
	if s.RwndLtd > time.Duration(limitedShare*float64(busyTime(s))) {
		return ReceiverLimited
	}
	if minRTT == 0 {
		return NoRTT
	}
	busy := max(busyTime(s), time.Duration(minRTT)*time.Microsecond)
	out.Reward = math.Log(reference(s, pkts, minRTT) / busy.Seconds())
	out.Weight *= precision(busy)
	return Scored
}

// reference is the completion time, in seconds, that a transfer of this size
// would have on an idle path without a bandwidth limit, stretched for bulk.
func reference(s *tcp.Sample, pkts float64, minRTT uint32) float64 {
	rounds := math.Ceil(math.Log2(pkts/initialWindow + 1))
	bulk := max(1, float64(s.BytesAcked)/bulkBytes)
	return max(1, rounds) * float64(minRTT) * 1e-6 * bulk
}

// busyTime is the time with data outstanding. Where the kernel's clock is too
// coarse to have seen any, the connection's whole life bounds it.
func busyTime(s *tcp.Sample) time.Duration {
	return max(s.Busy, min(jiffy, s.Duration), time.Microsecond)
}

// precision of a time that was counted in jiffies, as a factor of evidence, 0 to 1.
func precision(busy time.Duration) float64 {
	return float64(busy) / float64(busy+jiffy)
}

// retransShare is out of the packets sent, 0 to 1.
func retransShare(s *tcp.Sample) float64 {
	return min(1, float64(s.Retrans)/float64(max(s.DataSegsOut, 1)))
}

// packets acknowledged, from the bytes: segment counters include retransmits.
func packets(s *tcp.Sample) float64 {
	return float64(s.BytesAcked) / float64(max(s.MSS, 536)) // RFC 9293 3.7.1: the default MSS
}

// stalled reports whether the path let next to nothing through for many round trips although
// there was data to send.
func stalled(s *tcp.Sample, pkts float64) bool {
	limited := s.SendLimited()
	return pkts >= 1 && (s.Retrans > 0 || !s.Has(tcp.FlagAppLimited)) && limited >= stallTime &&
		limited >= stallRTTs*time.Duration(s.SRTT)*time.Microsecond
}

// leastRTT is the least round-trip time known of the path. The duration of the handshake
// counts, because it does not contain a queue that the connection itself builds.
func leastRTT(s *tcp.Sample, minRTT uint32) uint32 {
	least := func(v uint32) {
		if v > 0 && (minRTT == 0 || v < minRTT) {
			minRTT = v
		}
	}
	least(s.MinRTT)
	if s.Connect > 0 && s.Connect < time.Minute {
		least(uint32(s.Connect / time.Microsecond))
	}
	return minRTT
}
