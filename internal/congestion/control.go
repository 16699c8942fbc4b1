package congestion

import (
	"bytes"
	"slices"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Prefix begins the names of tcpilot's own, and of no others.
const Prefix = "tcpilot_"

// Control is what is known of a congestion control.
type Control struct {
	CC tcp.CC
	// NeedsECN: it does harm where marks are not answered, and is an arm only on
	// paths that have proved to answer them. Without marks, such controls answer loss
	// like Reno (RFC 8257, 3.5 for DCTCP; RFC 9331 for Prague).
	NeedsECN bool
	// IgnoresECN: it negotiates ECN as any connection does, but does not slow down when
	// marks come, against RFC 3168, 6.1.2: no arm on paths that mark. In Linux,
	// cong_control stands in for tcp_enter_cwr, and tcp_bbr.c does not look at marks.
	IgnoresECN bool
	// LossTolerant: it models the path's rate, and so does not take each loss for
	// congestion.
	LossTolerant bool
	// ByName: arms: auto does not mean it, only a rule that names it has it.
	ByName bool
	// InsteadOf is one of Linux's that auto does not mean where this one is at hand.
	InsteadOf tcp.CC
	// VariantOf is another from which it differs only in a few improvements. It is
	// expected to be as good, or better by ExpectedLead, a natural logarithm of speeds.
	VariantOf    tcp.CC
	ExpectedLead float64
}

// catalogue begins with those that come before all others where there are more than a
// policy holds: what Linux runs by default, what learns the rate of a path, and what
// answers marks. The others follow by name.
//
// tcpilot_bbr3 does what bbr does, with a third of its retransmits, and leaves more to
// others. tcpilot_cubic does what cubic does, and does not leave slow start for a burst: it
// is 0.16 ahead where cubic ends slow start early, and not in long flows, so that what a
// path has of it lies between (docs/benchmarks.md). tcpilot_ledbat yields to everybody and
// so would never be found the best, and tcpilot_prague is an experiment where the kernel
// has no accurate ECN.
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

// preferred is the number of those at the head of the catalogue that come before all others.
const preferred = 7

func index(cc tcp.CC) int {
	return slices.IndexFunc(catalogue, func(c Control) bool { return c.CC == cc })
}

// Of is what is known of cc by its name alone.
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

// InLinux reports whether Linux has cc, be it in this kernel or not: a module may come
// later.
func InLinux(cc tcp.CC) bool { return slices.Contains(Linux, cc.String()) }

// IsLinux reports whether Linux has cc, or is widely patched with it, be it in this
// kernel or not.
func IsLinux(cc tcp.CC) bool { return InLinux(cc) || index(cc) >= 0 && !HasOwnName(cc) }

// IsOwn reports whether cc is one of tcpilot's own.
func IsOwn(cc tcp.CC) bool { return HasOwnName(cc) && index(cc) >= 0 }

// HasOwnName reports whether cc has the name of one of tcpilot's own, be there such a
// one or not.
func HasOwnName(cc tcp.CC) bool { return bytes.HasPrefix(cc[:], []byte(Prefix)) }

// Compare orders by preference, and by name where there is none.
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
