package tcp

import "testing"

func TestControlModesHaveNames(t *testing.T) {
	for name, n := range map[string]int{
		"tcpilot_bbr3": 7, "tcpilot_cubic": 5, "tcpilot_dctcp": 2, "tcpilot_prague": 2, "tcpilot_ledbat": 4,
		"bbr": 0, "tcpilot": 0, "": 0,
	} {
		var cc CC
		copy(cc[:], name)
		words := ControlModes(cc)
		if len(words) != n {
			t.Errorf("%q has modes %q, want %d", name, words, n)
		}
		seen := map[string]bool{}
		for i, w := range words {
			s := Sample{CC: cc, Control: ControlState{Mode: uint8(i), Flags: ControlKnown}}
			back, ok := ParseControlMode(cc, w)
			if w == "" || seen[w] || s.ControlMode() != w || !ok || back != uint8(i) {
				t.Errorf("%s: mode %d is %q, %q, and back %d, %v", name, i, w, s.ControlMode(), back, ok)
			}
			seen[w] = true
		}
	}
}

// An adopted kernel object, or a recording, of a newer tcpilot may have unknown modes.
func TestControlModeWithoutAName(t *testing.T) {
	cc, _ := ParseCC("tcpilot_dctcp")
	s := Sample{CC: cc, Control: ControlState{Mode: 200, Flags: ControlKnown}}
	if got := s.ControlMode(); got != "mode-200" {
		t.Errorf("got %q", got)
	}
	if back, ok := ParseControlMode(cc, "mode-200"); !ok || back != 200 {
		t.Errorf("read as %d, %v", back, ok)
	}
	for _, word := range []string{"", "startup", "mode-", "mode-256", "mode--1"} {
		if n, ok := ParseControlMode(cc, word); ok {
			t.Errorf("%q is mode %d", word, n)
		}
	}
}

func TestControlStateIsKnownOrZero(t *testing.T) {
	var s Sample
	if s.Control.Known() || s.ControlMode() != "" {
		t.Error("a sample of no control of ours has a state")
	}
	s.Control.Flags = ControlKnown | ControlECN
	if !s.Control.Known() || !s.Control.Has(ControlECN) || s.Control.Has(ControlECN|ControlFullPipe) {
		t.Errorf("flags %b", s.Control.Flags)
	}
}

func TestControlModeDoesNotAllocate(t *testing.T) {
	cc, _ := ParseCC("tcpilot_bbr3")
	s := Sample{CC: cc, Control: ControlState{Mode: 3, Flags: ControlKnown}}
	if n := testing.AllocsPerRun(100, func() { _ = s.ControlMode() }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}
