package engine

import (
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// needsECN lists the congestion controls that do harm without ECN marks on the
// path: they then answer loss like Reno (RFC 8257, 3.5 for DCTCP; RFC 9331 for
// Prague).
var needsECN = []string{"dctcp", "prague", "bpf_dctcp", "tcpilot_dctcp", "tcpilot_prague"}

// SetOffered says which congestion controls the kernel has now. One that was
// retired gets another chance when the list changes.
func (e *Engine) SetOffered(ccs []tcp.CC) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.offered != nil && slices.Equal(e.offered, ccs) {
		return
	}
	e.offered = slices.Clone(ccs)
	for _, a := range e.arms {
		if a.State != "active" || !slices.Contains(ccs, a.CC) {
			a.State, a.Reason = "missing", "the kernel does not offer it"
		}
	}
	for _, cc := range ccs {
		a := e.arm(cc)
		a.State, a.Reason = "active", ""
	}
	e.retired = e.retired[:0]
	e.markAll()
}

// Wanted lists the congestion controls that rules name, so that they can be
// looked for.
func (e *Engine) Wanted() []tcp.CC {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []tcp.CC
	add := func(cc tcp.CC) {
		if cc != (tcp.CC{}) && !slices.Contains(out, cc) {
			out = append(out, cc)
		}
	}
	for i := range e.rules {
		add(e.rules[i].CC)
		if l := e.rules[i].Learn; l != nil {
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
	if a.State == "missing" && a.Reason == why {
		return
	}
	a.State, a.Reason = "missing", why
	e.log.Warn("congestion control that a rule names is missing", "cc", cc, "error", why)
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
	if a.State == "retired" {
		return
	}
	a.State, a.Reason = "retired", "the kernel refused it on a connection"
	e.retired = append(e.retired, cc)
	e.log.Warn("arm retired", "cc", cc, "failures", failures, "reason", a.Reason)
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
	if n.ecn || !slices.ContainsFunc(e.offered, isECNOnly) {
		return e.offered
	}
	return slices.DeleteFunc(slices.Clone(e.offered), isECNOnly)
}

func isECNOnly(cc tcp.CC) bool { return slices.Contains(needsECN, cc.String()) }

// SetYield takes a field out of our hands, since the administrator set the
// sysctl that gives the kernel's default for it. field is a tcp.Field, or
// nothing for the congestion control.
func (e *Engine) SetYield(y Yield, field tcp.Field, cc bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.yields[y.Sysctl]; !ok {
		e.log.Warn("yielding to the administrator", "field", y.Field, "sysctl", y.Sysctl,
			"before", y.Before, "after", y.After, "reason", policy.YieldedSysctl)
	}
	e.yields[y.Sysctl] = y
	if cc {
		e.yieldCC = true
	} else {
		e.yieldFs |= 1 << field
	}
	e.markAll()
}

// ClearYields takes everything back into our hands: the operator asked for it by
// a reload.
func (e *Engine) ClearYields() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.yields) == 0 {
		return
	}
	clear(e.yields)
	e.yieldCC, e.yieldFs = false, 0
	e.markAll()
}

// Yields reports what is not ours: the congestion control, and fields by bit.
func (e *Engine) Yields() (cc bool, fields uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.yieldCC, e.yieldFs
}

func (e *Engine) markAll() {
	for _, n := range e.nodes {
		e.mark(n)
	}
}

// Saved notes the outcome of writing beliefs to the store.
func (e *Engine) Saved(at time.Time, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.totals.StoreErrors++
		return
	}
	e.totals.LastSaved = at
}
