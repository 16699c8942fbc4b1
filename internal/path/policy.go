package path

import "github.com/tcpilot/tcpilot/internal/tcp"

// MaxArms bounds the arms of one policy (ABI: bpf/include/abi.h).
const MaxArms = 8

// Arm is a congestion control and its share of a path's new connections.
type Arm struct {
	CC tcp.CC `json:"cc"`
	// Weight is the share in 1/65536; the weights of a policy sum to 65536, or
	// the policy has no arms.
	Weight uint32 `json:"weight"`
	// Default marks the arm of connections that keep the congestion control that they would
	// have without tcpilot. CC is then the host's default; a network namespace or a route
	// may have another one.
	Default bool `json:"default,omitempty"`
}

// Policy is what a path gives to its new connections. The zero Policy touches
// nothing. It is comparable: two equal policies need no write.
type Policy struct {
	Params tcp.Params // values of fields
	// Window is how many packets the path has been shown to hold in flight. It is valid until
	// WindowExpires (Unix nanoseconds). If init_cwnd is adapted, the initial window of a
	// connection is its share of Window among the connections of the path, at most the field's value.
	Window        uint32
	WindowExpires int64
	// SwitchFrom has the bit 1<<i for each of Arms whose running connections are switched to
	// Arms[SwitchTo], which is not the default.
	SwitchFrom, SwitchTo uint8
	// FollowAll: no connection is left without state, because the path may give running ones something later. Its
	// connections are followed as well if they get anything but the default, and adapted timeouts of the handshake.
	FollowAll bool
	// CountFlows: the established connections of the path are counted.
	CountFlows bool
	// LeastClamp is the least share of a connection, packets, if cwnd_clamp is adapted: the
	// field's value is what all connections of the path may have in flight together.
	LeastClamp uint16
	// WatchLosses: samples report whether packets are lost in a queue (tcp.Sample.LossRTT).
	WatchLosses bool
	// Adapted has the bit 1<<f for each field of Params that was computed from the metrics of
	// the path, and not set by a rule.
	Adapted uint64
	// Defaults has the bit 1<<f for each field of Params that an application keeps if it has set
	// it: no rule names it.
	Defaults uint64
	Arms     [MaxArms]Arm // the first NumArms count
	NumArms  uint8
	HoldOut  uint32 // share of connections left at kernel defaults, in 1/65536
	// Slice is for how long one draw of an arm holds, as the binary logarithm of
	// nanoseconds, at most 63: all connections to one network (/24, or /48 of IPv6)
	// that begin in one slice of the wall clock are given the same arm. 0: each connection
	// draws its own.
	Slice uint8
	// HoldSlices is the share of slices that are in the hold-out as a whole, in 1/65536, in
	// addition to the connections of HoldOut. It has no effect without Slice.
	HoldSlices uint32
}

// Entry is one row of the kernel's policy table.
type Entry struct {
	Key     Key
	ID      uint32 // nonzero, new at every write; echoed by samples
	Expires int64  // Unix nanoseconds; afterwards the kernel ignores the entry
	Rule    string // name of the rule, which identifies the class over restarts
	Policy  Policy
	Adopt   bool // connections of the path that run without state are to be followed from now on
}
