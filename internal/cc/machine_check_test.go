package cc

import (
	"slices"
	"strings"
	"testing"
)

// validTrace is a trace that the draft allows: 20 Mbit/s, 60 ms.
func validTrace() []transition {
	ms := func(n uint64) uint64 { return 1e6 * n }
	base := transition{BW: 2_500_000, MinRTT: 60_000, Inflight: 80, InflightHi: noBound, InflightLo: noBound, Cwnd: 200, LocalPort: 1, RemotePort: 2}
	var out []transition
	var downAt uint32
	add := func(at uint64, round uint32, from, to mode, w why) {
		t := base
		t.At, t.Round, t.From, t.To, t.Why = ms(at), round, from, to, w
		t.RenoRounds = round - downAt
		if to == down {
			downAt = round
		}
		out = append(out, t)
	}
	add(1000, 8, startup, drain, fullBW)
	add(1100, 10, drain, down, drained)
	add(1200, 11, down, cruise, drained)
	add(3600, 45, cruise, refill, probeTime)
	add(3700, 46, refill, up, refilled)
	add(4000, 50, up, down, fullBW)
	add(5000, 60, down, probeRTT, minRTTOld)
	add(5300, 62, probeRTT, down, probedRTT)
	add(5300, 62, down, cruise, probedRTT)
	add(8000, 125, cruise, refill, renoTime)
	add(8100, 126, refill, up, refilled)
	add(8300, 128, up, down, highLoss)
	add(8350, 129, down, refill, probeSafe)
	add(8400, 130, refill, up, refilled)
	add(10_400, 150, up, probeRTT, minRTTOld)
	add(10_700, 152, probeRTT, down, probedRTT)
	return out
}

func TestMachine(t *testing.T) {
	if complaints := draft().check(validTrace()); len(complaints) > 0 {
		t.Errorf("a valid trace: %q", complaints)
	}
	for _, c := range []struct {
		at    int
		spoil func(t *transition)
		want  string
	}{
		{0, func(t *transition) { t.From = drain }, "it was in Startup"},
		{0, func(t *transition) { t.Why = drained }, "no such edge"},
		{0, func(t *transition) { t.Round = 2 }, "full after less than 3 rounds"},
		{0, func(t *transition) { t.Why = highLoss }, "no bound was learned"},
		{1, func(t *transition) { t.Round = 13 }, "5 rounds in Drain"},
		{1, func(t *transition) { t.Why = drainTime }, "2 rounds in Drain"},
		{1, func(t *transition) { t.To = cruise }, "no such edge"},
		{2, func(t *transition) { t.InflightHi = 90 }, "no headroom"},
		{3, func(t *transition) { t.At = 2e9 }, "900ms since Down"},
		{3, func(t *transition) { t.At = 6e9 }, "4.9s since Down"},
		{4, func(t *transition) { t.Round = 47 }, "2 rounds in Refill"},
		{4, func(t *transition) { t.InflightLo = 50 }, "short-term bound is left"},
		{5, func(t *transition) { t.Round = 47 }, "after 1 rounds"},
		{7, func(t *transition) { t.At = 5.1e9 }, "100ms in ProbeRTT"},
		{9, func(t *transition) { t.RenoRounds = 28 }, "28 of 63 rounds since Down count, Reno would wait 63"},
		{9, func(t *transition) { t.Round = 90 }, "63 of 28 rounds since Down count"},
		{9, func(t *transition) { t.Round, t.RenoRounds = 130, 68 }, "68 of 68 rounds since Down count"},
		{14, func(t *transition) { t.At = 9e9 }, "3.7s since the last ProbeRTT"},
	} {
		trace := validTrace()
		c.spoil(&trace[c.at])
		complaints := draft().check(trace)
		if !slices.ContainsFunc(complaints, func(s string) bool { return strings.Contains(s, c.want) }) {
			t.Errorf("transition %d: %q, want %q", c.at, complaints, c.want)
		}
	}
}

// TestMachineTellsConnectionsApart: a transition of one connection does not count for
// another.
func TestMachineTellsConnectionsApart(t *testing.T) {
	one, two := validTrace(), validTrace()
	var trace []transition
	for i := range one {
		two[i].LocalPort = 3
		trace = append(trace, one[i], two[i])
	}
	if complaints := draft().check(trace); len(complaints) > 0 {
		t.Errorf("two valid traces: %q", complaints)
	}
	if complaints := draft().check(slices.Delete(trace, 3, 4)); len(complaints) != 1 || !strings.HasPrefix(complaints[0], "port 3: Down to Cruise") {
		t.Errorf("with a gap: %q", complaints)
	}
}

func TestFloor(t *testing.T) {
	at := transition{BW: 2_500_000, MinRTT: 60_000} // 104 packets
	small := transition{BW: 100_000, MinRTT: 1000}
	if got := floor(at, at); got != 36 {
		t.Errorf("floor of 104 packets: %d", got)
	}
	if got := floor(at, small); got != 4 {
		t.Errorf("floor of one packet: %d", got)
	}
}
