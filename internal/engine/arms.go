package engine

import (
	"slices"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// offers is what paths choose from, the preferred first.
type offers struct {
	list   []congestion.Control
	all    []tcp.CC
	marked []tcp.CC // for paths with proof of ECN inside a data centre
	heeds  []tcp.CC // for other paths that mark
	plain  []tcp.CC // for others
	byName []tcp.CC // of all, what arms: auto does not mean
	auto   []tcp.CC // of plain, what it does mean
	def    tcp.CC   // the host's default, zero if it is not known
}

func newOffers(list []congestion.Control, def tcp.CC) offers {
	o := offers{list: slices.Clone(list), def: def}
	slices.SortFunc(o.list, congestion.Compare)
	for _, a := range o.list {
		o.all = append(o.all, a.CC)
		if !a.IgnoresECN {
			o.marked = append(o.marked, a.CC)
		}
		if a.ByName {
			o.byName = append(o.byName, a.CC)
		}
		if a.NeedsECN {
			continue
		}
		o.plain = append(o.plain, a.CC)
		if !a.IgnoresECN {
			o.heeds = append(o.heeds, a.CC)
		}
	}
	for _, cc := range o.plain {
		if policy.Auto(cc, o.all, o.byName, nil) {
			o.auto = append(o.auto, cc)
		}
	}
	return o
}

// needsECN reports whether cc is only for paths with proof of ECN.
func (o *offers) needsECN(cc tcp.CC) bool {
	return slices.Contains(o.all, cc) && !slices.Contains(o.plain, cc)
}

// States of an arm.
const (
	armActive  = "active"
	armRetired = "retired"
	armMissing = "missing"
)

// SetOffered says which congestion controls connections may be given now, in any
// order, and which of them the host's connections have by default; zero: not known. One
// that was retired gets another chance when the list changes.
func (e *Engine) SetOffered(list []congestion.Control, def tcp.CC) {
	o := newOffers(list, def)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.offered.list != nil && e.offered.def == def && slices.Equal(e.offered.list, o.list) {
		return
	}
	e.offered = o
	for _, a := range e.arms {
		if !slices.Contains(o.all, a.CC) && (a.State != armMissing || a.Reason == "") {
			a.State, a.Reason = armMissing, "the kernel does not offer it"
		}
	}
	for _, cc := range o.all {
		a := e.arm(cc)
		a.State, a.Reason = armActive, ""
	}
	e.retired = nil
	e.markAll()
}

// ArmMissing notes that a congestion control that the configuration wants cannot be
// had.
func (e *Engine) ArmMissing(cc tcp.CC, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.arm(cc)
	if a.State == armMissing && a.Reason == why {
		return
	}
	a.State, a.Reason = armMissing, why
	e.log.Warn("congestion control that the configuration wants is missing", "cc", cc, "error", why)
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

// ReviveArms gives arms that the kernel refused another chance: why it did may be
// over, as when the process that had loaded one was restarted.
func (e *Engine) ReviveArms() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.retired) == 0 {
		return
	}
	for _, cc := range e.retired {
		if a := e.arm(cc); a.State == armRetired {
			a.State, a.Reason = armActive, ""
			e.log.Info("arm has another chance", "cc", cc)
		}
	}
	e.retired = nil
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

// armsFor leaves out what does not suit a path: congestion controls that need ECN,
// before it is proved there, and those that do not answer marks, where there are any.
func (e *Engine) armsFor(n *node) []tcp.CC {
	switch {
	case n.ecn && n.inside():
		return e.offered.marked
	case n.ecn:
		return e.offered.heeds
	}
	return e.offered.plain
}
