package engine

import (
	"slices"

	"github.com/tcpilot/tcpilot/internal/guard"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Forget drops what is known of a congestion control, since another one has come
// under its name: what paths believe of it, what guards have against it, and that the
// kernel refused it. Connections that began with the one before may still report, and
// count for the new one. The kernel's own count of refusals goes on, and ours with it:
// only a new one retires the arm again.
func (e *Engine) Forget(cc tcp.CC) {
	e.mu.Lock()
	defer e.mu.Unlock()
	forget := func(n *node) {
		if n.forget(cc) {
			e.moved(n, tcp.CC{})
		}
	}
	for _, rs := range e.byRule {
		if rs.root != nil {
			forget(rs.root)
		}
	}
	e.byUse.each(forget)
	if a := e.arms[cc]; a != nil && a.State == armRetired {
		a.State, a.Reason = armActive, ""
	}
	e.retired = slices.DeleteFunc(slices.Clone(e.retired), func(r tcp.CC) bool { return r == cc })
	e.log.Info("what was known of a congestion control is forgotten", "cc", cc)
	e.markAll()
}

// forget reports whether there was something that the store may have.
func (n *node) forget(cc tcp.CC) bool {
	arms, bans := len(n.belief.Arms), len(n.bans)
	n.belief.Arms = slices.DeleteFunc(n.belief.Arms, func(a learn.ArmBelief) bool { return a.CC == cc })
	n.bans = slices.DeleteFunc(n.bans, func(b guard.Ban) bool { return b.CC == cc })
	if n.guard != nil {
		n.guard.Forget(cc)
	}
	return len(n.belief.Arms) != arms || len(n.bans) != bans
}
