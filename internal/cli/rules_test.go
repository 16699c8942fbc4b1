package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/api/apitest"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// A congestion control that a rule fixes is set, not learned.
func TestAction(t *testing.T) {
	rate := []engine.Setting{{Field: "max_pacing_rate", Value: 25_000_000, Unit: "B/s"}}
	two := []tcp.CC{apitest.CC("cubic"), apitest.CC("bbr")}
	for want, r := range map[string]engine.RuleState{
		"leave alone":           {Action: "leave"},
		"watch rto/state of 1%": {Action: "watch", Watch: []string{"rto", "state"}, WatchShare: 0.01},
		"set cc=reno":           {Action: "set", CC: apitest.CC("reno")},
		"set cc=reno, max_pacing_rate=200 Mbit/s": {Action: "set", CC: apitest.CC("reno"), Set: rate},
		"set max_pacing_rate=200 Mbit/s; learn cubic/bbr for latency, hold-out 2%": {
			Action: "set+learn", Set: rate, Arms: two, Objective: "latency", HoldOut: 0.02},
		"learn auto for throughput, hold-out 2%": {Action: "learn", Objective: "throughput", HoldOut: 0.02}, // as check shows it
		"set cc=reno; cc=bbr after 3 timeouts, of 1% of connections": {
			Action: "set", CC: apitest.CC("reno"), OnRTO: &engine.OnRTO{CC: apitest.CC("bbr"), After: 3, Share: 0.01}},
		"learn cubic/bbr for realtime (notsent_lowat=16384 B)": {
			Action: "learn", Set: []engine.Setting{{Field: "notsent_lowat", Value: 16384, Unit: "B", Reason: "objective"}}, Arms: two, Objective: "realtime"},
	} {
		if got := action(r); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestActionShowsBoundsAndRunningConnections(t *testing.T) {
	r := engine.RuleState{
		Action: "learn", Arms: []tcp.CC{tcp.CCOf("cubic"), tcp.CCOf("bbr")}, Objective: "throughput", SwitchRunning: true,
		Adapt: []string{"syn_rto", "synack_rto", "init_cwnd"}, AdaptBounds: []engine.Setting{
			{Field: "init_cwnd", Value: 128, Unit: "packets"}, {Field: "syn_rto", Value: 250, Unit: "ms"},
		},
	}
	want := "learn cubic/bbr for throughput, running connections as well; adapt syn_rto (at least 250 ms), synack_rto, init_cwnd (at most 128 packets)"
	if got := action(r); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Values are shown in the unit used in the file.
func TestCheckEchoesWhatIsWritten(t *testing.T) {
	r := engine.RuleState{Action: "set", Set: []engine.Setting{
		{Field: "rto_min", Value: 5000, Unit: "us", Configured: "0.005s"}, {Field: "sndbuf", Value: 1 << 20, Unit: "B", Configured: "1MiB"}},
		Rollout: &engine.Rollout{Share: 0.125, Configured: 0.125}}
	if got, want := action(r), "set rto_min=0.005s, sndbuf=1MiB; rolled out to 12.5%"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// With --json, mistakes are JSON too, with their positions.
func TestCheckJSONHasTheMistakes(t *testing.T) {
	w := newWorld(t)
	w.env.Check = func(context.Context, string) (Checked, error) {
		return Checked{}, errors.Join(&yamlfile.Error{File: "x.yaml", Line: 3, Col: 5, Problem: "unknown key"}, errors.New("no room"))
	}
	var got refused
	r := w.run(t.Context(), "check", "x.yaml", "--json")
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || r.code != console.ExitError || r.stderr != "" {
		t.Fatalf("%+v, %v", r, err)
	}
	if len(got.Errors) != 2 || got.Errors[0].Line != 3 || got.Errors[1] != (yamlfile.Error{File: "x.yaml", Problem: "no room"}) {
		t.Errorf("%+v", got)
	}
	if r := w.run(t.Context(), "check", "x.yaml"); r.code != console.ExitError || r.stdout != "" || strings.Count(r.stderr, "\n") != 2 {
		t.Errorf("%+v", r)
	}
}

// With --strict a warning is an error; without warnings nothing changes.
func TestCheckStrict(t *testing.T) {
	w := newWorld(t)
	if r := w.run(t.Context(), "check", "x.yaml", "--strict"); r.code != console.ExitError || r.stdout != "" ||
		r.stderr != "x.yaml: rule loopback: also left alone by default\n" {
		t.Errorf("%+v", r)
	}
	const mistakes = `{"file":"x.yaml","errors":[{"file":"x.yaml","problem":"rule loopback: also left alone by default"}]}`
	var got bytes.Buffer
	if r := w.run(t.Context(), "check", "x.yaml", "--strict", "--json"); r.code != console.ExitError || json.Compact(&got, []byte(r.stdout)) != nil || got.String() != mistakes {
		t.Errorf("%+v", r)
	}
	w.env.Check = func(context.Context, string) (Checked, error) {
		return Checked{File: "x.yaml", Bypassed: []string{"netfilter"}}, nil
	}
	if r := w.run(t.Context(), "check", "x.yaml", "--strict"); r.code != console.ExitOK || r.stdout != "ok: 0 rules\nnote: netfilter\n" {
		t.Errorf("%+v", r)
	}
}
