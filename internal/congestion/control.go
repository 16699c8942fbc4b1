package congestion

import (
	"bytes"
	"slices"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Prefix is the prefix of the names of tcpilot's own controls, and of no others.
const Prefix = "tcpilot_"

// Control is what is known of a congestion control.
type Control struct {
	CC tcp.CC
	// NeedsECN: it relies on ECN marks, and is an arm only on paths that have proved to
	// mark. Without marks, such controls answer loss like Reno (RFC 8257, 3.5 for DCTCP;
	// RFC 9331 for Prague).
	NeedsECN bool
	// IgnoresECN: it negotiates ECN as any connection does, but does not slow down when
	// packets are marked, against RFC 3168, 6.1.2. So it is not an arm on paths that mark.
	// In Linux, cong_control replaces tcp_enter_cwr, and tcp_bbr.c does not read marks.
	IgnoresECN bool
	// LossTolerant: it models the rate of the path, and so does not slow down for each
	// loss.
	LossTolerant bool
	// ByName: arms: auto excludes it; only a rule that names it uses it.
	ByName bool
	// InsteadOf is a control of Linux that arms: auto excludes if this one is loaded.
	InsteadOf tcp.CC
	// VariantOf is a control from which it differs only in a few improvements. It is
	// expected to be better by ExpectedLead, a natural logarithm of speed; 0 is as good.
	VariantOf    tcp.CC
	ExpectedLead float64
}

// catalogue begins with the controls that are preferred if there are more than a policy
// holds: the default of Linux, those that model the rate of a path, and those that answer
// marks. The others follow by name.
//
// tcpilot_bbr3 works like bbr, with a third of its retransmits, and leaves more to other
// connections. tcpilot_cubic works like cubic, but does not end slow start at a burst: it is
// 0.16 ahead where cubic ends slow start early, and not ahead in long flows, so most paths
// lie between (docs/benchmarks.md). tcpilot_ledbat gives way to all other traffic, and so
// would never be the best arm. tcpilot_prague is an experiment if the kernel has no accurate
// ECN.
var catalogue = []Control{
	{CC: tcp.CCOf("cubic")},
	{CC: tcp.CCOf("bbr"), LossTolerant: true, IgnoresECN: true},
	{CC: tcp.CCOf("tcpilot_bbr3"), LossTolerant: true, InsteadOf: tcp.CCOf("bbr")},
	{CC: tcp.CCOf("tcpilot_cubic"), InsteadOf: tcp.CCOf("cubic"), VariantOf: tcp.CCOf("cubic"), ExpectedLead: 0.03},
	{CC: tcp.CCOf("tcpilot_dctcp"), NeedsECN: true, VariantOf: tcp.CCOf("dctcp")},
	{CC: tcp.CCOf("dctcp"), NeedsECN: true},
	{CC: tcp.CCOf("reno")},
	{CC: tcp.CCOf("bbr2"), LossTolerant: true},
	{CC: tcp.CCOf("bbr3"), LossTolerant: true},
	{CC: tcp.CCOf("prague"), NeedsECN: true},
	{CC: tcp.CCOf("tcpilot_ledbat"), ByName: true},
	{CC: tcp.CCOf("tcpilot_prague"), NeedsECN: true, ByName: true},
}

// preferred is the number of controls at the head of the catalogue that are preferred.
const preferred = 7

func index(cc tcp.CC) int {
	return slices.IndexFunc(catalogue, func(c Control) bool { return c.CC == cc })
}

// Of returns what is known about cc by its name alone.
func Of(cc tcp.CC) Control {
	if i := index(cc); i >= 0 {
		return catalogue[i]
	}
	return Control{CC: cc}
}

// Own lists tcpilot's own (bpf/cc), by name. The caller must not change the list.
func Own() []Control { return own }

var own = func() (list []Control) {
	for _, c := range catalogue {
		if HasOwnName(c.CC) {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b Control) int { return slices.Compare(a.CC[:], b.CC[:]) })
	return list
}()

// Linux lists the controls of Linux's net/ipv4/tcp_*.c. The caller must not change it.
var Linux = []string{"bbr", "bic", "cdg", "cubic", "dctcp", "highspeed", "htcp", "hybla", "illinois", "lp", "nv",
	"reno", "scalable", "vegas", "veno", "westwood", "yeah"}

// InLinux reports whether cc is part of Linux, whether or not this kernel has it: a module may
// be loaded later.
func InLinux(cc tcp.CC) bool { return slices.Contains(Linux, cc.String()) }

// IsLinux reports whether cc is part of Linux or of a common patch, whether or not this
// kernel has it.
func IsLinux(cc tcp.CC) bool { return InLinux(cc) || index(cc) >= 0 && !HasOwnName(cc) }

// IsOwn reports whether cc is one of tcpilot's own.
func IsOwn(cc tcp.CC) bool { return HasOwnName(cc) && index(cc) >= 0 }

// HasOwnName reports whether the name of cc is reserved for tcpilot's own, whether or not
// such a control exists.
func HasOwnName(cc tcp.CC) bool { return bytes.HasPrefix(cc[:], []byte(Prefix)) }

// Compare orders by preference, then by name.
func Compare(a, b Control) int {
	if x, y := rank(a.CC), rank(b.CC); x != y {
		return x - y
	}
	return slices.Compare(a.CC[:], b.CC[:])
}

func rank(cc tcp.CC) int {
	if i := index(cc); i >= 0 {
		return min(i, preferred)
	}
	return preferred
}
