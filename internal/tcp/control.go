package tcp

import (
	"strconv"
	"strings"
)

// ControlState is the state that one of tcpilot's own congestion controls reports: the public
// part of its private state in the kernel (struct cc_state in bpf/include/abi.h). For all
// other controls it is zero. A field that a control does not model is 0, or NoBound.
type ControlState struct {
	BW         uint64       // bytes per second
	MinRTT     uint32       // microseconds, the control's own estimate; Sample.MinRTT is the kernel's
	InflightHi uint32       // packets that the path holds; NoBound
	InflightLo uint32       // packets that are safe for now; NoBound
	Alpha      uint32       // share of packets marked, smoothed, in 1/AlphaOne
	WMax       uint32       // packets; the window before the last reduction
	Mode       uint8        // by control: see Sample.ControlMode
	Flags      ControlFlags // 0: there is no state
}

// ControlFlags are the yes/no facts of a ControlState. The bits are part of the ABI
// (bpf/include/abi.h, enum cc_flags).
type ControlFlags uint8

const (
	ControlECN      ControlFlags = 1 << 0 // marks are answered
	ControlFullPipe ControlFlags = 1 << 1 // the start is over: the path has been filled once
	ControlKnown    ControlFlags = 1 << 7 // there is a state

	// AllControlFlags has every bit that means something.
	AllControlFlags = ControlECN | ControlFullPipe | ControlKnown
)

const (
	// NoBound stands for packets without limit (CC_NO_BOUND in bpf/include/abi.h).
	NoBound = 1<<32 - 1
	// AlphaOne is ControlState.Alpha when all packets are marked.
	AlphaOne = 1024
)

// Known reports whether there is a state.
func (c *ControlState) Known() bool { return c.Flags&ControlKnown != 0 }

// Has reports whether every bit of f is set.
func (c *ControlState) Has(f ControlFlags) bool { return c.Flags&f == f }

// controlModes has the names of each control's modes, indexed by number (bpf/include/abi.h).
var controlModes = map[CC][]string{
	CCOf("tcpilot_bbr3"):   {"startup", "drain", "probe-down", "probe-cruise", "probe-refill", "probe-up", "probe-rtt"},
	CCOf("tcpilot_cubic"):  {"slow-start", "css", "reno", "concave", "convex"},
	CCOf("tcpilot_dctcp"):  scalableModes,
	CCOf("tcpilot_prague"): scalableModes,
	CCOf("tcpilot_ledbat"): {"start", "steady", "slowdown", "regrow"},
}

var scalableModes = []string{"slow-start", "avoidance"}

// CCOf returns the congestion control of a name that is known to be valid. For other names,
// use ParseCC.
func CCOf(name string) (cc CC) {
	copy(cc[:], name)
	return cc
}

// ControlModes lists the names of a control's modes, by number; nil for a control that is not
// tcpilot's own.
func ControlModes(cc CC) []string { return controlModes[cc] }

// unnamedMode is the prefix of the name of a mode that this version does not know.
const unnamedMode = "mode-"

// ControlMode is the name of the control's mode; empty if there is no state.
func (s *Sample) ControlMode() string {
	if !s.Control.Known() {
		return ""
	}
	if words := ControlModes(s.CC); int(s.Control.Mode) < len(words) {
		return words[s.Control.Mode]
	}
	return unnamedMode + strconv.Itoa(int(s.Control.Mode))
}

// ParseControlMode is the number of a control's mode.
func ParseControlMode(cc CC, word string) (mode uint8, ok bool) {
	for i, w := range ControlModes(cc) {
		if w == word {
			return uint8(i), true
		}
	}
	digits, ok := strings.CutPrefix(word, unnamedMode)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 8)
	return uint8(n), err == nil
}
