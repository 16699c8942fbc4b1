package tcp

import (
	"net/netip"
	"time"
)

// Kind says at which moment of a connection's life a sample was taken.
type Kind uint8

const (
	// KindClose is the one sample of a connection that was established and ended.
	// Its counters cover the time since the connection's last interval sample
	// (its whole life if there was none).
	KindClose Kind = 1 + iota
	// KindInterval is a sample of a live connection; counters are deltas since
	// its last one.
	KindInterval
	// KindFailedConnect is a connect that ended before it was established.
	KindFailedConnect
)

// String returns the word that the CLI, the API and the metrics use.
func (k Kind) String() string {
	switch k {
	case KindClose:
		return "close"
	case KindInterval:
		return "interval"
	case KindFailedConnect:
		return "failed-connect"
	}
	return "unknown"
}

// End says how a connection ended, as far as its socket still knows.
type End uint8

const (
	EndNone    End = iota // still open
	EndFin                // both sides closed in order
	EndReset              // the peer sent RST (ECONNRESET, EPIPE)
	EndTimeout            // retransmissions or keepalives ran out (ETIMEDOUT)
	EndRefused            // connect was refused (ECONNREFUSED)
	EndAborted            // closed here with data unsent, unacknowledged or unread
	EndOther              // another socket error
)

// String returns the word that the CLI, the API and the metrics use.
func (e End) String() string {
	switch e {
	case EndNone:
		return "open"
	case EndFin:
		return "fin"
	case EndReset:
		return "reset"
	case EndTimeout:
		return "timeout"
	case EndRefused:
		return "refused"
	case EndAborted:
		return "aborted"
	}
	return "other"
}

// Flags are the yes/no facts of a sample. The bits are part of the ABI
// (bpf/include/abi.h, enum sample_flags).
type Flags uint16

const (
	FlagOutgoing     Flags = 1 << iota // this host called connect
	FlagHoldOut                        // left at kernel defaults, to compare with
	FlagAppCC                          // the application, or its route, chose the congestion control
	FlagArmFailed                      // the kernel refused the arm's congestion control
	FlagCCChanged                      // the congestion control at the end is not the arm that was set
	FlagAppLimited                     // DeliveryRate was measured while the application sent too little
	FlagECN                            // ECN was negotiated
	FlagECNSeen                        // a packet with an ECT codepoint arrived
	FlagAdopted                        // older than tcpilot: seen first by the iterator
	FlagDefaultArm                     // the arm drawn was the default: nothing was set, Arm is CC
	FlagHoldOutSlice                   // with FlagHoldOut: the whole slice of time was held out

	FlagLater Flags = 1 << 13 // an earlier sample has the beginning of the connection
)

// Sample is what one connection says about its path: once when it ends, and
// for long-lived connections every few seconds. A Sample holds no pointers into
// the kernel's record: it can be kept, written to a file, and replayed.
type Sample struct {
	Kind      Kind
	End       End
	Flags     Flags
	At        int64  // when the sample was taken, Unix nanoseconds
	Cookie    uint64 // socket cookie, unique until reboot
	NetNS     uint64 // network namespace cookie
	Cgroup    uint64 // cgroup v2 id of the socket; 0 is unknown
	Local     netip.AddrPort
	Remote    netip.AddrPort // v4-mapped addresses appear as IPv4
	Class     uint32         // class that the connection was put in; 0 is none
	PolicyID  uint32         // path policy in force when it was set; 0 is none
	Arm       CC             // congestion control drawn from the policy; zero if none
	CC        CC             // congestion control in use when the sample was taken
	StandsFor uint32         // connections that this sample stands for, itself included: at least 1
	Duration  time.Duration  // covered by the sample; since SYN for the first one
	Connect   time.Duration  // SYN to established, outgoing only; 0 is unknown
	Busy      time.Duration  // tcp_info.tcpi_busy_time: data outstanding
	RwndLtd   time.Duration  // part of Busy limited by the peer's window
	SndbufLtd time.Duration  // part of Busy limited by the send buffer

	BytesAcked    uint64
	BytesReceived uint64
	BytesRetrans  uint64
	SegsOut       uint32
	SegsIn        uint32
	DataSegsOut   uint32
	Retrans       uint32 // segments retransmitted
	Delivered     uint32 // packets, retransmits included
	DeliveredCE   uint32 // of these, acknowledged with ECE
	Lost          uint32 // packets marked lost by this connection (tp->lost)
	RTOs          uint32 // retransmission timeouts

	MinRTT       uint32 // microseconds; 0 is unknown
	SRTT         uint32 // microseconds; 0 is unknown
	RTTVar       uint32 // microseconds
	Cwnd         uint32 // packets
	Ssthresh     uint32 // packets; 0x7fffffff is "never left slow start"
	MSS          uint32 // bytes
	DeliveryRate uint64 // bytes per second, the kernel's latest rate sample

	Control ControlState // what CC says of itself, if it is one of tcpilot's own
}

// Has reports whether every bit of f is set.
func (s *Sample) Has(f Flags) bool { return s.Flags&f == f }

// SendLimited is the time in which the path, and neither the application, nor
// the peer's window, nor the send buffer, bounded what was sent.
func (s *Sample) SendLimited() time.Duration {
	return max(0, s.Busy-s.RwndLtd-s.SndbufLtd)
}
