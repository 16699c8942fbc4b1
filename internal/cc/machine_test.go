package cc

import (
	"fmt"
	"slices"
	"time"
)

// The modes of BBRv3, in the order of enum bbr3_mode.
type mode uint8

const (
	startup mode = iota
	drain
	down
	cruise
	refill
	up
	probeRTT
)

var modeNames = []string{"Startup", "Drain", "Down", "Cruise", "Refill", "Up", "ProbeRTT"}

func (m mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// The reasons to leave a mode.
type why uint8

const (
	fullBW     = why(traceBbr3WhyBBR3FULL_BW)
	highLoss   = why(traceBbr3WhyBBR3HIGH_LOSS)
	highECN    = why(traceBbr3WhyBBR3HIGH_ECN)
	drained    = why(traceBbr3WhyBBR3DRAINED)
	probeTime  = why(traceBbr3WhyBBR3PROBE_TIME)
	renoTime   = why(traceBbr3WhyBBR3RENO_TIME)
	refilled   = why(traceBbr3WhyBBR3REFILLED)
	minRTTOld  = why(traceBbr3WhyBBR3MIN_RTT_OLD)
	probedRTT  = why(traceBbr3WhyBBR3PROBED_RTT)
	precaution = why(traceBbr3WhyBBR3PRECAUTION)
	probeSafe  = why(traceBbr3WhyBBR3PROBE_SAFE)
	spurious   = why(traceBbr3WhyBBR3SPURIOUS)
	drainTime  = why(traceBbr3WhyBBR3DRAIN_TIME)
)

var whyNames = []string{"init", "full_bw", "high_loss", "high_ecn", "drained", "probe_time", "reno_time", "refilled",
	"min_rtt_old", "probed_rtt", "precaution", "probe_safe", "spurious", "drain_time"}

func (w why) String() string {
	if int(w) < len(whyNames) {
		return whyNames[w]
	}
	return fmt.Sprintf("reason %d", uint8(w))
}

// noBound is CC_NO_BOUND.
const noBound = 1<<32 - 1

// transition is one change of mode: times in ns, rates in bytes per second, volumes in
// packets.
type transition struct {
	At, Cookie, BW, PacingRate       uint64
	MinRTT                           uint32 // us
	Inflight, InflightHi, InflightLo uint32
	Cwnd, Round, Delivered, Lost     uint32
	RenoRounds                       uint32 // since Down, without a queue of a BDP
	SRTT                             uint32 // us
	From, To                         mode
	Why                              why
	RandomLoss                       uint8 // 1/1024
	LocalPort, RemotePort            uint16
}

func (r *traceBbr3Transition) transition() transition {
	return transition{
		At: r.AtNs, Cookie: r.Cookie, BW: r.Bw, PacingRate: r.PacingRate,
		MinRTT: r.MinRttUs, SRTT: r.SrttUs,
		Inflight: r.Inflight, InflightHi: r.InflightHi, InflightLo: r.InflightLo,
		Cwnd: r.Cwnd, Round: r.Round, Delivered: r.Delivered, Lost: r.Lost, RenoRounds: r.RenoRounds,
		From: mode(r.From), To: mode(r.To), Why: why(r.Why), RandomLoss: r.RandomLoss,
		LocalPort: r.LocalPort, RemotePort: r.RemotePort,
	}
}

func (t transition) String() string {
	return fmt.Sprintf("%s to %s (%s) at %.3f s in round %d, bw %.2f Mbit/s, RTT %d, at least %d us, %d in flight, bounds %d and %d, cwnd %d",
		t.From, t.To, t.Why, float64(t.At)/1e9, t.Round, float64(t.BW)*8/1e6, t.SRTT, t.MinRTT, t.Inflight,
		int32(t.InflightHi), int32(t.InflightLo), t.Cwnd)
}

// bdp is in packets of a full Ethernet frame with timestamps, rounded up.
func (t transition) bdp() uint32 { return uint32(t.BW*uint64(t.MinRTT)/1e6/1448) + 1 }

// machine is a state machine: its edges, with the reasons to take each.
type machine map[[2]mode][]why

// draft is the state machine of draft-ietf-ccwg-bbr (5.1.1; each edge at 5.3.1 to 5.3.4,
// the ways back after spurious losses at 5.5.11.2).
func draft() machine {
	m := machine{
		{startup, drain}:    {fullBW, highLoss, highECN},
		{drain, down}:       {drained, drainTime},
		{down, cruise}:      {drained, probedRTT},
		{down, refill}:      {probeTime, renoTime, probeSafe, spurious},
		{cruise, refill}:    {probeTime, renoTime, probeSafe, spurious},
		{refill, up}:        {refilled},
		{up, down}:          {fullBW, highLoss, highECN, precaution},
		{probeRTT, down}:    {probedRTT},
		{probeRTT, startup}: {probedRTT},
		{refill, refill}:    {spurious},
	}
	for _, from := range []mode{startup, drain, down, cruise, refill, up} {
		m[[2]mode{from, probeRTT}] = []why{minRTTOld}
		if from != startup {
			m[[2]mode{from, startup}] = []why{spurious}
		}
	}
	return m
}

// history is what the rules need to know of a connection.
type history struct {
	last     transition // entered the present mode
	down     transition // entered Down last; zero: never
	probeRTT transition // left ProbeRTT last; zero: never
}

// check follows each connection of a trace, and returns what the draft does not allow.
func (m machine) check(trace []transition) (complaints []string) {
	all := map[[2]uint16]*history{}
	for _, t := range trace {
		ports := [2]uint16{t.LocalPort, t.RemotePort}
		p := all[ports]
		if p == nil { // it begins in Startup
			p = &history{last: transition{To: startup, At: t.At}}
			all[ports] = p
		}
		problems := []string{m.edge(p, t), p.rounds(t), p.times(t), p.bounds(t)}
		for _, problem := range problems {
			if problem != "" {
				complaints = append(complaints, fmt.Sprintf("port %d: %s: %s", t.LocalPort, t, problem))
			}
		}
		p.last = t
		if t.To == down {
			p.down = t
		}
		if t.From == probeRTT {
			p.probeRTT = t
		}
	}
	return complaints
}

func (m machine) edge(p *history, t transition) string {
	switch {
	case t.From != p.last.To:
		return fmt.Sprintf("it was in %s", p.last.To)
	case !slices.Contains(m[[2]mode{t.From, t.To}], t.Why):
		return "no such edge"
	}
	return ""
}

// rounds are packet-timed round trips.
func (p *history) rounds(t transition) string {
	in := t.Round - p.last.Round
	switch {
	case t.From == startup && t.Why == fullBW && t.Round < 3: // 5.3.1.2
		return "the pipe is full after less than 3 rounds"
	case t.Why == drainTime && in < 4, t.From == drain && t.Why == drained && in > 3: // 5.3.2
		return fmt.Sprintf("%d rounds in Drain, the limit is 3", in)
	case t.To == up && in != 1: // 5.3.3.3
		return fmt.Sprintf("%d rounds in Refill", in)
	case t.From == up && t.Why == fullBW && in < 3: // 5.3.3.6
		return fmt.Sprintf("no more bandwidth after %d rounds", in)
	case t.Why == renoTime && p.down.At != 0: // 5.3.3.5.3
		since, counted := t.Round-p.down.Round, t.RenoRounds
		if wanted := min(t.bdp(), t.Cwnd, 63); counted > min(since+1, 64) || counted+2 < wanted {
			return fmt.Sprintf("%d of %d rounds since Down count, Reno would wait %d", counted, since, wanted)
		}
	}
	return ""
}

// late is the tolerance of times: time is checked once a round, and the machine may
// pause.
const late = 1500 * time.Millisecond

func (p *history) times(t transition) string {
	since := func(before transition) time.Duration { return time.Duration(t.At - before.At) }
	switch {
	case t.Why == probeTime && p.down.At != 0: // 5.3.3.5.3: 2 to 3 s
		if d := since(p.down); d < 1990*time.Millisecond || d > 3*time.Second+late {
			return fmt.Sprintf("%s since Down", d)
		}
	case t.From == probeRTT: // 2.16.2: 200 ms
		if d := since(p.last); d < 199*time.Millisecond {
			return fmt.Sprintf("%s in ProbeRTT", d)
		}
	case t.To == probeRTT && p.probeRTT.At != 0: // 2.16.2: 5 s
		if d := since(p.probeRTT); d < 4900*time.Millisecond {
			return fmt.Sprintf("%s since the last ProbeRTT", d)
		}
	}
	return ""
}

func (p *history) bounds(t transition) string {
	switch {
	case t.From == startup && (t.Why == highLoss || t.Why == highECN) && t.InflightHi == noBound: // 5.3.1.3
		return "no bound was learned"
	case t.To == up && t.InflightLo != noBound: // 5.3.3.3
		return "the short-term bound is left"
	case t.To == cruise && t.Why == drained && t.InflightHi != noBound && t.Inflight > headroom(t.InflightHi): // 5.3.3.6
		return fmt.Sprintf("more than %d in flight leaves no headroom", headroom(t.InflightHi))
	}
	return ""
}

// headroom is InflightWithHeadroom: 0.15 of the bound is left to other flows.
func headroom(hi uint32) uint32 {
	return max(hi-min(hi, max(uint32(uint64(hi)*154>>10), 1)), 4)
}

// floor is the smallest window of ProbeRTT (5.6.4.5): half of what the path holds, at
// least 4 packets. A loss since then may have reduced the rate by 0.3.
func floor(enter, leave transition) uint32 {
	return max(4, min(enter.bdp(), leave.bdp())*7/20)
}
