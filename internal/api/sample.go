package api

import (
	"net/netip"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Sample is a tcp.Sample as the API writes it: one line of a stream. A line of
// kind KindLost carries only Lost.
type Sample struct {
	Kind string `json:"kind"`
	// Lost samples, since this client was too slow for them.
	Lost uint64 `json:"lost_samples,omitempty"`

	At            time.Time      `json:"at,omitzero"`
	End           string         `json:"end,omitempty"`
	Flags         []string       `json:"flags,omitempty"`
	Local         netip.AddrPort `json:"local,omitzero"`
	Remote        netip.AddrPort `json:"remote,omitzero"`
	Rule          string         `json:"rule,omitempty"`
	Class         uint32         `json:"class,omitempty"`
	PolicyID      uint32         `json:"policy_id,omitempty"`
	Arm           string         `json:"arm,omitempty"`
	CC            string         `json:"cc,omitempty"`
	Cookie        uint64         `json:"cookie,omitempty"`
	NetNS         uint64         `json:"netns,omitempty"`
	Cgroup        uint64         `json:"cgroup,omitempty"`
	StandsFor     uint32         `json:"stands_for,omitempty"` // connections; left out where it is 1
	Duration      time.Duration  `json:"duration_ns,omitempty"`
	Connect       time.Duration  `json:"connect_ns,omitempty"`
	Busy          time.Duration  `json:"busy_ns,omitempty"`
	RwndLtd       time.Duration  `json:"rwnd_limited_ns,omitempty"`
	SndbufLtd     time.Duration  `json:"sndbuf_limited_ns,omitempty"`
	BytesAcked    uint64         `json:"bytes_acked,omitempty"`
	BytesReceived uint64         `json:"bytes_received,omitempty"`
	BytesRetrans  uint64         `json:"bytes_retrans,omitempty"`
	SegsOut       uint32         `json:"segs_out,omitempty"`
	SegsIn        uint32         `json:"segs_in,omitempty"`
	DataSegsOut   uint32         `json:"data_segs_out,omitempty"`
	Retrans       uint32         `json:"retrans,omitempty"`
	Delivered     uint32         `json:"delivered,omitempty"`
	DeliveredCE   uint32         `json:"delivered_ce,omitempty"`
	LostPackets   uint32         `json:"lost,omitempty"`
	RTOs          uint32         `json:"rtos,omitempty"`
	MinRTT        uint32         `json:"min_rtt_us,omitempty"`
	SRTT          uint32         `json:"srtt_us,omitempty"`
	RTTVar        uint32         `json:"rttvar_us,omitempty"`
	Cwnd          uint32         `json:"cwnd,omitempty"`
	Ssthresh      uint32         `json:"ssthresh,omitempty"`
	MSS           uint32         `json:"mss_bytes,omitempty"`
	DeliveryRate  uint64         `json:"delivery_rate_bytes_per_second,omitempty"`
	Control       *ControlState  `json:"control,omitempty"` // of tcpilot's own congestion controls only
}

// KindLost is the kind of a line that says how many samples the client missed.
const KindLost = "lost"

// flagNames are the words of tcp.Flags, by bit. Bits without one stay in the kernel.
var flagNames = [...]string{"outgoing", "hold-out", "app-cc", "arm-failed", "cc-changed",
	"app-limited", "ecn", "ecn-seen", "adopted", "default-arm", "held-slice", 13: "later"}

// FromSample returns s as the API writes it.
func FromSample(s *tcp.Sample) Sample {
	var flags []string
	for i, name := range flagNames {
		if name != "" && s.Has(1<<i) {
			flags = append(flags, name)
		}
	}
	var standsFor uint32
	if s.StandsFor > 1 {
		standsFor = s.StandsFor
	}
	return Sample{
		StandsFor: standsFor,

		Kind: s.Kind.String(), At: time.Unix(0, s.At).UTC(), End: s.End.String(), Flags: flags,
		Local: s.Local, Remote: s.Remote, Class: s.Class, PolicyID: s.PolicyID,
		Arm: s.Arm.String(), CC: s.CC.String(), Cookie: s.Cookie, NetNS: s.NetNS, Cgroup: s.Cgroup,
		Duration: s.Duration, Connect: s.Connect, Busy: s.Busy, RwndLtd: s.RwndLtd, SndbufLtd: s.SndbufLtd,
		BytesAcked: s.BytesAcked, BytesReceived: s.BytesReceived, BytesRetrans: s.BytesRetrans,
		SegsOut: s.SegsOut, SegsIn: s.SegsIn, DataSegsOut: s.DataSegsOut, Retrans: s.Retrans,
		Delivered: s.Delivered, DeliveredCE: s.DeliveredCE, LostPackets: s.Lost, RTOs: s.RTOs,
		MinRTT: s.MinRTT, SRTT: s.SRTT, RTTVar: s.RTTVar, Cwnd: s.Cwnd, Ssthresh: s.Ssthresh,
		MSS: s.MSS, DeliveryRate: s.DeliveryRate, Control: fromControl(s),
	}
}

// Sample returns the line as a tcp.Sample, without loss.
func (l *Sample) Sample() tcp.Sample {
	s := tcp.Sample{
		StandsFor: max(1, l.StandsFor),

		Kind: kindOf(l.Kind), End: endOf(l.End), At: l.At.UnixNano(),
		Local: l.Local, Remote: l.Remote, Class: l.Class, PolicyID: l.PolicyID,
		Cookie: l.Cookie, NetNS: l.NetNS, Cgroup: l.Cgroup,
		Duration: l.Duration, Connect: l.Connect, Busy: l.Busy, RwndLtd: l.RwndLtd, SndbufLtd: l.SndbufLtd,
		BytesAcked: l.BytesAcked, BytesReceived: l.BytesReceived, BytesRetrans: l.BytesRetrans,
		SegsOut: l.SegsOut, SegsIn: l.SegsIn, DataSegsOut: l.DataSegsOut, Retrans: l.Retrans,
		Delivered: l.Delivered, DeliveredCE: l.DeliveredCE, Lost: l.LostPackets, RTOs: l.RTOs,
		MinRTT: l.MinRTT, SRTT: l.SRTT, RTTVar: l.RTTVar, Cwnd: l.Cwnd, Ssthresh: l.Ssthresh,
		MSS: l.MSS, DeliveryRate: l.DeliveryRate,
	}
	s.Arm, _ = tcp.ParseCC(l.Arm)
	s.CC, _ = tcp.ParseCC(l.CC)
	s.Control = l.Control.state(s.CC)
	for _, f := range l.Flags {
		for i, name := range flagNames {
			if f == name {
				s.Flags |= 1 << i
			}
		}
	}
	return s
}

// Has reports whether the line has a flag, by its word.
func (l *Sample) Has(flag string) bool {
	for _, f := range l.Flags {
		if f == flag {
			return true
		}
	}
	return false
}

func kindOf(word string) tcp.Kind {
	for k := tcp.KindClose; k <= tcp.KindFailedConnect; k++ {
		if k.String() == word {
			return k
		}
	}
	return 0
}

func endOf(word string) tcp.End {
	for e := tcp.EndNone; e < tcp.EndOther; e++ {
		if e.String() == word {
			return e
		}
	}
	return tcp.EndOther
}

// SampleFilter selects samples. The zero value takes all.
type SampleFilter struct {
	Remote   netip.Prefix // zero is any
	Kind     tcp.Kind     // 0 is any
	MinBytes uint64       // acked and received together
}

// Match reports whether s is wanted.
func (f SampleFilter) Match(s *tcp.Sample) bool {
	return (f.Kind == 0 || s.Kind == f.Kind) &&
		s.BytesAcked+s.BytesReceived >= f.MinBytes &&
		(!f.Remote.IsValid() || f.Remote.Contains(s.Remote.Addr()))
}

// ParseKind finds a kind by its word.
func ParseKind(word string) (tcp.Kind, error) {
	if k := kindOf(word); k != 0 {
		return k, nil
	}
	return 0, malformed("kind %q: want close, interval or failed-connect", word)
}
