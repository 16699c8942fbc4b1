package tcp

import (
	"net/netip"
	"time"
)

// Kind is the time in a connection's life at which a sample was taken.
type Kind uint8

const (
	// KindClose is the sample at the end of a connection that was established. Its
	// counters cover the time since the connection's last interval sample, or its
	// whole life if there was none.
	KindClose Kind = 1 + iota
	// KindInterval is a sample of a live connection; counters are deltas since the previous
	// sample.
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

// End is how a connection ended, as far as its socket shows it.
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
	FlagCCChanged                      // the congestion control in use is not the arm that was set
	FlagAppLimited                     // DeliveryRate was measured while the application sent too little
	FlagECN                            // ECN was negotiated
	FlagECNSeen                        // a packet with an ECT codepoint arrived
	FlagAdopted                        // its beginning was not seen, or not kept: found by the iterator, or see SinceLosses
	FlagDefaultArm                     // the arm drawn was the default: nothing was set, Arm is CC
	FlagHoldOutSlice                   // with FlagHoldOut: the whole slice of time is in the hold-out
	FlagRcvbufMax                      // its receive buffer has grown to the maximum of tcp_rmem
	FlagSndbufMax                      // its send buffer has grown to the maximum of tcp_wmem

	FlagLater      Flags = 1 << 13 // not the connection's first sample: counters are deltas
	FlagPeerSent   Flags = 1 << 14 // its SYN or SYN-ACK had the peer option
	FlagPeerResent Flags = 1 << 15 // its SYN was sent again, without the peer option
)

// SinceLosses reports whether a connection of a known rule is followed only since it has lost packets. All connections of its
// path that lose packets are then, and only a share of the others.
func (s *Sample) SinceLosses() bool { return s.Has(FlagAdopted) && s.Class != 0 }

// InfiniteSsthresh is TCP_INFINITE_SSTHRESH (include/net/tcp.h), the Ssthresh of a connection
// that never left slow start.
const InfiniteSsthresh = 0x7fffffff

// Sample is the report of one connection: at its end and, for long-lived connections, every
// few seconds. A Sample has no pointers into the kernel's record: it can be kept, written to
// a file, and replayed.
//
// The tags are the API's: name, unit and meaning, from which docs/samples.md is written.
// The API encodes fields without a name (json:"-") itself.
type Sample struct {
	Kind      Kind           `json:"-"`
	End       End            `json:"-"`
	Flags     Flags          `json:"-"`
	At        int64          `json:"-"` // when the sample was taken, Unix nanoseconds
	Cookie    uint64         `json:"cookie,omitempty" doc:"of the socket: unique until the host restarts"`
	NetNS     uint64         `json:"netns,omitempty" doc:"network namespace cookie"`
	Cgroup    uint64         `json:"cgroup,omitempty" doc:"cgroup v2 id of the socket; absent: unknown"`
	Local     netip.AddrPort `json:"-"`
	Remote    netip.AddrPort `json:"-"`                                                                                                                                                                                  // v4-mapped addresses appear as IPv4
	Class     uint32         `json:"-"`                                                                                                                                                                                  // class that the connection was put in; 0 is none
	PolicyID  uint32         `json:"-"`                                                                                                                                                                                  // path policy in force when it was set; 0 is none
	Arm       CC             `json:"-"`                                                                                                                                                                                  // congestion control drawn from the policy; zero if none
	CC        CC             `json:"-"`                                                                                                                                                                                  // congestion control in use when the sample was taken
	StandsFor uint32         `json:"stands_for,omitempty" unit:"connections" doc:"number of connections that the sample represents, itself included, when more connections end per second than are reported; absent: 1"` // at least 1, which the API leaves out
	Duration  time.Duration  `json:"duration_ns,omitempty" unit:"ns" doc:"covered by the sample; since SYN for the first one, or since it was followed if that came later"`
	Connect   time.Duration  `json:"connect_ns,omitempty" unit:"ns" doc:"SYN to established, outgoing only; absent: unknown"`
	Busy      time.Duration  `json:"busy_ns,omitempty" unit:"ns" doc:"time with data outstanding (tcpi_busy_time)"`
	RwndLtd   time.Duration  `json:"rwnd_limited_ns,omitempty" unit:"ns" doc:"part of that time, limited by the peer's window"`
	SndbufLtd time.Duration  `json:"sndbuf_limited_ns,omitempty" unit:"ns" doc:"part of that time, limited by the send buffer"`

	BytesAcked    uint64 `json:"bytes_acked,omitempty" unit:"bytes" doc:"that the peer acknowledged"`
	BytesReceived uint64 `json:"bytes_received,omitempty" unit:"bytes" doc:"that the peer sent"`
	BytesRetrans  uint64 `json:"bytes_retrans,omitempty" unit:"bytes" doc:"retransmitted"`
	SegsOut       uint32 `json:"segs_out,omitempty" unit:"segments" doc:"sent"`
	SegsIn        uint32 `json:"segs_in,omitempty" unit:"segments" doc:"received"`
	DataSegsIn    uint32 `json:"data_segs_in,omitempty" unit:"segments" doc:"received with data"`
	DataSegsOut   uint32 `json:"data_segs_out,omitempty" unit:"segments" doc:"sent with data"`
	Retrans       uint32 `json:"retrans,omitempty" unit:"segments" doc:"retransmitted"`
	Delivered     uint32 `json:"delivered,omitempty" unit:"packets" doc:"acknowledged, retransmits included"`
	DeliveredCE   uint32 `json:"delivered_ce,omitempty" unit:"packets" doc:"those of them whose congestion mark (CE) was echoed"`
	Lost          uint32 `json:"lost,omitempty" unit:"packets" doc:"that the sender marked as lost (tp->lost)"`
	RTOs          uint32 `json:"rtos,omitempty" doc:"retransmission timeouts"`
	DSACKs        uint32 `json:"dsacks,omitempty" unit:"segments" doc:"that the peer reported as received twice (RFC 2883): spurious retransmissions, or duplicates that the network made"`
	Undone        int16  `json:"undone,omitempty" unit:"segments" doc:"change since the previous sample in the number of retransmissions that the kernel found spurious (RFC 3522, RFC 5682) and the peer has not reported; negative if the peer reports some of an earlier sample"`

	MinRTT       uint32        `json:"min_rtt_us,omitempty" unit:"us" doc:"the kernel's least round-trip time; absent: unknown"`
	SRTT         uint32        `json:"srtt_us,omitempty" unit:"us" doc:"its smoothed round-trip time; absent: unknown"`
	RTTVar       uint32        `json:"rttvar_us,omitempty" unit:"us" doc:"the variation of srtt_us"`
	Cwnd         uint32        `json:"cwnd,omitempty" unit:"packets" doc:"congestion window"`
	Ssthresh     uint32        `json:"ssthresh,omitempty" unit:"packets" doc:"slow start threshold; 2147483647: never left slow start"`
	RTOMin       time.Duration `json:"rto_min_ns,omitempty" unit:"ns" doc:"least retransmission timeout beyond srtt; a route's own is not reported"`
	DelackMax    time.Duration `json:"delack_max_ns,omitempty" unit:"ns" doc:"longest delay of an ACK (icsk_delack_max); the kernel delays most by less"`
	MSS          uint32        `json:"mss_bytes,omitempty" unit:"bytes" doc:"maximum segment size"`
	DeliveryRate uint64        `json:"delivery_rate_bytes_per_second,omitempty" unit:"bytes/s" doc:"the kernel's latest rate sample"`

	Flows    uint32 `json:"flows,omitempty" unit:"connections" doc:"established connections of the path then, itself included; absent: they are not counted"`
	InitCwnd uint16 `json:"init_cwnd,omitempty" unit:"packets" doc:"initial window that was computed from the path's metrics; absent: the kernel's"`
	InitLost uint16 `json:"init_lost,omitempty" unit:"packets" doc:"retransmissions of the packets of raised windows (init_cwnd, resume_cwnd) after a loss, in the first sample of a connection"`

	ResumeCwnd uint16 `json:"resume_cwnd,omitempty" unit:"packets" doc:"congestion window that it jumped to after a round trip (careful resume), less what it did not use, in the first sample of a connection; absent: it did not jump"`

	MaxPacingRate uint64 `json:"max_pacing_rate_bytes_per_second,omitempty" unit:"bytes/s" doc:"limit of the socket's pacing rate, whoever set it; absent: none"`
	LossRTT       uint32 `json:"loss_rtt_us,omitempty" unit:"us" doc:"smoothed round-trip time of the packets that were delivered when losses were found: of a full queue, if there is one; only if the rule adapts max_pacing_rate"`

	PeerDelack  time.Duration `json:"peer_delack_ns,omitempty" unit:"ns" doc:"longest delay of ACKs that the peer told in the peer option; absent: it told nothing"`
	PeerReceive uint64        `json:"peer_receive_bytes,omitempty" unit:"bytes" doc:"how much the peer can receive at a time, as it told, rounded down to a power of two; absent: unknown"`

	CCState CCState `json:"-"` // the state that CC reports, if it is one of tcpilot's own
}

// Has reports whether every bit of f is set.
func (s *Sample) Has(f Flags) bool { return s.Flags&f == f }

// Whole reports whether the sample covers a connection from its beginning to its end.
func (s *Sample) Whole() bool { return s.Kind == KindClose && !s.Has(FlagLater) }

// Spurious is the number of spurious retransmissions in segments: those that the peer reported, and those that the kernel found by itself.
func (s *Sample) Spurious() uint32 {
	return uint32(max(0, int64(s.DSACKs)+int64(s.Undone)))
}

// SendLimited is the time in which the path limited what was sent: not the application, the
// peer's window, or the send buffer.
func (s *Sample) SendLimited() time.Duration {
	return max(0, s.Busy-s.RwndLtd-s.SndbufLtd)
}
