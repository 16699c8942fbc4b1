package tcp

import "fmt"

// Field names one parameter that can be set on a connection. The numbers are
// part of the ABI: index into path_policy.value and bit in path_policy.set
// (bpf/include/abi.h). New fields go at the end.
type Field uint8

const (
	InitCwnd Field = iota
	CwndClamp
	RTOMin
	RTOMax
	DelackMax
	Sndbuf
	Rcvbuf
	WindowClamp
	NotsentLowat
	RcvLowat
	MaxPacingRate
	MaxSeg
	NoDelay
	ThinLinearTimeouts
	UserTimeout
	SynCount
	SaveSyn
	KeepAlive
	KeepIdle
	KeepInterval
	KeepCount
	Priority
	Mark
	TxRehash
	TOS
	TClass
	SynRTO
	SynAckRTO
	InitRwnd
	ECN
	BaseRTT
	AckPriority
	AckDSCP
	PeerOption
	ResumeCwnd
	NumFields
)

// When is the time in a connection's life at which a field is applied.
type When uint8

const (
	// AtConnect fields matter to the handshake: they are set before the SYN of an
	// outgoing connection, and as soon as an incoming one is established.
	AtConnect When = iota
	// AtEstablished fields act on the send side once the handshake is over.
	AtEstablished
	// AtRequest fields are answers to a question that the kernel asks during the
	// handshake, through the reply of the sock_ops program.
	AtRequest
	// AtSample fields depend on what a connection does: they are set and taken back when an
	// interval sample of it is taken.
	AtSample
	// AtRoundTrip fields are set once a round trip of the connection is over.
	AtRoundTrip
)

// FieldSpec describes a field, for the configuration and the documentation.
type FieldSpec struct {
	Name   string // key in the configuration
	Unit   Unit
	Min    uint64 // least value that makes sense, in Unit
	Max    uint64 // greatest value that the kernel takes, in Unit
	When   When
	Kernel string // what it is in the kernel
	// Sysctl gives the kernel's default of the field; empty if there is none. If somebody
	// changes it while tcpilot runs, tcpilot stops setting the field (yield).
	Sysctl string
	Doc    string // one phrase for the documentation
}

// Unit is the base unit of a field's value.
type Unit uint8

const (
	Count          Unit = iota // a plain number
	Bool                       // 0 or 1
	Packets                    // segments of the connection's MSS
	Bytes                      // bytes
	BytesPerSecond             // bytes per second
	Microseconds               // duration, kept in microseconds
	Milliseconds               // duration, kept in milliseconds
	Seconds                    // duration, kept in seconds
)

// String returns the unit's usual suffix, empty for Count and Bool.
func (u Unit) String() string {
	return [...]string{"", "", "packets", "B", "B/s", "us", "ms", "s"}[u]
}

const maxInt = 1<<31 - 1 // most options are a C int

// Fields describes every field, indexed by Field.
//
// Ranges are the kernel's own checks in do_tcp_setsockopt, sk_setsockopt,
// do_ip_setsockopt and bpf_sol_tcp_setsockopt (net/core/filter.c) unless the
// text says otherwise.
var Fields = [NumFields]FieldSpec{
	InitCwnd: {"init_cwnd", Packets, 1, 1000, AtEstablished, "TCP_BPF_IW", "",
		"initial congestion window; ignored by the kernel once data was sent (RFC 6928 has 10)"},
	CwndClamp: {"cwnd_clamp", Packets, 2, maxInt, AtEstablished, "TCP_BPF_SNDCWND_CLAMP", "",
		"upper bound of the congestion window; the kernel sets ssthresh to it as well"},
	RTOMin: {"rto_min", Microseconds, 1000, 200_000, AtConnect, "TCP_BPF_RTO_MIN", "net.ipv4.tcp_rto_min_us",
		"least retransmission timeout; can only be lowered from the kernel's 200 ms (TCP_RTO_MIN)"},
	RTOMax: {"rto_max", Milliseconds, 1000, 120_000, AtConnect, "TCP_RTO_MAX_MS", "net.ipv4.tcp_rto_max_ms",
		"greatest retransmission timeout (Linux 6.15 and later)"},
	DelackMax: {"delack_max", Microseconds, 1000, 200_000, AtConnect, "TCP_BPF_DELACK_MAX", "",
		"longest delay of an ACK; can only be lowered from the kernel's 200 ms (TCP_DELACK_MAX)"},
	Sndbuf: {"sndbuf", Bytes, 2304, maxInt / 2, AtConnect, "SO_SNDBUF", "net.ipv4.tcp_wmem",
		"send buffer; the kernel doubles it for bookkeeping and ends autotuning for the socket"},
	Rcvbuf: {"rcvbuf", Bytes, 1152, maxInt / 2, AtConnect, "SO_RCVBUF", "net.ipv4.tcp_rmem",
		"receive buffer; the kernel doubles it for bookkeeping and ends autotuning for the socket"},
	WindowClamp: {"window_clamp", Bytes, 1152, maxInt, AtConnect, "TCP_WINDOW_CLAMP", "",
		"upper bound of the advertised receive window"},
	NotsentLowat: {"notsent_lowat", Bytes, 1, maxInt, AtConnect, "TCP_NOTSENT_LOWAT", "net.ipv4.tcp_notsent_lowat",
		"unsent bytes above which the socket is not writable"},
	RcvLowat: {"rcv_lowat", Bytes, 1, maxInt, AtConnect, "SO_RCVLOWAT", "",
		"bytes that make the socket readable"},
	MaxPacingRate: {"max_pacing_rate", BytesPerSecond, 1000, 1<<32 - 2, AtConnect, "SO_MAX_PACING_RATE", "",
		"greatest pacing rate; programs can pass 32 bits of it, 34 Gbit/s"},
	MaxSeg: {"max_seg", Bytes, 88, 32767, AtConnect, "TCP_MAXSEG", "",
		"maximum segment size announced and used (TCP_MIN_MSS to MAX_TCP_WINDOW)"},
	NoDelay: {"nodelay", Bool, 0, 1, AtConnect, "TCP_NODELAY", "",
		"turn Nagle's algorithm off (RFC 896)"},
	ThinLinearTimeouts: {"thin_linear_timeouts", Bool, 0, 1, AtConnect, "TCP_THIN_LINEAR_TIMEOUTS", "net.ipv4.tcp_thin_linear_timeouts",
		"no exponential back-off for the first timeouts of a connection with few packets in flight"},
	UserTimeout: {"user_timeout", Milliseconds, 1, maxInt, AtConnect, "TCP_USER_TIMEOUT", "",
		"time that sent data may stay unacknowledged before the connection ends (RFC 5482)"},
	SynCount: {"syn_count", Count, 1, 127, AtConnect, "TCP_SYNCNT", "net.ipv4.tcp_syn_retries",
		"SYN retransmissions before a connect fails (MAX_TCP_SYNCNT)"},
	SaveSyn: {"save_syn", Bool, 0, 1, AtConnect, "TCP_SAVE_SYN", "",
		"keep the SYN's headers of accepted connections; acts on listeners that ask for it"},
	KeepAlive: {"keepalive", Bool, 0, 1, AtConnect, "SO_KEEPALIVE", "",
		"send keepalive probes"},
	KeepIdle: {"keep_idle", Seconds, 1, 32767, AtConnect, "TCP_KEEPIDLE", "net.ipv4.tcp_keepalive_time",
		"idle time before the first keepalive probe (MAX_TCP_KEEPIDLE)"},
	KeepInterval: {"keep_interval", Seconds, 1, 32767, AtConnect, "TCP_KEEPINTVL", "net.ipv4.tcp_keepalive_intvl",
		"time between keepalive probes (MAX_TCP_KEEPINTVL)"},
	KeepCount: {"keep_count", Count, 1, 127, AtConnect, "TCP_KEEPCNT", "net.ipv4.tcp_keepalive_probes",
		"unanswered keepalive probes that end the connection (MAX_TCP_KEEPCNT)"},
	Priority: {"priority", Count, 0, maxInt, AtConnect, "SO_PRIORITY", "",
		"queueing priority of the socket's packets"},
	Mark: {"mark", Count, 0, 1<<32 - 1, AtConnect, "SO_MARK", "",
		"firewall mark of the socket's packets"},
	TxRehash: {"tx_rehash", Bool, 0, 1, AtConnect, "SO_TXREHASH", "net.core.txrehash",
		"choose another flow hash after a timeout, so that another path may be taken"},
	TOS: {"tos", Count, 0, 255, AtConnect, "IP_TOS", "",
		"IPv4 type of service: DSCP in the upper six bits; the kernel keeps TCP's ECN bits"},
	TClass: {"tclass", Count, 0, 255, AtConnect, "IPV6_TCLASS", "",
		"IPv6 traffic class: DSCP in the upper six bits"},
	SynRTO: {"syn_rto", Milliseconds, 1, 120_000, AtRequest, "BPF_SOCK_OPS_TIMEOUT_INIT (SYN)", "",
		"first retransmission timeout of a SYN (RFC 6298 has 1 s); rounded up to the kernel's tick"},
	SynAckRTO: {"synack_rto", Milliseconds, 1, 120_000, AtRequest, "BPF_SOCK_OPS_TIMEOUT_INIT (SYN-ACK)", "",
		"first retransmission timeout of a SYN-ACK; rounded up to the kernel's tick"},
	InitRwnd: {"init_rwnd", Packets, 1, 65535, AtRequest, "BPF_SOCK_OPS_RWND_INIT", "",
		"initial receive window that is advertised"},
	ECN: {"ecn", Bool, 0, 1, AtRequest, "BPF_SOCK_OPS_NEEDS_ECN", "net.ipv4.tcp_ecn",
		"ask for ECN on this connection even where tcp_ecn would not (RFC 3168)"},
	BaseRTT: {"base_rtt", Microseconds, 1, maxInt, AtRequest, "BPF_SOCK_OPS_BASE_RTT", "",
		"round-trip time above which a congestion control that asks (nv) assumes that there is a queue"},
	AckPriority: {"ack_priority", Count, 1, maxInt, AtSample, "SO_PRIORITY", "",
		"queueing priority of the packets of running connections that mostly receive, which are ACKs; an application's own priority is kept"},
	AckDSCP: {"ack_dscp", Count, 1, 63, AtSample, "IP_TOS, IPV6_TCLASS", "",
		"DSCP of the packets of running connections that mostly receive, which are ACKs; an application's own is kept (RFC 2474)"},
	PeerOption: {"peer_option", Microseconds, 1000, 200_000, AtRequest, "BPF_SOCK_OPS_HDR_OPT_LEN_CB", "",
		"send an experimental TCP option (RFC 6994) by which hosts with tcpilot tell each other by how long they delay ACKs; RTO_MIN becomes this value plus what the peer told"},
	ResumeCwnd: {"resume_cwnd", Packets, 1, 10_000, AtRoundTrip, "init of a congestion control in BPF", "",
		"congestion window after the first round trip with data, if it shows that the path is as it was (careful resume, RFC 9959)"},
}

// String returns the field's key in the configuration.
func (f Field) String() string {
	if f < NumFields {
		return Fields[f].Name
	}
	return fmt.Sprintf("field%d", uint8(f))
}

// FieldByName finds a field by its key in the configuration.
func FieldByName(name string) (Field, bool) {
	for f := range Fields {
		if Fields[f].Name == name {
			return Field(f), true
		}
	}
	return 0, false
}
