package cli

import (
	"testing"

	"github.com/tcpilot/tcpilot/internal/api/apitest"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// A congestion control that a rule fixes is set, not learned.
func TestAction(t *testing.T) {
	rate := []engine.Setting{{Field: "max_pacing_rate", Value: 25_000_000, Unit: "B/s"}}
	two := []tcp.CC{apitest.CC("cubic"), apitest.CC("bbr")}
	for want, r := range map[string]engine.RuleState{
		"leave alone": {Action: "leave"},
		"watch":       {Action: "watch"},
		"set cc=reno": {Action: "set", CC: apitest.CC("reno")},
		"set cc=reno, max_pacing_rate=200 Mbit/s": {Action: "set", CC: apitest.CC("reno"), Set: rate},
		"set max_pacing_rate=200 Mbit/s; learn cubic/bbr for latency, hold-out 2.0%": {
			Action: "set+learn", Set: rate, Arms: two, Objective: "latency", HoldOut: 0.02},
	} {
		if got := action(r); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
