package engine

import (
	"time"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/path"
)

// Explanation is what a connection would get, as the engine sees it.
type Explanation struct {
	Rule *RuleState // nil: no rule matches
	// Entry is the longest matching row of the policy table, and what is known of
	// that prefix; nil when nothing is written for the class. A root has no more
	// than its rule.
	Entry  *PathState
	IsRoot bool
}

// Explain classifies a connection the way the datapath does, and finds the row
// that it would use. scope is the cookie of its network namespace.
func (e *Engine) Explain(c *class.Conn, now time.Time) Explanation {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out Explanation
	if e.table == nil {
		return out
	}
	i := e.table.Classify(c)
	if i < 0 {
		return out
	}
	rs := e.byRule[i]
	rule := e.viewRule(rs)
	out.Rule = &rule
	if rs.rule.Leave {
		return out
	}
	scope := uint64(0)
	if rs.rule.Learn != nil && rs.rule.Learn.OwnScope {
		scope = c.NetNS
	}
	n := e.longest(rs, scope, c)
	if n == nil {
		return out
	}
	out.Entry, out.IsRoot = e.viewPath(n, now), n.parent == nil
	return out
}

// longest finds the most specific node with a row in the kernel.
func (e *Engine) longest(rs *ruleState, scope uint64, c *class.Conn) *node {
	addr := c.Remote.Unmap()
	for _, k := range []path.Key{
		path.Of(rs.class, scope, addr, addr.BitLen()),
		path.Of(rs.class, scope, addr, e.opt.Bits(addr)),
		path.Root(rs.class, scope),
	} {
		if n := e.nodes[k]; n != nil && n.id != 0 {
			return n
		}
	}
	if rs.root != nil && rs.root.id != 0 {
		return rs.root
	}
	return nil
}

// Classify returns the class that the rules put a connection in, 0 if none.
func (e *Engine) Classify(c *class.Conn) uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.table == nil {
		return 0
	}
	i := e.table.Classify(c)
	if i < 0 {
		return 0
	}
	return e.byRule[i].class
}
