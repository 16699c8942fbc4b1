package cc

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"
)

// TestRootTryOut: a control that works passes within seconds, and each fault of the plain
// control is found by its effect.
func TestRootTryOut(t *testing.T) {
	requireControls(t)
	type attempt struct {
		name string
		o    Control
		want string
	}
	attempts := []attempt{
		{"works", plain("tcpilot_test"), ""},
		{"shut", broken("tcpilot_test", faultShut), "it does not use the link"},
		{"stall", broken("tcpilot_test", faultStall), "stalled"},
		{"blind", broken("tcpilot_test", faultBlind), "it does not respond to loss"},
	}
	for _, o := range embedded() {
		attempts = append(attempts, attempt{o.name(), o, ""})
	}
	for _, c := range attempts {
		begin := time.Now()
		err := c.o.tryOut(t.Context(), slog.New(slog.NewTextHandler(os.Stderr, nil)))
		took := time.Since(begin)
		t.Logf("%s: %v, %v", c.name, took, err)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if took > 30*time.Second {
			t.Errorf("%s: took %s", c.name, took)
		}
		if registered(t, TestName) {
			t.Errorf("%s: the name in tests is still registered", c.name)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := broken("tcpilot_test", faultShut).tryOut(ctx, slog.Default()); err == nil {
		t.Error("a test outlives its context")
	}
}
