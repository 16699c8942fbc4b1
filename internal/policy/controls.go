package policy

import (
	"slices"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Auto reports whether "arms: auto" includes cc. It does not if cc is in byName, or if arms
// contain a replacement of tcpilot's own for cc that is itself included and not retired.
func Auto(cc tcp.CC, arms, byName, retired []tcp.CC) bool {
	return !slices.Contains(byName, cc) && !slices.ContainsFunc(congestion.Own(), func(c congestion.Control) bool {
		return c.InsteadOf == cc && slices.Contains(arms, c.CC) && !slices.Contains(byName, c.CC) && !slices.Contains(retired, c.CC)
	})
}

// Wanted lists the congestion controls that rules name, so that they can be looked up.
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
	if r.OnRTO != (OnRTO{}) {
		out = append(out, r.OnRTO.CC)
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
