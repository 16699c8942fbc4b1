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
	freed
	reno
	concave
	convex
)

func (m cubicMode) String() string {
	return []string{"slow start", "freed", "Reno", "concave", "convex"}[min(m, convex)]
}

// The reasons to leave a mode.
type cubicWhy uint8

const (
	byDelay = cubicWhy(traceCubicWhyCUBIC_DELAY)
	byTrain = cubicWhy(traceCubicWhyCUBIC_TRAIN)
	noQueue = cubicWhy(traceCubicWhyCUBIC_NO_QUEUE)
	byLoss  = cubicWhy(traceCubicWhyCUBIC_LOSS)
)

func (w cubicWhy) String() string {
	return []string{"delay", "train", "no queue", "loss"}[min(w, byLoss)]
}

// cubicTransition is the end of slow start, or the beginning or end of a time in which the path is freed.
type cubicTransition struct {
	At                    uint64 // ns
	Cwnd, Share           uint32
	MinRTT, RoundMin      uint32 // us
	Inflight, Retrans     uint32
	SRTT                  uint32 // us
	Delivered             uint32
	LocalPort, RemotePort uint16
	From, To              cubicMode
	Why                   cubicWhy
	CalmRounds            uint8
}

func (r *traceCubicTransition) transition() cubicTransition {
	return cubicTransition{
		At: r.AtNs, Cwnd: r.Cwnd, MinRTT: r.MinRttUs, RoundMin: r.RoundMinUs, Share: r.Share, SRTT: r.SrttUs,
		Inflight: r.Inflight, Retrans: r.Retrans, Delivered: r.Delivered, LocalPort: r.LocalPort, RemotePort: r.RemotePort,
		From: cubicMode(r.From), To: cubicMode(r.To), Why: cubicWhy(r.Why), CalmRounds: r.CalmRounds,
	}
}

func (t cubicTransition) String() string {
	return fmt.Sprintf("%s to %s (%s) at %.3f s, cwnd %d, share %d, round %d us, least %d us, %d calm, %d retransmitted",
		t.From, t.To, t.Why, float64(t.At)/1e9, t.Cwnd, t.Share, t.RoundMin, t.MinRTT, t.CalmRounds, t.Retrans)
}

// delayed is the delay test of the kernel's HyStart.
func (t cubicTransition) delayed() bool {
	return t.RoundMin >= t.MinRTT+max(4000, min(t.MinRTT/8, 16000))
}

// calm reports whether the round shows that there is no queue.
func (t cubicTransition) calm() bool { return t.RoundMin < t.MinRTT+min(t.MinRTT/8, 16000) }

// calmForLong reports whether there was no queue for 600 ms, and two rounds.
func (t cubicTransition) calmForLong() bool {
	return t.CalmRounds == 255 || t.CalmRounds >= 2 && uint32(t.CalmRounds)*t.MinRTT >= 600_000
}

// more reports whether the window is more than the share by a quarter.
func (t cubicTransition) more() bool { return t.Share > 0 && t.Cwnd > t.Share+t.Share/4 }

// checkCubic follows one connection and returns what is not allowed.
func checkCubic(trace []cubicTransition) (complaints []string) {
	over, free := false, false
	for _, t := range trace {
		problem := ""
		ends := !over && t.From == slowStart && (t.To == convex || t.To == concave)
		switch {
		case ends && t.Why == byDelay:
			if !t.delayed() || t.Cwnd < 16 {
				problem = "there is no queue"
			}
		case ends && (t.Why == byTrain || t.Why == byLoss):
		case over && t.From != freed && t.To == freed && t.Why == noQueue: // a loss may have ended the time before
			if !t.calm() || !t.calmForLong() {
				problem = "there may be a queue"
			} else if !t.more() {
				problem = "the window is not more than the share"
			}
		case free && t.To == convex && t.Why == byDelay:
			if t.calm() && t.more() {
				problem = "there is no queue"
			}
		default:
			problem = "no such edge"
		}
		if problem != "" {
			complaints = append(complaints, fmt.Sprintf("%s: %s", t, problem))
		}
		over, free = true, t.To == freed
	}
	return complaints
}

func TestCubicMachine(t *testing.T) {
	end := cubicTransition{Cwnd: 40, MinRTT: 50_000, RoundMin: 60_000, To: convex, Why: byDelay}
	begin := cubicTransition{Cwnd: 42, Share: 33, MinRTT: 50_000, RoundMin: 50_100, From: convex, To: freed, Why: noQueue, CalmRounds: 12}
	back := cubicTransition{Cwnd: 400, Share: 33, MinRTT: 50_000, RoundMin: 57_000, From: freed, To: convex, Why: byDelay}
	life := []cubicTransition{end, begin, back, begin}
	if complaints := checkCubic(life); len(complaints) > 0 {
		t.Errorf("a valid trace: %q", complaints)
	}
	for _, c := range []struct {
		at    int
		spoil func(t *cubicTransition)
		want  string
	}{
		{0, func(t *cubicTransition) { t.RoundMin = 56_000 }, "there is no queue"},
		{0, func(t *cubicTransition) { t.Cwnd = 15 }, "there is no queue"},
		{0, func(t *cubicTransition) { t.From = convex }, "no such edge"},
		{0, func(t *cubicTransition) { t.Why = noQueue }, "no such edge"},
		{1, func(t *cubicTransition) { t.RoundMin = 57_000 }, "there may be a queue"},
		{1, func(t *cubicTransition) { t.CalmRounds = 11 }, "there may be a queue"},
		{1, func(t *cubicTransition) { t.CalmRounds, t.MinRTT, t.RoundMin = 1, 700_000, 700_000 }, "there may be a queue"},
		{1, func(t *cubicTransition) { t.CalmRounds, t.MinRTT, t.RoundMin = 254, 2_000, 2_000 }, "there may be a queue"},
		{1, func(t *cubicTransition) { t.Share = 0 }, "not more than the share"},
		{1, func(t *cubicTransition) { t.Share = 34 }, "not more than the share"},
		{1, func(t *cubicTransition) { t.MinRTT, t.RoundMin = 10_000, 12_000 }, "there may be a queue"},
		{2, func(t *cubicTransition) { t.RoundMin = 50_100 }, "there is no queue"},
		{2, func(t *cubicTransition) { t.To, t.Why = freed, noQueue }, "no such edge"},
		{3, func(t *cubicTransition) { t.To = convex }, "no such edge"},
	} {
		trace := slices.Clone(life)
		c.spoil(&trace[c.at])
		complaints := checkCubic(trace)
		if !slices.ContainsFunc(complaints, func(s string) bool { return strings.Contains(s, c.want) }) {
			t.Errorf("transition %d: %q, want %q", c.at, complaints, c.want)
		}
	}
}
