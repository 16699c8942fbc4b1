package congestion

import (
	"testing"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

func stateOf(mode uint8) *tcp.CCState { return &tcp.CCState{Mode: mode, Flags: tcp.CCFlagKnown} }

// All of tcpilot's own have modes, and no others.
func TestModesHaveNames(t *testing.T) {
	for _, c := range catalogue {
		if (len(c.Modes) > 0) != IsOwn(c.CC) {
			t.Errorf("%s has modes %q", c.CC, c.Modes)
		}
		seen := map[string]bool{}
		for i, name := range c.Modes {
			got := ModeName(c.CC, stateOf(uint8(i)))
			back, ok := ParseMode(c.CC, name)
			if name == "" || seen[name] || got != name || !ok || back != uint8(i) {
				t.Errorf("%s: mode %d is %q, %q, and back %d, %v", c.CC, i, name, got, back, ok)
			}
			seen[name] = true
		}
	}
}

// An adopted kernel object, or a recording, of a newer tcpilot may have unknown modes.
func TestModeWithoutAName(t *testing.T) {
	cc := tcp.CCOf("tcpilot_dctcp")
	if got := ModeName(cc, stateOf(200)); got != "mode-200" {
		t.Errorf("got %q", got)
	}
	if back, ok := ParseMode(cc, "mode-200"); !ok || back != 200 {
		t.Errorf("read as %d, %v", back, ok)
	}
	for _, name := range []string{"", "startup", "mode-", "mode-256", "mode--1"} {
		if n, ok := ParseMode(cc, name); ok {
			t.Errorf("%q is mode %d", name, n)
		}
	}
	if got := ModeName(tcp.CCOf("tcpilot"), stateOf(1)); got != "mode-1" {
		t.Errorf("mode 1 of an unknown control is %q", got)
	}
}

func TestNoModeWithoutState(t *testing.T) {
	if got := ModeName(tcp.CCOf("tcpilot_bbr3"), &tcp.CCState{}); got != "" {
		t.Errorf("got %q", got)
	}
}

func TestModeNameDoesNotAllocate(t *testing.T) {
	cc, state := tcp.CCOf("tcpilot_bbr3"), stateOf(3)
	if n := testing.AllocsPerRun(100, func() { _ = ModeName(cc, state) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}
