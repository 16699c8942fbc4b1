package policy

import (
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Ours begins the names of tcpilot's own congestion controls, and of no others.
const Ours = "tcpilot_"

// Control is a congestion control that tcpilot brings along (bpf/cc/*.bpf.c).
type Control struct {
	CC tcp.CC
	// NeedsECN: it does harm where marks are not answered, and is an arm only on
	// paths that have proved to answer them.
	NeedsECN bool
	// ByName: auto does not mean it, only a rule that names it has it.
	ByName bool
	// InsteadOf is one of Linux's that auto does not mean where this one is at hand.
	InsteadOf tcp.CC
}

// Controls lists tcpilot's own, by name. tcpilot_bbr3 does what bbr does, with a third
// of its retransmits, and leaves more to others; tcpilot_cubic does what cubic does, and
// does not leave slow start for a burst (docs/benchmarks.md). tcpilot_ledbat yields to
// everybody and so would never be found the best, and tcpilot_prague is an experiment where
// the kernel has no accurate ECN.
var Controls = []Control{
	{CC: named("tcpilot_bbr3"), InsteadOf: named("bbr")},
	{CC: named("tcpilot_cubic"), InsteadOf: named("cubic")},
	{CC: named("tcpilot_dctcp"), NeedsECN: true},
	{CC: named("tcpilot_ledbat"), ByName: true},
	{CC: named("tcpilot_prague"), NeedsECN: true, ByName: true},
}

func named(name string) tcp.CC {
	cc, _ := tcp.ParseCC(name)
	return cc
}

// ControlOf finds what is known of one of tcpilot's own.
func ControlOf(cc tcp.CC) (c Control, ok bool) {
	i := slices.IndexFunc(Controls, func(c Control) bool { return c.CC == cc })
	if i < 0 {
		return Control{}, false
	}
	return Controls[i], true
}

// Auto reports whether arms: auto means cc: unless only a rule that names it has it, or
// one of tcpilot's own stands in for it, which is among arms, meant itself, and not
// retired.
func Auto(cc tcp.CC, arms, byName, retired []tcp.CC) bool {
	return !slices.Contains(byName, cc) && !slices.ContainsFunc(Controls, func(c Control) bool {
		return c.InsteadOf == cc && slices.Contains(arms, c.CC) && !slices.Contains(byName, c.CC) && !slices.Contains(retired, c.CC)
	})
}

// IsOurs reports whether cc has the name of one of tcpilot's own, be there such a
// one or not.
func IsOurs(cc tcp.CC) bool { return strings.HasPrefix(cc.String(), Ours) }

// Wanted lists the congestion controls that rules name, so that they can be
// looked for.
func Wanted(rules []Rule) []tcp.CC {
	var out []tcp.CC
	for i := range rules {
		out = append(out, rules[i].CCs()...)
	}
	return unique(out)
}

// CCs lists the congestion controls that the rule names.
func (r *Rule) CCs() []tcp.CC {
	var out []tcp.CC
	if r.CC != (tcp.CC{}) {
		out = append(out, r.CC)
	}
	if r.Learn != nil {
		out = append(out, r.Learn.Arms...)
	}
	return out
}

func unique(ccs []tcp.CC) (out []tcp.CC) {
	for _, cc := range ccs {
		if !slices.Contains(out, cc) {
			out = append(out, cc)
		}
	}
	return out
}
