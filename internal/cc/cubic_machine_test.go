package cc

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The modes of tcpilot_cubic, in the order of enum cubic_mode.
type cubicMode uint8

const (
	slowStart cubicMode = iota
	css
	reno
	concave
	convex
)

func (m cubicMode) String() string {
	return []string{"slow start", "CSS", "Reno", "concave", "convex"}[min(m, convex)]
}

// The reasons to leave a mode in slow start.
type cubicWhy uint8

const (
	byDelay   = cubicWhy(traceCubicWhyCUBIC_DELAY)
	byTrain   = cubicWhy(traceCubicWhyCUBIC_TRAIN)
	noQueue   = cubicWhy(traceCubicWhyCUBIC_SPURIOUS)
	cssRounds = cubicWhy(traceCubicWhyCUBIC_ROUNDS)
	byLoss    = cubicWhy(traceCubicWhyCUBIC_LOSS)
)

func (w cubicWhy) String() string {
	return []string{"delay", "train", "spurious", "rounds", "loss"}[min(w, byLoss)]
}

// cubicTransition is one change of mode in slow start.
type cubicTransition struct {
	At                     uint64 // ns
	Cwnd                   uint32
	MinRTT, RoundMin, Base uint32 // us
	Inflight, Retrans      uint32
	SRTT                   uint32 // us
	Delivered              uint32
	LocalPort, RemotePort  uint16
	From, To               cubicMode
	Why                    cubicWhy
	CSSRounds              uint8
}

func (r *traceCubicTransition) transition() cubicTransition {
	return cubicTransition{
		At: r.AtNs, Cwnd: r.Cwnd, MinRTT: r.MinRttUs, RoundMin: r.RoundMinUs, Base: r.BaseUs, SRTT: r.SrttUs,
		Inflight: r.Inflight, Retrans: r.Retrans, Delivered: r.Delivered, LocalPort: r.LocalPort, RemotePort: r.RemotePort,
		From: cubicMode(r.From), To: cubicMode(r.To), Why: cubicWhy(r.Why), CSSRounds: r.CssRounds,
	}
}

func (t cubicTransition) String() string {
	return fmt.Sprintf("%s to %s (%s) at %.3f s, cwnd %d, round %d us, least %d us, base %d us, CSS round %d, %d retransmitted",
		t.From, t.To, t.Why, float64(t.At)/1e9, t.Cwnd, t.RoundMin, t.MinRTT, t.Base, t.CSSRounds, t.Retrans)
}

// delayed is the delay test of RFC 9406, 4.2, with the constants of 4.3, against the
// smallest round trip.
func (t cubicTransition) delayed() bool {
	return t.RoundMin >= t.MinRTT+max(4000, min(t.MinRTT/8, 16000))
}

// checkSlowStart follows one connection and returns what is not allowed.
func checkSlowStart(trace []cubicTransition) (complaints []string) {
	in := slowStart
	over := false
	for _, t := range trace {
		problem := ""
		ends := t.To == convex || t.To == concave
		switch {
		case over:
			problem = "slow start was over"
		case t.From != in:
			problem = fmt.Sprintf("it was in %s", in)
		case t.From == slowStart && t.To == css && t.Why == byDelay:
			if !t.delayed() || t.Cwnd < 16 {
				problem = "no reason to suspect a queue"
			}
		case t.From == css && t.To == slowStart && t.Why == noQueue:
			if t.delayed() || t.CSSRounds >= 5 {
				problem = "the queue is still there"
			}
		case t.From == css && ends && t.Why == cssRounds:
			if t.CSSRounds != 5 {
				problem = fmt.Sprintf("%d rounds, want 5", t.CSSRounds)
			}
		case t.From == slowStart && ends && t.Why == byTrain, ends && t.Why == byLoss:
		default:
			problem = "no such edge"
		}
		if problem != "" {
			complaints = append(complaints, fmt.Sprintf("%s: %s", t, problem))
		}
		in, over = t.To, ends
	}
	return complaints
}

func TestSlowStartMachine(t *testing.T) {
	begin := cubicTransition{Cwnd: 40, MinRTT: 50_000, RoundMin: 60_000, Base: 60_000, To: css, Why: byDelay}
	back := cubicTransition{Cwnd: 50, MinRTT: 50_000, RoundMin: 50_100, Base: 60_000, From: css, Why: noQueue, CSSRounds: 1}
	end := cubicTransition{Cwnd: 300, MinRTT: 50_000, RoundMin: 70_000, Base: 60_000, From: css, To: convex, Why: cssRounds, CSSRounds: 5}
	life := []cubicTransition{begin, back, begin, end}
	if complaints := checkSlowStart(life); len(complaints) > 0 {
		t.Errorf("a valid trace: %q", complaints)
	}
	for _, c := range []struct {
		at    int
		spoil func(t *cubicTransition)
		want  string
	}{
		{0, func(t *cubicTransition) { t.RoundMin = 56_000 }, "no reason to suspect"},
		{0, func(t *cubicTransition) { t.Cwnd = 15 }, "no reason to suspect"},
		{0, func(t *cubicTransition) { t.To, t.Why = convex, byTrain }, "slow start was over"},
		{0, func(t *cubicTransition) { t.To = convex }, "no such edge"},
		{1, func(t *cubicTransition) { t.RoundMin = 57_000 }, "still there"},
		{1, func(t *cubicTransition) { t.CSSRounds = 5 }, "still there"},
		{2, func(t *cubicTransition) { t.From = css }, "it was in slow start"},
		{3, func(t *cubicTransition) { t.CSSRounds = 4 }, "4 rounds, want 5"},
	} {
		trace := slices.Clone(life)
		c.spoil(&trace[c.at])
		complaints := checkSlowStart(trace)
		if !slices.ContainsFunc(complaints, func(s string) bool { return strings.Contains(s, c.want) }) {
			t.Errorf("transition %d: %q, want %q", c.at, complaints, c.want)
		}
	}
}
