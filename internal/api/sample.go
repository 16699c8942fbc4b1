package api

import (
	"net/netip"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// measures are encoded by the tags of tcp.Sample.
type measures = tcp.Sample

// Sample is a tcp.Sample as the API writes it: one line of a stream. A line of
// kind KindLost carries only Lost.
type Sample struct {
	Kind string `json:"kind"`
	// Lost is the number of samples missed because this client was too slow.
	Lost uint64 `json:"lost_samples,omitempty"`

	At       time.Time      `json:"at,omitzero"`
	End      string         `json:"end,omitempty"`
	Flags    []string       `json:"flags,omitempty"`
	Local    netip.AddrPort `json:"local,omitzero"`
	Remote   netip.AddrPort `json:"remote,omitzero"`
	Rule     string         `json:"rule,omitempty"`
	Pod      string         `json:"pod,omitempty"` // namespace/name
	Class    uint32         `json:"class,omitempty"`
	PolicyID uint32         `json:"policy_id,omitempty"`
	Arm      string         `json:"arm,omitempty"`
	CC       string         `json:"cc,omitempty"`
	measures
	CCState *CCState `json:"cc_state,omitempty"` // of tcpilot's own congestion controls only
}

// KindLost is the kind of a line that says how many samples the client missed.
const KindLost = "lost"

// flagNames are the names of tcp.Flags, by bit. Bits without a name are used only in the
// kernel.
var flagNames = [...]string{"outgoing", "hold-out", "app-cc", "arm-failed", "cc-changed",
	"app-limited", "ecn", "ecn-seen", "adopted", "default-arm", "hold-out-slice", "rcvbuf-max", "sndbuf-max", "later", "peer-sent", "peer-resent"}

// FromSample returns s as the API writes it.
func FromSample(s *tcp.Sample) Sample {
	var flags []string
	for i, name := range flagNames {
		if name != "" && s.Has(1<<i) {
			flags = append(flags, name)
		}
	}
	out := Sample{
		Kind: s.Kind.String(), At: time.Unix(0, s.At).UTC(), End: s.End.String(), Flags: flags,
		Local: s.Local, Remote: s.Remote, Class: s.Class, PolicyID: s.PolicyID,
		Arm: s.Arm.String(), CC: s.CC.String(), measures: *s, CCState: fromCCState(s),
	}
	if s.StandsFor == 1 {
		out.StandsFor = 0
	}
	return out
}

// Sample returns the line as a tcp.Sample; it is the exact inverse of FromSample.
func (l *Sample) Sample() tcp.Sample {
	s := l.measures
	s.StandsFor = max(1, l.StandsFor)
	s.Kind, s.End, s.At = kindOf(l.Kind), endOf(l.End), l.At.UnixNano()
	s.Local, s.Remote, s.Class, s.PolicyID = l.Local, l.Remote, l.Class, l.PolicyID
	s.Arm, _ = tcp.ParseCC(l.Arm)
	s.CC, _ = tcp.ParseCC(l.CC)
	s.CCState = l.CCState.state(s.CC)
	s.Flags = 0
	for _, f := range l.Flags {
		for i, name := range flagNames {
			if f == name {
				s.Flags |= 1 << i
			}
		}
	}
	return s
}

// Has reports whether the line has a flag, by its name.
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

// match reports whether s passes the filter.
func (f SampleFilter) match(s *tcp.Sample) bool {
	return (f.Kind == 0 || s.Kind == f.Kind) &&
		s.BytesAcked+s.BytesReceived >= f.MinBytes &&
		(!f.Remote.IsValid() || f.Remote.Contains(s.Remote.Addr()))
}

// ParseKind finds a kind by its name.
func ParseKind(word string) (tcp.Kind, error) {
	if k := kindOf(word); k != 0 {
		return k, nil
	}
	return 0, malformed("kind %q: want close, interval or failed-connect", word)
}
