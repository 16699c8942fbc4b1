package engine

import (
	"cmp"
	"maps"
	"slices"

	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Default is what a sysctl sets the default of: a field, or the congestion control.
type Default struct {
	Field tcp.Field
	CC    bool
}

// String is the key in the configuration.
func (d Default) String() string {
	if d.CC {
		return "cc"
	}
	return d.Field.String()
}

// yields are the defaults of the kernel that an administrator has changed since rules were loaded.
type yields struct {
	bySysctl map[string]Yield
	cc       bool   // the congestion control
	fields   uint64 // 1<<f for each field
}

// add adds a yield, and reports whether it is new.
func (ys *yields) add(y Yield, d Default) bool {
	if was, ok := ys.bySysctl[y.Sysctl]; ok {
		was.After = y.After
		ys.bySysctl[y.Sysctl] = was
		return false
	}
	ys.bySysctl[y.Sysctl] = y
	if d.CC {
		ys.cc = true
	} else {
		ys.fields |= 1 << d.Field
	}
	return true
}

// list returns them in the order of their sysctls' names.
func (ys *yields) list() []Yield {
	list := slices.AppendSeq(make([]Yield, 0, len(ys.bySysctl)), maps.Values(ys.bySysctl))
	slices.SortFunc(list, func(a, b Yield) int { return cmp.Compare(a.Sysctl, b.Sysctl) })
	return list
}

// SetYield stops setting a field, or the congestion control, because the administrator
// changed the sysctl that is the kernel's default for it. That lasts until ClearYields,
// whatever the sysctl is set to later. It does nothing if no rule sets, adapts or learns d. It fills
// in y.Field. Policies do not change, because other network namespaces use them as well:
// the caller writes the mask of Yields to the datapath. It reports whether the yield is new.
func (e *Engine) SetYield(y Yield, d Default) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.gives(d) {
		return false
	}
	y.Field = d.String()
	if !e.yields.add(y, d) {
		return false
	}
	e.log.Warn("yielding to the administrator", "field", y.Field, "sysctl", y.Sysctl,
		"before", y.Before, "after", y.After, "reason", policy.YieldedSysctl)
	return true
}

// gives reports whether some rule sets, adapts or learns d.
func (e *Engine) gives(d Default) bool {
	for i := range e.rules.list {
		r := &e.rules.list[i]
		if d.CC && (r.CC != (tcp.CC{}) || r.Learn != nil) || !d.CC && (r.Set.Mask()&(1<<d.Field) != 0 || r.Adapts(d.Field)) {
			return true
		}
	}
	return false
}

// ClearYields ends all yields: the operator asked for it by a reload.
func (e *Engine) ClearYields() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.yields.bySysctl) == 0 {
		return
	}
	e.yields = yields{bySysctl: map[string]Yield{}}
	e.log.Info("all settings are managed by tcpilot again: the rules were reloaded")
}

// Yields returns what is yielded in the daemon's own network namespace: the congestion
// control, and fields by bit.
func (e *Engine) Yields() (cc bool, fields uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.yields.cc, e.yields.fields
}
