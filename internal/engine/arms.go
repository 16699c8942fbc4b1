package engine

import (
	"bytes"
	"maps"
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
	case n.marks.proven && n.inside():
		return o.marked
	case n.marks.proven:
		return o.answering
	}
	return o.plain
}

// States of an arm.
const (
	ArmActive    = "active"
	ArmRetired   = "retired"
	ArmMissing   = "missing"
	armAvailable = "available"
)

// Arms says which congestion controls connections may get, and why not the others.
type Arms struct {
	Active  []tcp.CC          `json:"active"`
	Retired map[tcp.CC]string `json:"retired"` // refused by the kernel on a connection, with the reason
	Missing map[tcp.CC]string `json:"missing"` // wanted, or offered before, with the reason
	// Only in the answer of doctor: those that the kernel accepts once they are loaded.
	Available []tcp.CC `json:"available,omitempty"`
	// How often the kernel refused each on a connection.
	Failures map[tcp.CC]uint64 `json:"failures,omitempty"`
}

// All lists them by name.
func (a *Arms) All() []tcp.CC {
	list := slices.Concat(a.Active, a.Available)
	list = slices.AppendSeq(list, maps.Keys(a.Retired))
	list = slices.AppendSeq(list, maps.Keys(a.Missing))
	slices.SortFunc(list, func(a, b tcp.CC) int { return bytes.Compare(a[:], b[:]) })
	return slices.Compact(list)
}

// State returns the state of cc, and the reason if it is retired or missing.
func (a *Arms) State(cc tcp.CC) (state, why string) {
	if why, ok := a.Missing[cc]; ok {
		return ArmMissing, why
	}
	if why, ok := a.Retired[cc]; ok {
		return ArmRetired, why
	}
	if slices.Contains(a.Active, cc) {
		return ArmActive, ""
	}
	return armAvailable, ""
}

// armStates are the congestion controls that connections may get, and whether they can.
type armStates struct {
	offered  offers
	retired  []tcp.CC          // refused by the kernel. It is replaced and not changed: decisions hold it
	missing  map[tcp.CC]string // and why
	failures map[tcp.CC]uint64 // by the kernel's count
}

const (
	whyRetired    = "the kernel refused it on a connection"
	whyNotOffered = "the kernel does not offer it"
)

func newArmStates() armStates {
	return armStates{missing: map[tcp.CC]string{}, failures: map[tcp.CC]uint64{}}
}

// offer sets what the kernel offers, and makes retired arms active again; false: it is the same
// as before.
func (as *armStates) offer(o offers) bool {
	if as.offered.list != nil && as.offered.def == o.def && reflect.DeepEqual(as.offered.list, o.list) {
		return false
	}
	for _, cc := range slices.AppendSeq(slices.Clone(as.offered.all), maps.Keys(as.failures)) {
		if as.missing[cc] == "" {
			as.missing[cc] = whyNotOffered
		}
	}
	for _, cc := range o.all {
		delete(as.missing, cc)
	}
	as.offered, as.retired = o, nil
	return true
}

// failed notes how often the kernel has refused cc since the maps were created, and reports whether
// that retires it.
func (as *armStates) failed(cc tcp.CC, failures uint64) bool {
	again := failures > as.failures[cc]
	as.failures[cc] = failures
	if !again || slices.Contains(as.retired, cc) {
		return false
	}
	delete(as.missing, cc)
	as.retired = append(slices.Clone(as.retired), cc)
	return true
}

// revive makes arms active again that the kernel refused, and returns those that it did.
func (as *armStates) revive(ccs ...tcp.CC) (revived []tcp.CC) {
	var left []tcp.CC
	for _, cc := range as.retired {
		if slices.Contains(ccs, cc) {
			revived = append(revived, cc)
		} else {
			left = append(left, cc)
		}
	}
	as.retired = left
	return revived
}

// view is a copy for readers.
func (as *armStates) view() Arms {
	a := Arms{Active: []tcp.CC{}, Retired: map[tcp.CC]string{}, Missing: maps.Clone(as.missing), Failures: maps.Clone(as.failures)}
	for _, cc := range as.retired {
		a.Retired[cc] = whyRetired
	}
	for _, cc := range as.offered.all {
		if _, missing := as.missing[cc]; !missing && !slices.Contains(as.retired, cc) {
			a.Active = append(a.Active, cc)
		}
	}
	slices.SortFunc(a.Active, func(a, b tcp.CC) int { return bytes.Compare(a[:], b[:]) })
	return a
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
	if e.arms.missing[cc] == why {
		return
	}
	e.arms.missing[cc] = why
	e.log.Warn("congestion control that the configuration wants is missing", "cc", cc, "error", why)
}

// ArmFailedBefore records failures of cc from before a restart: they are counted, but
// do not retire the arm.
func (e *Engine) ArmFailedBefore(cc tcp.CC, failures uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.arms.failures[cc] = failures
}

// ArmFailed records that the kernel has refused cc failures times since the maps
// were created. A new refusal retires the arm: connections no longer get it. The
// refused connections were not scored for it.
func (e *Engine) ArmFailed(cc tcp.CC, failures uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.arms.failed(cc, failures) {
		e.log.Warn("arm retired", "cc", cc, "failures", failures, "reason", policy.ArmRetired, "why", whyRetired)
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
