package engine

import (
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

// SetYield stops setting a field, or the congestion control, because the administrator
// changed the sysctl that is the kernel's default for it. That lasts until ClearYields,
// whatever the sysctl is set to later. It does nothing if no rule sets or learns d. It fills
// in y.Field. Policies do not change, because other network namespaces use them as well:
// the caller writes the mask of Yields to the datapath. It reports whether the yield is new.
func (e *Engine) SetYield(y Yield, d Default) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.gives(d) {
		return false
	}
	y.Field = d.String()
	if was, ok := e.yields[y.Sysctl]; ok {
		was.After = y.After
		e.yields[y.Sysctl] = was
		return false
	}
	e.yields[y.Sysctl] = y
	if d.CC {
		e.yieldCC = true
	} else {
		e.yieldFs |= 1 << d.Field
	}
	e.log.Warn("yielding to the administrator", "field", y.Field, "sysctl", y.Sysctl,
		"before", y.Before, "after", y.After, "reason", policy.YieldedSysctl)
	return true
}

// gives reports whether some rule sets or learns d.
func (e *Engine) gives(d Default) bool {
	for i := range e.rules {
		r := &e.rules[i]
		if d.CC && (r.CC != (tcp.CC{}) || r.Learn != nil) || !d.CC && r.Set.Mask()&(1<<d.Field) != 0 {
			return true
		}
	}
	return false
}

// ClearYields ends all yields: the operator asked for it by a reload.
func (e *Engine) ClearYields() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.yields) == 0 {
		return
	}
	clear(e.yields)
	e.yieldCC, e.yieldFs = false, 0
	e.log.Info("all settings are managed by tcpilot again: the rules were reloaded")
}

// Yields returns what is yielded in the daemon's own network namespace: the congestion
// control, and fields by bit.
func (e *Engine) Yields() (cc bool, fields uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.yieldCC, e.yieldFs
}
