package engine

import (
	"slices"

	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// needsECN lists the congestion controls that do harm without ECN marks on the
// path: they then answer loss like Reno (RFC 8257, 3.5 for DCTCP; RFC 9331 for
// Prague).
var needsECN = []string{"dctcp", "prague", "bpf_dctcp", "tcpilot_dctcp", "tcpilot_prague"}

func isECNOnly(cc tcp.CC) bool { return slices.Contains(needsECN, cc.String()) }

// States of an arm.
const (
	armActive  = "active"
	armRetired = "retired"
	armMissing = "missing"
)

// SetOffered says which congestion controls the kernel has now, in any order. One
// that was retired gets another chance when the list changes.
func (e *Engine) SetOffered(ccs []tcp.CC) {
	ccs = slices.Clone(ccs)
	slices.SortFunc(ccs, func(a, b tcp.CC) int { return slices.Compare(a[:], b[:]) })
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.offered != nil && slices.Equal(e.offered, ccs) {
		return
	}
	e.offered = ccs
	e.plain = slices.DeleteFunc(slices.Clone(ccs), isECNOnly)
	for _, a := range e.arms {
		if !slices.Contains(ccs, a.CC) && (a.State != armMissing || a.Reason == "") {
			a.State, a.Reason = armMissing, "the kernel does not offer it"
		}
	}
	for _, cc := range ccs {
		a := e.arm(cc)
		a.State, a.Reason = armActive, ""
	}
	e.retired = nil
	e.markAll()
}

// Wanted lists the congestion controls that rules name, so that they can be
// looked for.
func Wanted(rules []policy.Rule) []tcp.CC {
	var out []tcp.CC
	add := func(cc tcp.CC) {
		if cc != (tcp.CC{}) && !slices.Contains(out, cc) {
			out = append(out, cc)
		}
	}
	for i := range rules {
		add(rules[i].CC)
		if l := rules[i].Learn; l != nil {
			for _, cc := range l.Arms {
				add(cc)
			}
		}
	}
	return out
}

// ArmMissing notes that a congestion control that a rule names cannot be had.
func (e *Engine) ArmMissing(cc tcp.CC, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.arm(cc)
	if a.State == armMissing && a.Reason == why {
		return
	}
	a.State, a.Reason = armMissing, why
	e.log.Warn("congestion control that a rule names is missing", "cc", cc, "error", why)
}

// ArmFailedBefore notes failures of cc that an earlier process has seen: they are
// counted, and retire nothing.
func (e *Engine) ArmFailedBefore(cc tcp.CC, failures uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.arm(cc).Failures = failures
}

// ArmFailed notes that the kernel has refused cc failures times since the maps
// were made. A new refusal retires the arm: it is not offered to connections any
// more, and it was never scored for them.
func (e *Engine) ArmFailed(cc tcp.CC, failures uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.arm(cc)
	if failures <= a.Failures {
		a.Failures = failures
		return
	}
	a.Failures = failures
	if a.State == armRetired {
		return
	}
	a.State, a.Reason = armRetired, "the kernel refused it on a connection"
	e.retired = append(slices.Clone(e.retired), cc)
	e.log.Warn("arm retired", "cc", cc, "failures", failures, "reason", policy.ArmRetired, "why", a.Reason)
	e.markAll()
}

func (e *Engine) arm(cc tcp.CC) *ArmState {
	a := e.arms[cc]
	if a == nil {
		a = &ArmState{CC: cc}
		e.arms[cc] = a
	}
	return a
}

// armsFor leaves out what a path has not earned: congestion controls that need
// ECN, before a mark was seen on it.
func (e *Engine) armsFor(n *node) []tcp.CC {
	if n.ecn {
		return e.offered
	}
	return e.plain
}
