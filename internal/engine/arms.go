package engine

import (
	"cmp"
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

// suit returns the congestion controls that suit a path: without those that need
// ECN, until ECN is proved on the path, and without those that ignore marks, if the
// path marks.
func (o *offers) suit(n *node) []tcp.CC {
	switch {
	case n.ecn && n.inside():
		return o.marked
	case n.ecn:
		return o.answering
	}
	return o.plain
}

// States of an arm.
const (
	ArmActive  = "active"
	ArmRetired = "retired"
	ArmMissing = "missing"
)

// armStates are the congestion controls that connections may get, and whether they can.
type armStates struct {
	offered offers
	states  map[tcp.CC]*ArmState
	retired []tcp.CC // refused by the kernel. It is replaced and not changed: decisions hold it
}

func (as *armStates) of(cc tcp.CC) *ArmState {
	a := as.states[cc]
	if a == nil {
		a = &ArmState{CC: cc}
		as.states[cc] = a
	}
	return a
}

// offer sets what the kernel offers, and makes retired arms active again; false: it is the same
// as before.
func (as *armStates) offer(o offers) bool {
	if as.offered.list != nil && as.offered.def == o.def && reflect.DeepEqual(as.offered.list, o.list) {
		return false
	}
	as.offered = o
	for _, a := range as.states {
		if !slices.Contains(o.all, a.CC) && (a.State != ArmMissing || a.Why == "") {
			a.State, a.Why = ArmMissing, "the kernel does not offer it"
		}
	}
	for _, cc := range o.all {
		a := as.of(cc)
		a.State, a.Why = ArmActive, ""
	}
	as.retired = nil
	return true
}

// failed notes how often the kernel has refused cc since the maps were created, and reports whether
// that retires it.
func (as *armStates) failed(cc tcp.CC, failures uint64) bool {
	a := as.of(cc)
	again := failures > a.Failures
	a.Failures = failures
	if !again || a.State == ArmRetired {
		return false
	}
	a.State, a.Why = ArmRetired, "the kernel refused it on a connection"
	as.retired = append(slices.Clone(as.retired), cc)
	return true
}

// revive makes arms active again that the kernel refused, and returns those that it did.
func (as *armStates) revive(ccs ...tcp.CC) (revived []tcp.CC) {
	for _, cc := range ccs {
		if a := as.states[cc]; a != nil && a.State == ArmRetired {
			a.State, a.Why = ArmActive, ""
			revived = append(revived, cc)
		}
	}
	as.retired = slices.DeleteFunc(slices.Clone(as.retired), func(cc tcp.CC) bool { return slices.Contains(ccs, cc) })
	return revived
}

// list returns them by name.
func (as *armStates) list() []ArmState {
	list := make([]ArmState, 0, len(as.states))
	for _, a := range as.states {
		list = append(list, *a)
	}
	slices.SortFunc(list, func(a, b ArmState) int { return cmp.Compare(a.CC.String(), b.CC.String()) })
	return list
}

// SetOffered sets the list of congestion controls that connections may get, in any
// order, and the host's default; zero: not known. When the list changes, retired arms
// become active again.
func (e *Engine) SetOffered(list []congestion.Control, def tcp.CC) {
	o := newOffers(list, def)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.arms.offer(o) {
		if e.baseline.set(def) {
			e.endComparisons(func(*node) bool { return true })
		}
		e.markAll()
	}
}

// ArmMissing records that a congestion control that the configuration wants is not
// available.
func (e *Engine) ArmMissing(cc tcp.CC, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.arms.of(cc)
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
	e.arms.of(cc).Failures = failures
}

// ArmFailed records that the kernel has refused cc failures times since the maps
// were created. A new refusal retires the arm: connections no longer get it. The
// refused connections were not scored for it.
func (e *Engine) ArmFailed(cc tcp.CC, failures uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.arms.failed(cc, failures) {
		e.log.Warn("arm retired", "cc", cc, "failures", failures, "reason", policy.ArmRetired, "why", e.arms.of(cc).Why)
		e.markAll()
	}
}

// ReviveArms makes retired arms active again: the cause may be gone, for example
// because the process that had loaded one was restarted.
func (e *Engine) ReviveArms() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.arms.retired) == 0 {
		return
	}
	for _, cc := range e.arms.revive(e.arms.retired...) {
		e.log.Info("arm is active again", "cc", cc)
	}
	e.markAll()
}
