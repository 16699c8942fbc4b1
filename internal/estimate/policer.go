package estimate

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// A policer drops what exceeds its rate, and nothing waits. So connections through one lose many
// packets while round trips stay as short as they are (Flach et al., "An Internet-Wide Analysis
// of Traffic Policing", SIGCOMM 2016). Losses of a bad wire look the same in samples. The
// difference is in what happens to connections with a lower pacing rate: under the rate of a
// policer they lose nothing, and above it they lose packets again. Both have to be seen before
// a limit counts as found.

const (
	// policedLoss is the least share of lost packets that is taken for a policer's: what
	// remains in front of one is a few percent with cubic and more than ten with bbr.
	policedLoss = 0.01
	// policedLosses is the least number of packets that such a connection lost.
	policedLosses = 8
	// queueless is the greatest ratio of the round-trip time of what is delivered when losses are
	// found to the least one, if there is no queue. The queues of links are usually as long as a
	// round trip or more, and are full then.
	queueless = 1.08
	// leastPolicedRTT is the least round-trip time of paths on which a queue can be told from
	// delays of the host, microseconds.
	leastPolicedRTT = 1000
	// leastPolicedTime and leastPolicedPackets are the least send-limited time and the least number
	// of packets of a connection that shows a rate.
	leastPolicedTime    = 100 * time.Millisecond
	leastPolicedPackets = 100
	// alike is the greatest ratio of the rates of the connections that suggest a limit.
	alike = 1.6

	// pacedLosses is the number of losses that is expected of a pacing test, had pacing no effect.
	// Then fewer than leastLosses are lost by chance in 1 of 25,000 tests.
	pacedLosses = 15
	// leastLosses is the least number of lost packets that counts: one or two are lost anywhere.
	leastLosses = 3
	// cleanPart is the greatest part of the share of losses without pacing that is left under
	// the limit, and cleanLoss the greatest share.
	cleanPart, cleanLoss = 0.1, 0.002
	// lessPart is the part up to which losses count as fewer.
	lessPart = 0.5
	// usedPart is the part of its pacing rate that a connection without losses must have
	// reached to show that the path carries that rate.
	usedPart = 0.6

	// paceRise and paceFall are the steps of the pacing rate in a test, reprobeRise is the
	// first step when a known limit is tried again.
	paceRise, paceFall, reprobeRise = 1.25, 0.9, 1.08
	// settledGap is the ratio of the least rate with losses to the greatest without at which the
	// search ends. Then the rate is lowered by settledMargin: near the limit, a few losses cost
	// more than that (measured: 6 of 7600 packets cost cubic a twentieth).
	// While three packets or more are lost, it is lowered again, down to mostMargin of the rate with losses.
	settledGap, settledMargin, mostMargin = 1.06, 0.98, 0.92
	// goneRise is by how much connections must exceed a limit without losses, or the rate of those without
	// pacing, until it counts as gone; unless they have lost packets at a higher rate.
	goneRise = 2
	// mostFalls is the greatest Policer.Falls: then the limit is given up.
	mostFalls = 4

	// A search that found nothing is repeated after leastRetry, and then after twice as long up
	// to mostRetry, seconds. A limit that was found is tried again in the same way, the first time after
	// leastReprobe.
	leastRetry   = 60
	leastReprobe = 300
	mostRetry    = 4 * 3600
)

// MostPacingRate is the greatest rate that programs can pass to SO_MAX_PACING_RATE, bytes/s: all 32 bits mean no limit
// (sk_setsockopt in net/core/sock.c).
const MostPacingRate = math.MaxUint32 - 1

// PolicerState is how far the search for a rate limit is.
type PolicerState uint8

const (
	NoPolicer        PolicerState = iota // nothing suggests one
	PolicerSuspected                     // losses suggest one: connections are paced to find out
	PolicerFound                         // losses end under a rate, and begin again above it
)

// Policer is what the samples of a path show of a policer on it. Rates are bytes/s of payload, of
// all connections of the path together. The zero Policer knows nothing.
type Policer struct {
	State PolicerState `json:"state,omitempty"`
	// Least is the least rate at which the path's rule lets connections be paced. The search does not
	// go below it. Whoever observes samples sets it.
	Least uint32 `json:"-"`
	// Falls is how often in succession packets were lost at Pace, or at a rate from which it was
	// lowered. After the end of a search, the first loss is counted and does not lower Pace.
	Falls uint8 `json:"falls,omitempty"`
	// Pace is the rate at which new connections should be paced now, to find the limit or to
	// stay under it; 0 is none.
	Pace uint32 `json:"pace_bytes_per_second,omitempty"`
	// Clean is the greatest rate at which paced connections lost nothing, and Excess the least
	// at which they lost packets; 0 is unknown. The limit is between them.
	Clean  uint32 `json:"clean_bytes_per_second,omitempty"`
	Excess uint32 `json:"excess_bytes_per_second,omitempty"`
	// From is the known limit that is tried again; 0 if it is not.
	From uint32 `json:"from_bytes_per_second,omitempty"`

	// Connections that began at PaceAt (Unix nanoseconds) or later, with Pace, have sent and lost
	// so many packets.
	PaceAt    int64  `json:"pace_at_ns,omitempty"`
	PacedSent uint32 `json:"paced_sent_packets,omitempty"`
	PacedLost uint32 `json:"paced_lost_packets,omitempty"`
	// Reached is the mean rate that they had, and CleanReached the mean rate of those that were paced
	// at Clean, bytes/s.
	Reached      float32 `json:"reached_bytes_per_second,omitempty"`
	CleanReached float32 `json:"clean_reached_bytes_per_second,omitempty"`

	// Doubted says that a connection of this search lost packets while a queue was full, or hardly
	// fewer than without pacing. One such may have met a delay of the host instead.
	Doubted bool `json:"doubted,omitempty"`

	// Uncounted says that losses of a connection suggested a policer, but that it was not counted among those of its path: the path
	// needs a row for that.
	Uncounted bool `json:"uncounted,omitempty"`

	// Free are the connections without pacing that made the search begin.
	Free FreeConnections `json:"free"`

	// RetryAt is when the search begins again, Unix nanoseconds, 0 during a search; and Retry the
	// pause after that, in seconds, if it ends as before.
	RetryAt int64  `json:"retry_at_ns,omitempty"`
	Retry   uint32 `json:"retry_s,omitempty"`
}

// FreeConnections are connections without a limit of their pacing rate, whose losses suggest a
// policer: the latest ones.
type FreeConnections struct {
	Rates [3]uint32 `json:"rates_bytes_per_second"` // the latest first, bytes/s
	// Sent and Lost are packets, also of the connections between them that lost few.
	Sent uint32 `json:"sent_packets,omitempty"`
	Lost uint32 `json:"lost_packets,omitempty"`
	// Stretch is the mean ratio of the round-trip time of what was delivered when losses were
	// found to the least one.
	Stretch float32 `json:"stretch,omitempty"`
	Count   uint8   `json:"count,omitempty"` // of Rates
}

// Loss is the share of packets that they lost.
func (f *FreeConnections) Loss() float64 { return float64(f.Lost) / float64(max(1, f.Sent)) }

// Limit is the rate limit of the path in bytes/s of payload; false if none was found.
func (p *Policer) Limit() (rate uint32, ok bool) {
	if p.State != PolicerFound {
		return 0, false
	}
	return p.Clean, p.Clean != 0
}

// observe updates the search by a sample that was taken at `at`.
func (p *Policer) observe(s *tcp.Sample, at int64) {
	switch {
	case s.DataSegsOut < leastPolicedPackets || s.SendLimited() < leastPolicedTime || s.MinRTT < leastPolicedRTT || s.Kind == tcp.KindFailedConnect:
	case s.MaxPacingRate == 0:
		p.observeFree(s, at)
	case p.Pace != 0 && p.inTest(s):
		p.observePaced(s, at)
	}
	if p.Pace != 0 && p.Pace < p.Least || p.Pace > MostPacingRate {
		p.withdraw(at) // connections are not paced at such a rate, and so would show nothing
	}
}

// inTest reports whether a connection began in the present pacing test, with its rate or a share of it.
func (p *Policer) inTest(s *tcp.Sample) bool {
	part := float64(s.MaxPacingRate) / float64(p.Pace)
	return !s.SinceLosses() && s.At-int64(s.Duration) >= p.PaceAt && part < 1.02 && (s.Flows > 1 || part > 0.98)
}

// atOnce is a number of connections of the path that share its rate.
func atOnce(s *tcp.Sample) float64 { return float64(min(max(1, s.Flows), mostFlows)) }

// rateOf is the rate of a connection while the path limited it, bytes/s.
func rateOf(s *tcp.Sample) float64 { return float64(s.BytesAcked) / s.SendLimited().Seconds() }

// stretch is the ratio of the round-trip time of what was delivered when losses were found to the
// least one; 0 is unknown.
func stretch(s *tcp.Sample) float32 { return float32(s.LossRTT) / float32(s.MinRTT) }

// observeFree looks for connections without pacing that suggest a limit: they lose many packets
// without a queue, and have about the same rate.
func (p *Policer) observeFree(s *tcp.Sample, at int64) {
	lossy := s.Lost >= policedLosses && float64(s.Lost) >= policedLoss*float64(s.DataSegsOut)
	if p.State != NoPolicer || p.paused(at, nil) {
		return
	}
	f := &p.Free
	switch x := stretch(s); {
	case lossy && (x == 0 || x > queueless):
		*f = FreeConnections{}
		return
	case lossy && s.Flows == 0: // among how many it shared the path's rate is not known
		p.Uncounted = true
		return
	case lossy:
		f.add(s)
	case f.Count == 0:
		return
	}
	f.count(s)
	if !lossy {
		return
	}
	if !f.suggest(nil) {
		return
	}
	*p = Policer{State: PolicerSuspected, Least: p.Least, Free: *f, Retry: p.Retry}
	p.try(max(p.Least, slices.Max(f.Rates[:])), at)
}

// paused reports whether no search begins at a time, because the one before ended without a limit.
func (p *Policer) paused(at int64, why *Why) bool {
	if at >= p.RetryAt || p.RetryAt-at > mostRetry*1e9 {
		return false
	}
	why.Is(func() string {
		return fmt.Sprintf("the latest search for a policer's rate found none, or the limit is gone: the next search begins in %s at the earliest", until(p.RetryAt, at))
	})
	return true
}

// suggest reports whether the latest connections suggest a limit together.
func (f *FreeConnections) suggest(why *Why) bool {
	least, most := slices.Min(f.Rates[:]), slices.Max(f.Rates[:])
	switch {
	case f.Count == 0:
		why.Is(func() string {
			return fmt.Sprintf("no policer is suspected: no recent connection lost %g%% of its packets or more without a queue", 100*policedLoss)
		})
	case int(f.Count) < len(f.Rates):
		why.Is(func() string {
			return fmt.Sprintf("%d of the %d connections that are needed to suspect a policer lost %.1f%% of the packets without a queue", f.Count, len(f.Rates), 100*f.Loss())
		})
	case float64(most) > alike*float64(least):
		why.Is(func() string {
			return fmt.Sprintf("no policer is suspected: of the latest %d connections with losses but no queue, one was %.1f times as fast as another (at most %.1f)",
				len(f.Rates), float64(most)/float64(max(1, least)), alike)
		})
	case f.Loss() < policedLoss:
		why.Is(func() string {
			return fmt.Sprintf("no policer is suspected: connections lost %.2f%% of their packets, less than %g%%", 100*f.Loss(), 100*policedLoss)
		})
	default:
		return true
	}
	return false
}

// WhyNone writes why connections are not paced.
func (p *Policer) WhyNone(now int64, why *Why) {
	why.Is(func() string { return "the search for a policer's rate begins with the next samples" })
	switch {
	case p.paused(now, why):
	case p.Uncounted && p.Free.Count == 0:
		why.Is(func() string {
			return "losses of a connection suggest a policer, but it was not counted among those of the path: counted ones are needed"
		})
	default:
		p.Free.suggest(why)
	}
}

func (f *FreeConnections) add(s *tcp.Sample) {
	copy(f.Rates[1:], f.Rates[:])
	f.Rates[0] = uint32(min(math.MaxUint32, rateOf(s)*atOnce(s)))
	f.Count = min(f.Count+1, uint8(len(f.Rates)))
	f.Stretch += (stretch(s) - f.Stretch) / float32(f.Count)
}

// count adds the packets of a connection, and of those that it stands for: on a busy host, connections that lose packets
// stand for themselves, and the others for many.
func (f *FreeConnections) count(s *tcp.Sample) {
	each := uint64(max(1, s.StandsFor))
	sent, lost := uint64(f.Sent)+each*uint64(s.DataSegsOut), uint64(f.Lost)+each*uint64(min(s.Lost, s.DataSegsOut))
	for sent > math.MaxUint32 {
		sent, lost = sent/2, lost/2
	}
	f.Sent, f.Lost = uint32(sent), uint32(lost)
}

// Rate is their mean rate, bytes/s.
func (f *FreeConnections) Rate() uint32 {
	sum := 0.
	for _, r := range f.Rates {
		sum += float64(r) / float64(len(f.Rates))
	}
	return uint32(sum)
}

// try begins a test of a pacing rate.
func (p *Policer) try(rate uint32, at int64) {
	p.Pace, p.PaceAt, p.PacedSent, p.PacedLost, p.Reached = rate, at, 0, 0, 0
}

// observePaced judges the present pacing rate, once enough packets were sent with it.
func (p *Policer) observePaced(s *tcp.Sample, at int64) {
	most := min(cleanLoss, cleanPart*p.Free.Loss()) // greatest share of losses under the limit
	few := s.Lost < leastLosses || float64(s.Lost) <= most*float64(s.DataSegsOut)
	if few && rateOf(s) < usedPart*float64(s.MaxPacingRate) {
		return // it sent less than its pacing rate allows, and so shows nothing
	}
	p.PacedSent += min(s.DataSegsOut, math.MaxUint32-p.PacedSent)
	p.Reached += (float32(rateOf(s)*atOnce(s)) - p.Reached) * float32(s.DataSegsOut) / float32(p.PacedSent)
	p.PacedLost += min(s.Lost, s.DataSegsOut, math.MaxUint32-p.PacedLost)
	switch enough := pacedLosses / p.Free.Loss(); {
	case p.PacedLost >= leastLosses && float64(p.PacedLost) > most*max(enough, float64(p.PacedSent)):
		p.tooFast(s, at)
	case float64(p.PacedSent) >= enough:
		p.notTooFast(at)
	}
}

// notTooFast: the path carries the present rate.
func (p *Policer) notTooFast(at int64) {
	if p.State == PolicerFound && p.Clean != 0 && p.Pace > p.Clean && p.Reached <= p.CleanReached {
		p.exceeded(at) // the few losses cost as much as the higher rate gains
		return
	}
	p.Clean, p.CleanReached, p.Falls = p.Pace, p.Reached, 0
	switch reference := max(p.From, p.Free.Rate()); {
	case float64(p.Pace) > goneRise*float64(reference) && p.Excess <= p.Clean:
		p.withdraw(at) // the losses ended for another reason, or the limit is gone
	case p.RetryAt == 0:
		p.search(at)
	case at >= p.RetryAt:
		p.From, p.Excess, p.RetryAt = p.Clean, 0, 0
		p.try(scaled(p.Clean, reprobeRise), at)
	case p.PacedLost >= leastLosses && float64(p.Clean) > mostMargin*float64(p.Excess):
		p.Clean = p.lowered(p.Clean, settledMargin)
		p.try(p.Clean, at)
	default:
		p.try(p.Clean, at)
	}
}

// search tries a rate between the greatest without losses and the least with losses.
func (p *Policer) search(at int64) {
	switch {
	case p.Excess <= p.Clean:
		p.Excess = 0
		p.try(scaled(p.Clean, paceRise), at)
	case float64(p.Excess) <= settledGap*float64(p.Clean):
		p.settle(at)
	default:
		p.try(p.Clean+(p.Excess-p.Clean)/2, at)
	}
}

// settle stays just under the greatest rate without losses, until the limit is tried again: each time after twice
// as long, beginning with leastReprobe when a search has found it.
func (p *Policer) settle(at int64) {
	if p.Clean != p.From {
		p.Clean = p.lowered(p.Clean, settledMargin)
	}
	retry := uint32(leastReprobe)
	if p.From != 0 {
		retry = max(retry, p.Retry)
	}
	p.RetryAt, p.Retry, p.From = at+int64(retry)*1e9, min(2*retry, mostRetry), 0
	p.try(p.Clean, at)
}

// tooFast: packets are lost at the present rate.
func (p *Policer) tooFast(s *tcp.Sample, at int64) {
	share := float64(p.PacedLost) / float64(p.PacedSent)
	suspected := p.State == PolicerSuspected
	queued := suspected && stretch(s) > queueless                 // a link, in front of which packets above the rate wait
	below := p.Clean != 0 && p.Pace > p.Clean                     // the limit is below the present rate
	vain := suspected && !below && share > lessPart*p.Free.Loss() // pacing does not help
	switch {
	case (queued || vain) && !p.Doubted:
		p.Doubted = true
		p.try(p.Pace, at)
	case queued, vain, p.Falls >= mostFalls && !below:
		p.withdraw(at)
	case below:
		p.State = PolicerFound
		p.exceeded(at)
	case p.RetryAt != 0 && p.Falls == 0: // once may be chance, or connections without pacing
		p.Falls++
		p.try(p.Pace, at)
	default:
		p.Falls++
		p.Clean, p.Excess, p.RetryAt = 0, p.Pace, 0
		p.try(p.lowered(p.Pace, paceFall), at)
	}
}

// exceeded: the present rate is above the limit, and Clean is not.
func (p *Policer) exceeded(at int64) {
	p.Excess = p.Pace
	if p.From != 0 && p.Excess <= scaled(p.From, paceRise) {
		p.settle(at) // the limit is where it was
	} else {
		p.search(at)
	}
}

// withdraw ends the pacing, and pauses the search: each time for twice as long, if none of them finds a limit. A
// limit that was found is gone or has changed, so the next search begins after leastRetry.
func (p *Policer) withdraw(at int64) {
	retry := uint32(leastRetry)
	if p.State != PolicerFound {
		retry = max(retry, p.Retry)
	}
	*p = Policer{Least: p.Least, RetryAt: at + int64(retry)*1e9, Retry: min(2*retry, mostRetry)}
}

// lowered is a part of a rate, but not less than Least.
func (p *Policer) lowered(rate uint32, part float64) uint32 { return max(p.Least, scaled(rate, part)) }

func scaled(rate uint32, by float64) uint32 { return uint32(min(math.MaxUint32, float64(rate)*by)) }
