package policy

import (
	"fmt"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Adaptive lists the fields whose values can be computed from the metrics of a path.
var Adaptive = []tcp.Field{tcp.SynRTO, tcp.SynAckRTO, tcp.InitCwnd, tcp.ResumeCwnd, tcp.InitRwnd, tcp.MaxPacingRate, tcp.RTOMin, tcp.DelackMax, tcp.CwndClamp, tcp.PeerOption}

// ByNameOnly reports whether a rule adapts f only if it names it, and not by `auto`.
func ByNameOnly(f tcp.Field) bool {
	return f == tcp.RTOMin || f == tcp.DelackMax || f == tcp.CwndClamp || f == tcp.PeerOption
}

// AdaptedByDefault lists the fields that a rule adapts if it learns and does not say what it adapts.
var AdaptedByDefault = []tcp.Field{tcp.SynRTO, tcp.SynAckRTO, tcp.InitCwnd, tcp.ResumeCwnd, tcp.InitRwnd}

// Adapted are the values computed for a path; 0 is none, and leaves the field to the kernel.
type Adapted struct {
	SynRTO, SynAckRTO uint16 // milliseconds
	// InitCwnd is the greatest initial window of a connection, packets. It gets less if its
	// share of Window, among the connections of the path, is less.
	InitCwnd uint16
	// ResumeCwnd is the same for its window after the first round trip.
	ResumeCwnd uint16
	Window     uint32
	InitRwnd   uint16 // packets
	RTOMin     uint16 // milliseconds; one of estimate.RTOMins
	// DelackMax is in milliseconds: one of estimate.DelackMaxes.
	DelackMax uint16
	// PacingRate is the sum of the pacing rates of the path's connections, bytes/s. It is
	// divided among those that run.
	PacingRate uint32
	// Clamp is how many packets the path's connections may have in flight together. Each gets its
	// share as clamp of its congestion window.
	Clamp uint32
	// Peer is RTO_MIN in milliseconds towards peers that do not delay ACKs: one of undelayed. If it is
	// not 0, the peer option is sent.
	Peer uint16
}

const (
	// metricsAge is the age from which the metrics of a path are not used any more.
	metricsAge = 10 * time.Minute
	// clockSlack is how far in the future the time of metrics may be. If it is farther, the clock
	// was set back after they were taken.
	clockSlack = time.Minute
	// metricsSamples is the number of samples from which they are used.
	metricsSamples = 10

	// synMargin is the least ratio of a timeout of the handshake to the bound of the
	// round-trip time (rttBound), and synMarginToLower the same for a timeout that is less
	// than the one in use, so that timeouts do not alternate between two values.
	synMargin        = 2
	synMarginToLower = 2.5
)

// synTimeouts are the timeouts in milliseconds that a SYN may have. They divide the kernel's
// second (TCP_TIMEOUT_INIT; RFC 6298, 2.1) by powers of two: with as many more
// retransmissions, a connect to a host that does not answer fails after the same time (128 s
// instead of 131 s with the kernel's settings).
var synTimeouts = []uint16{125, 250, 500}

// synAckTimeouts are the same for a SYN-ACK. The number of its retransmissions is the
// listener's for all of its connections, so that a shorter timeout makes the kernel forget an
// unfinished handshake earlier: after 16 s with 250 ms, instead of 63 s.
var synAckTimeouts = []uint16{250, 500}

// MayAdapt reports whether the rule leaves f to be adapted. A rule that sets the number of
// SYN retransmissions leaves no room for the timeout: more of them would be needed. A rule with a
// rate limit hides that of a policer: nothing is lost below the rule's.
func (r *Rule) MayAdapt(f tcp.Field) bool { return r.mayAdapt(f, nil) }

func (r *Rule) mayAdapt(f tcp.Field, why *estimate.Why) bool {
	set := r.Set.Mask()
	switch {
	case set&(1<<f) != 0:
		why.Is(func() string { return "the rule sets " + f.String() })
	case f == tcp.SynRTO && set&(1<<tcp.SynCount) != 0:
		why.Is(func() string { return "the rule sets syn_count, and a shorter timeout would need a larger number" })
	case f == tcp.MaxPacingRate && r.Limit != (RateLimit{}):
		why.Is(func() string { return "the rule has a rate_limit, which hides the limit of a policer" })
	default:
		return true
	}
	return false
}

// Adapts reports whether the rule has f computed for its paths.
func (r *Rule) Adapts(f tcp.Field) bool { return slices.Contains(r.Adapt, f) && r.MayAdapt(f) }

// Safer reports whether any value of a is safer than that of b, which is in use: a has a longer
// timeout or a smaller window, or leaves the field to the kernel. A wrong pacing rate or clamp
// affects all connections, whether it is too high or too low, so a different one is always safer.
func (a Adapted) Safer(b Adapted) bool {
	longer := func(a, b uint16) bool { return b != 0 && (a == 0 || a > b) }
	return longer(a.SynRTO, b.SynRTO) || longer(a.SynAckRTO, b.SynAckRTO) || longer(a.RTOMin, b.RTOMin) || longer(a.DelackMax, b.DelackMax) || longer(a.Peer, b.Peer) ||
		a.InitCwnd < b.InitCwnd || a.ResumeCwnd < b.ResumeCwnd || a.Window < b.Window || a.PacingRate != b.PacingRate || a.Clamp != b.Clamp
}

// evidence is what the adapted values of a path follow from.
type evidence struct {
	metrics *estimate.Path // nil: nothing is known of the path
	first   *FirstWindows  // nil: no initial window was raised
	was     Adapted        // values in use
	now     int64          // Unix nanoseconds
}

// Adapted computes the values for a path from its metrics and its raised initial windows,
// which may be nil. was are the values in use, now is in Unix nanoseconds.
func (r *Rule) Adapted(m *estimate.Path, first *FirstWindows, was Adapted, now int64) (a Adapted) {
	ev := evidence{m, first, was, now}
	for _, f := range r.Adapt {
		r.adapt(&a, f, &ev, nil)
	}
	return a
}

// adapt computes the value of one field. If there is none, it writes the reason to why.
func (r *Rule) adapt(a *Adapted, f tcp.Field, ev *evidence, why *estimate.Why) {
	m, was, now := ev.metrics, &ev.was, ev.now
	if !r.mayAdapt(f, why) {
		return
	}
	if f == tcp.PeerOption {
		least := uint64(0)
		if r.ByObjective&(1<<tcp.RTOMin) == 0 { // the bound of an objective allows for delayed ACKs, and Peer does not
			least, _ = r.Bounds.Get(tcp.RTOMin)
		}
		a.Peer = peerOption(m, was.Peer, least, now, why)
		return
	}
	if !measuredEnough(m, f == tcp.MaxPacingRate, now, why) { // the search for a policer counts its own packets
		return
	}
	switch f {
	case tcp.SynRTO:
		a.SynRTO = handshakeTimeout(synTimeouts, m, was.SynRTO, uint16(r.bound(f, 0)), why)
	case tcp.SynAckRTO:
		a.SynAckRTO = handshakeTimeout(synAckTimeouts, m, was.SynAckRTO, uint16(r.bound(f, 0)), why)
	case tcp.InitCwnd:
		a.InitCwnd = r.raised(a, f, ev, why)
	case tcp.ResumeCwnd:
		a.ResumeCwnd = r.raised(a, f, ev, why)
	case tcp.InitRwnd:
		a.InitRwnd = receiveWindow(m, was.InitRwnd, uint16(r.bound(f, mostReceive)), why)
	case tcp.RTOMin:
		a.RTOMin = rtoMin(m, was.RTOMin, r.bound(f, leastRTOMin), now, why)
	case tcp.DelackMax:
		a.DelackMax = delackMax(m, was.DelackMax, r.bound(f, leastDelackMax), now, why)
	case tcp.MaxPacingRate:
		a.PacingRate = pacingRate(m, r.LeastPacingRate(), now, why)
	case tcp.CwndClamp:
		a.Clamp = clamp(m, was.Clamp, now, why)
	}
}

// measuredEnough reports whether the round-trip times of a path are known and recent. few says that a
// small number of samples is enough.
func measuredEnough(m *estimate.Path, few bool, now int64, why *estimate.Why) bool {
	switch {
	case m == nil || m.SRTT == 0:
		why.Is(func() string { return "no connection has shown a round-trip time of the path yet" })
		return false
	case !isRecent("the latest round-trip time", m.RTTAt, now, metricsAge, why):
		return false
	case m.RTTs < metricsSamples && !few:
		why.Is(func() string {
			return fmt.Sprintf("%d of the %d samples that are needed have shown a round-trip time of the path", m.RTTs, metricsSamples)
		})
		return false
	}
	return true
}

// isRecent is recent for a metric, with the reason.
func isRecent(what string, at, now int64, age time.Duration, why *estimate.Why) bool {
	if recent(at, now, age) {
		return true
	}
	why.Is(func() string {
		if at > now {
			return what + " is of a time in the future, because the clock was set back"
		}
		return fmt.Sprintf("%s is %s old: it is used for %s", what, time.Duration(now-at).Round(time.Second), age)
	})
	return false
}

// recent reports whether something that was measured at `at`, 0 for never, may be used now: it
// is not older than age, nor of the future, except for a clock that was set back a little.
func recent(at, now int64, age time.Duration) bool {
	since := time.Duration(now - at)
	return at != 0 && since <= age && since >= -clockSlack
}

// bound is the rule's bound of a field, or its default.
func (r *Rule) bound(f tcp.Field, usual uint64) uint64 {
	if v, ok := r.Bounds.Get(f); ok {
		return v
	}
	return usual
}

// handshakeTimeout returns the least of timeouts, from `least` on, with enough margin over
// the path's round-trip time; 0 if there is none. was is the one in use, or 0.
func handshakeTimeout(timeouts []uint16, m *estimate.Path, was, least uint16, why *estimate.Why) uint16 {
	bound, longest := rttBound(m), timeouts[len(timeouts)-1]
	margin := 0.
	for _, ms := range timeouts {
		margin = synMargin
		if was == 0 || ms < was {
			margin = synMarginToLower
		}
		if ms >= least && millis(ms) >= time.Duration(margin*float64(bound)) {
			return ms
		}
	}
	why.Is(func() string {
		if least > longest {
			return fmt.Sprintf("the rule's bound, %s, is longer than any adapted timeout (%s at most)", millis(least), millis(longest))
		}
		return fmt.Sprintf("%s: the longest adapted timeout, %s, is less than %g times that", whyRTTBound(m), millis(longest), margin)
	})
	return 0
}

// rttBound is the retransmission timeout of RFC 6298, 2.3, for the path's round-trip times:
// srtt + 4 rttvar.
func rttBound(m *estimate.Path) time.Duration {
	return time.Duration((m.SRTT + 4*m.RTTVar) * float32(time.Microsecond))
}

// addTo puts the values into a policy. m are the metrics that they come from.
func (a Adapted) addTo(p *path.Policy, m *estimate.Path) {
	for _, f := range Adaptive {
		if v := a.Value(f); v != 0 {
			p.Params.Set(f, v)
			p.Adapted |= 1 << f
		}
	}
	if a.Window != 0 {
		p.Window, p.WindowExpires = a.Window, WindowExpires(m)
	}
}

// ChangesTransfers reports whether connections with these values may transfer data faster or slower than without them.
func (a Adapted) ChangesTransfers() bool {
	a.SynRTO, a.SynAckRTO = 0, 0
	return a != Adapted{}
}

// AdaptedIn returns the values that a policy has from addTo.
func AdaptedIn(p *path.Policy) (a Adapted) {
	value := func(f tcp.Field) uint64 {
		if p.Adapted&(1<<f) == 0 {
			return 0
		}
		v, _ := p.Params.Get(f)
		return v
	}
	return Adapted{SynRTO: uint16(value(tcp.SynRTO)), SynAckRTO: uint16(value(tcp.SynAckRTO)), InitCwnd: uint16(value(tcp.InitCwnd)), ResumeCwnd: uint16(value(tcp.ResumeCwnd)), Window: p.Window,
		InitRwnd: uint16(value(tcp.InitRwnd)), PacingRate: uint32(value(tcp.MaxPacingRate)), Clamp: uint32(value(tcp.CwndClamp)), RTOMin: uint16(value(tcp.RTOMin) / 1000),
		DelackMax: uint16(value(tcp.DelackMax) / 1000), Peer: uint16(value(tcp.PeerOption) / 1000)}
}

// Value is the value of one of Adaptive, in the field's unit; 0 if there is none.
func (a Adapted) Value(f tcp.Field) uint64 {
	switch f {
	case tcp.SynRTO:
		return uint64(a.SynRTO)
	case tcp.SynAckRTO:
		return uint64(a.SynAckRTO)
	case tcp.InitCwnd:
		return uint64(a.InitCwnd)
	case tcp.ResumeCwnd:
		return uint64(a.ResumeCwnd)
	case tcp.InitRwnd:
		return uint64(a.InitRwnd)
	case tcp.RTOMin:
		return uint64(a.RTOMin) * 1000 // microseconds
	case tcp.DelackMax:
		return uint64(a.DelackMax) * 1000
	case tcp.PeerOption:
		return uint64(a.Peer) * 1000
	case tcp.MaxPacingRate:
		return uint64(a.PacingRate)
	case tcp.CwndClamp:
		return uint64(a.Clamp)
	}
	return 0
}
