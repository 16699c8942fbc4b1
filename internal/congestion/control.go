package congestion

import (
	"bytes"
	"cmp"
	"math"
	"regexp"
	"slices"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Prefix is the prefix of the names of tcpilot's own controls, and of no others.
const Prefix = "tcpilot_"

// WindowSetter is the prefix of the controls by which tcpilot sets the window of a running connection
// (bpf/sockops/resume.bpf.c). No connection keeps one. Six hexadecimal digits follow, which differ between processes.
const WindowSetter = Prefix + "r"

var windowSetter = regexp.MustCompile("^" + WindowSetter + "[0-9a-f]{6}$")

// IsWindowSetter reports whether a control has such a name.
func IsWindowSetter(name string) bool { return windowSetter.MatchString(name) }

// Control is what is known of a congestion control.
type Control struct {
	CC tcp.CC
	// InLinux: it is part of Linux (net/ipv4/tcp_*.c), whether or not this kernel has it: a
	// module may be loaded later.
	InLinux bool
	// Preferred: it is among the first to be kept if there are more controls than a policy can
	// have as arms. See Compare.
	Preferred bool
	// Deployed is its rank by how much of the Internet uses it, 1 is the most; 0: little, or
	// unknown. See Safer.
	Deployed int
	// NeedsECN: it relies on ECN marks, and is an arm only on paths on which marks have been
	// seen. Without marks, such controls respond to loss like Reno (RFC 8257, 3.5 for DCTCP;
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
	// VariantOf is a control from which it differs only in a few improvements. It is expected
	// to be about as good.
	VariantOf tcp.CC
	// Modes are the names of the modes that it reports, by number (enum NAME_mode
	// in its source). Only tcpilot's own report one.
	Modes []string
}

// scalableModes are those of controls that follow the share of marks (bpf/cc/scalable.bpf.h).
var scalableModes = []string{"slow-start", "avoidance"}

// catalogue begins with the controls that are preferred, in this order: the default of Linux,
// those that model the rate of a path, and those that answer marks. The order of the others
// has no meaning.
//
// Deployed: cubic is the default of Linux (RFC 9438), reno is the standard (RFC 5681).
//
// tcpilot_bbr3 works like bbr, with a third of its retransmissions, and leaves more to other
// connections. tcpilot_cubic works like cubic, but soon uses what others have left of the path
// (docs/design/0036-a-freed-path.md): the slowest connections are faster where others come
// and go, and the mean is about the same; cubic stays an arm beside it
// (docs/design/0026-own-congestion-controls.md). tcpilot_ledbat gives way to all other traffic, and so
// would never be the best arm. tcpilot_prague is an experiment if the kernel has no accurate ECN.
var catalogue = []Control{
	{CC: tcp.CCOf("cubic"), InLinux: true, Preferred: true, Deployed: 1},
	{CC: tcp.CCOf("bbr"), InLinux: true, Preferred: true, Deployed: 3, LossTolerant: true, IgnoresECN: true},
	{CC: tcp.CCOf("tcpilot_bbr3"), Preferred: true, LossTolerant: true, InsteadOf: tcp.CCOf("bbr"),
		Modes: []string{"startup", "drain", "probe-down", "probe-cruise", "probe-refill", "probe-up", "probe-rtt"}},
	{CC: tcp.CCOf("tcpilot_cubic"), Preferred: true, VariantOf: tcp.CCOf("cubic"),
		Modes: []string{"slow-start", "freed", "reno", "concave", "convex"}},
	{CC: tcp.CCOf("tcpilot_dctcp"), Preferred: true, NeedsECN: true, VariantOf: tcp.CCOf("dctcp"), Modes: scalableModes},
	{CC: tcp.CCOf("dctcp"), InLinux: true, Preferred: true, NeedsECN: true},
	{CC: tcp.CCOf("reno"), InLinux: true, Preferred: true, Deployed: 2},

	{CC: tcp.CCOf("tcpilot_ledbat"), ByName: true, Modes: []string{"start", "steady", "slowdown", "regrow"}},
	{CC: tcp.CCOf("tcpilot_prague"), NeedsECN: true, ByName: true, Modes: scalableModes},

	// Patches of Linux.
	{CC: tcp.CCOf("bbr2"), LossTolerant: true},
	{CC: tcp.CCOf("bbr3"), LossTolerant: true},
	{CC: tcp.CCOf("prague"), NeedsECN: true},

	{CC: tcp.CCOf("bic"), InLinux: true},
	{CC: tcp.CCOf("cdg"), InLinux: true},
	{CC: tcp.CCOf("highspeed"), InLinux: true},
	{CC: tcp.CCOf("htcp"), InLinux: true},
	{CC: tcp.CCOf("hybla"), InLinux: true},
	{CC: tcp.CCOf("illinois"), InLinux: true},
	{CC: tcp.CCOf("lp"), InLinux: true},
	{CC: tcp.CCOf("nv"), InLinux: true},
	{CC: tcp.CCOf("scalable"), InLinux: true},
	{CC: tcp.CCOf("vegas"), InLinux: true},
	{CC: tcp.CCOf("veno"), InLinux: true},
	{CC: tcp.CCOf("westwood"), InLinux: true},
	{CC: tcp.CCOf("yeah"), InLinux: true},
}

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

// Own lists tcpilot's own controls (bpf/cc), by name. The caller must not change the list.
func Own() []Control { return own }

// Linux lists the controls of Linux, by name. The caller must not change the list.
func Linux() []Control { return linux }

var (
	own   = selected(func(c *Control) bool { return HasOwnName(c.CC) })
	linux = selected(func(c *Control) bool { return c.InLinux })
)

func selected(which func(*Control) bool) (list []Control) {
	for i := range catalogue {
		if which(&catalogue[i]) {
			list = append(list, catalogue[i])
		}
	}
	slices.SortFunc(list, byName)
	return list
}

func byName(a, b Control) int { return slices.Compare(a.CC[:], b.CC[:]) }

// IsLinux reports whether cc is part of Linux or of a common patch, whether or not this
// kernel has it.
func IsLinux(cc tcp.CC) bool { return index(cc) >= 0 && !HasOwnName(cc) }

// IsOwn reports whether cc is one of tcpilot's own controls.
func IsOwn(cc tcp.CC) bool { return HasOwnName(cc) && index(cc) >= 0 }

// HasOwnName reports whether the name of cc is reserved for tcpilot's own controls, whether or not
// such a control exists.
func HasOwnName(cc tcp.CC) bool { return bytes.HasPrefix(cc[:], []byte(Prefix)) }

// Compare orders by preference, then by name.
func Compare(a, b Control) int { return cmp.Or(rank(a.CC)-rank(b.CC), byName(a, b)) }

func rank(cc tcp.CC) int {
	if i := index(cc); i >= 0 && catalogue[i].Preferred {
		return i
	}
	return len(catalogue)
}

// Safer reports whether a is to be tried before b if nothing was learned yet of either: first
// those that most of the Internet uses, then others, last those that need ECN marks from the
// network (RFC 8257 for dctcp).
func Safer(a, b *Control) bool {
	if x, y := a.risk(), b.risk(); x != y {
		return x < y
	}
	return bytes.Compare(a.CC[:], b.CC[:]) < 0
}

func (c *Control) risk() int {
	switch {
	case c.Deployed > 0:
		return c.Deployed
	case c.NeedsECN:
		return math.MaxInt
	}
	return math.MaxInt - 1
}
