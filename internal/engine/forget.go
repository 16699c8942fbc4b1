package engine

import (
	"slices"

	"github.com/tcpilot/tcpilot/internal/guard"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Forget drops what is known of a congestion control, because another one was registered
// under its name: beliefs, that the arm was retired, and that no running connections get it. Connections that began with
// the former one may still report, and count for the new one. The kernel's counter of
// failures is not reset: only a new failure retires the arm again.
func (e *Engine) Forget(cc tcp.CC) {
	e.mu.Lock()
	defer e.mu.Unlock()
	forget := func(n *node) {
		if n.forget(cc) {
			e.beliefChanged(n, tcp.CC{})
		}
	}
	for _, rs := range e.rules.states {
		if rs.root != nil {
			forget(rs.root)
		}
	}
	e.cache.byUse.each(forget)
	e.arms.revive(cc)
	e.log.Info("beliefs about a congestion control dropped", "cc", cc)
	e.markAll()
}

// forget is Forget for one node. It reports whether anything changed that may be stored.
func (n *node) forget(cc tcp.CC) bool {
	arms, retired, running := len(n.belief.Arms), len(n.retired), n.running
	n.belief.Arms = slices.DeleteFunc(n.belief.Arms, func(a learn.ArmBelief) bool { return a.CC == cc })
	n.retired = slices.DeleteFunc(n.retired, func(r guard.Retirement) bool { return r.CC == cc })
	if n.guard != nil {
		n.guard.Forget(cc)
	}
	if running != nil && running.to == cc {
		n.running = nil
	}
	return len(n.belief.Arms) != arms || len(n.retired) != retired || n.running != running
}
