package engine

import (
	"reflect"
	"slices"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// offers lists the congestion controls that paths choose from, the preferred first.
type offers struct {
	list      []congestion.Control
	all       []tcp.CC
	marked    []tcp.CC // for paths with proof of ECN inside a data centre
	answering []tcp.CC // for other paths that mark: those that answer marks
	plain     []tcp.CC // for others
	byName    []tcp.CC // those in all that arms: auto excludes
	auto      []tcp.CC // those in plain that arms: auto includes
	def       tcp.CC   // the host's default, zero if it is not known
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
			o.answering = append(o.answering, a.CC)
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
	ArmActive  = "active"
	ArmRetired = "retired"
	ArmMissing = "missing"
)

// SetOffered sets the list of congestion controls that connections may get, in any
// order, and the host's default; zero: not known. When the list changes, retired arms
// become active again.
func (e *Engine) SetOffered(list []congestion.Control, def tcp.CC) {
	o := newOffers(list, def)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.offered.list != nil && e.offered.def == def && reflect.DeepEqual(e.offered.list, o.list) {
		return
	}
	e.offered = o
	e.setDefault(def)
	for _, a := range e.arms {
		if !slices.Contains(o.all, a.CC) && (a.State != ArmMissing || a.Why == "") {
			a.State, a.Why = ArmMissing, "the kernel does not offer it"
		}
	}
	for _, cc := range o.all {
		a := e.arm(cc)
		a.State, a.Why = ArmActive, ""
	}
	e.retired = nil
	e.markAll()
}

// ArmMissing records that a congestion control that the configuration wants is not
// available.
func (e *Engine) ArmMissing(cc tcp.CC, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.arm(cc)
	if a.State == ArmMissing && a.Why == why {
		return
	}
	a.State, a.Why = ArmMissing, why
	e.log.Warn("congestion control that the configuration wants is missing", "cc", cc, "error", why)
}

// ArmFailedBefore records failures of cc from before a restart: they are counted, but
// do not retire the arm.
func (e *Engine) ArmFailedBefore(cc tcp.CC, failures uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.arm(cc).Failures = failures
}

// ArmFailed records that the kernel has refused cc failures times since the maps
// were created. A new refusal retires the arm: connections no longer get it. The
// refused connections were not scored for it.
func (e *Engine) ArmFailed(cc tcp.CC, failures uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.arm(cc)
	if failures <= a.Failures {
		a.Failures = failures
		return
	}
	a.Failures = failures
	if a.State == ArmRetired {
		return
	}
	a.State, a.Why = ArmRetired, "the kernel refused it on a connection"
	e.retired = append(slices.Clone(e.retired), cc)
	e.log.Warn("arm retired", "cc", cc, "failures", failures, "reason", policy.ArmRetired, "why", a.Why)
	e.markAll()
}

// ReviveArms makes retired arms active again: the cause may be gone, for example
// because the process that had loaded one was restarted.
func (e *Engine) ReviveArms() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.retired) == 0 {
		return
	}
	for _, cc := range e.retired {
		if a := e.arm(cc); a.State == ArmRetired {
			a.State, a.Why = ArmActive, ""
			e.log.Info("arm is active again", "cc", cc)
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

// armsFor returns the congestion controls that suit a path: without those that need
// ECN, until ECN is proved on the path, and without those that ignore marks, if the
// path marks.
func (e *Engine) armsFor(n *node) []tcp.CC {
	switch {
	case n.ecn && n.inside():
		return e.offered.marked
	case n.ecn:
		return e.offered.answering
	}
	return e.offered.plain
}
