package tcp

// CCState is the state that one of tcpilot's own congestion controls reports: the public
// part of its private state in the kernel (struct cc_state in bpf/include/abi.h). For all
// other controls it is zero. A field that a control does not model is 0, or NoBound.
type CCState struct {
	BW         uint64  // bytes per second
	MinRTT     uint32  // microseconds, the control's own estimate; Sample.MinRTT is the kernel's
	InflightHi uint32  // packets in flight that the path holds (BBR's inflight_hi); NoBound
	InflightLo uint32  // packets in flight that are safe at present (BBR's inflight_lo); NoBound
	Alpha      uint32  // share of packets marked, smoothed, in 1/AlphaOne
	WMax       uint32  // packets; the window before the last reduction
	Mode       uint8   // by control: see congestion.ModeName
	Flags      CCFlags // 0: no state was reported
}

// CCFlags are the yes/no facts of a CCState. The bits are part of the ABI
// (bpf/include/abi.h, enum cc_flags).
type CCFlags uint8

const (
	CCFlagECN      CCFlags = 1 << 0 // marks are answered
	CCFlagFullPipe CCFlags = 1 << 1 // the start is over: the path has been filled once
	CCFlagKnown    CCFlags = 1 << 7 // the other fields are valid

	// AllCCFlags has every bit that is defined.
	AllCCFlags = CCFlagECN | CCFlagFullPipe | CCFlagKnown
)

const (
	// NoBound stands for packets without limit (CC_NO_BOUND in bpf/include/abi.h).
	NoBound = 1<<32 - 1
	// AlphaOne is CCState.Alpha when all packets are marked.
	AlphaOne = 1024
)

// Known reports whether the congestion control has reported a state.
func (c *CCState) Known() bool { return c.Flags&CCFlagKnown != 0 }

// Has reports whether every bit of f is set.
func (c *CCState) Has(f CCFlags) bool { return c.Flags&f == f }
