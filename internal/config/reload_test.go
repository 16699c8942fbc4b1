package config

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/policy"
)

func TestReload(t *testing.T) {
	old, next := Default(), Default()
	if _, restart := Reload(old, next); len(restart) != 0 {
		t.Errorf("restart for %q", restart)
	}
	next.Interval, next.Rules, next.Mode = time.Hour, nil, "observe"
	next.Pods.Dir, next.Pods.HostRouting = "/elsewhere", "on"
	now, restart := Reload(old, next)
	if !slices.Equal(restart, []string{"interval", "pods.dir"}) {
		t.Errorf("restart for %q", restart)
	}
	if now.Interval != old.Interval || now.Pods.Dir != old.Pods.Dir || len(now.Rules) != 2 || now.Mode != "observe" || now.Pods.HostRouting != "on" {
		t.Errorf("in force: %+v", now)
	}
	if old.Mode != "tune" || old.Pods.HostRouting != "off" {
		t.Error("the old configuration was changed")
	}
	// A daemon that found a change goes on to report it, until it is taken back.
	if _, restart = Reload(now, next); !slices.Equal(restart, []string{"interval", "pods.dir"}) {
		t.Errorf("at the next reload: %q", restart)
	}
	// The rule for the traffic of the daemon's own follows the port that is in force; the hold-out needs no restart.
	next = Default()
	next.Metrics.Listen, next.Learning.HoldOut = "127.0.0.1:9999", 0.2
	next.Rules = append(builtinRules(next.Metrics.Listen), policy.Rule{Name: "web"})
	now, restart = Reload(old, next)
	if !slices.Equal(restart, []string{"metrics"}) || now.Learning.HoldOut != 0.2 {
		t.Errorf("restart for %q, hold-out %g", restart, now.Learning.HoldOut)
	}
	if r := now.Rules; len(r) != 3 || r[1].Match.LocalPort[0].First != 9732 || r[2].Name != "web" || next.Rules[1].Match.LocalPort[0].First != 9999 {
		t.Errorf("rules in force: %+v", r)
	}
	if text := referenceReload(); !strings.Contains(text, "into force: `mode`, `learning.hold_out`, `pods.bandwidth`") || !strings.Contains(text, "`host`") {
		t.Errorf("reference: %s", text)
	}
}
