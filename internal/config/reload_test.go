package config

import (
	"slices"
	"strings"
	"testing"
	"time"
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
	if now.Interval != old.Interval || now.Pods.Dir != old.Pods.Dir || now.Rules != nil || now.Mode != "observe" || now.Pods.HostRouting != "on" {
		t.Errorf("in force: %+v", now)
	}
	if old.Mode != "tune" || old.Pods.HostRouting != "off" {
		t.Error("the old configuration was changed")
	}
	// A daemon that found a change goes on to report it, until it is taken back.
	if _, restart = Reload(now, next); !slices.Equal(restart, []string{"interval", "pods.dir"}) {
		t.Errorf("at the next reload: %q", restart)
	}
	if text := referenceReload(); !strings.Contains(text, "into force: `mode`, `pods.bandwidth`") || !strings.Contains(text, "`host`") {
		t.Errorf("reference: %s", text)
	}
}
