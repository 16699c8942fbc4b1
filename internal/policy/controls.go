package policy

import (
	"slices"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Auto reports whether arms: auto means cc: unless only a rule that names it has it, or
// one of tcpilot's own stands in for it, which is among arms, meant itself, and not
// retired.
func Auto(cc tcp.CC, arms, byName, retired []tcp.CC) bool {
	return !slices.Contains(byName, cc) && !slices.ContainsFunc(congestion.Own(), func(c congestion.Control) bool {
		return c.InsteadOf == cc && slices.Contains(arms, c.CC) && !slices.Contains(byName, c.CC) && !slices.Contains(retired, c.CC)
	})
}

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
