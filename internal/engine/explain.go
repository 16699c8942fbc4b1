package engine

import (
	"time"

	"github.com/tcpilot/tcpilot/internal/class"
)

// Explanation is what a connection would get, as the engine sees it.
type Explanation struct {
	Rule *RuleState // nil: no rule matches
	// Entry is the longest matching row of the policy table, and what is known of that
	// prefix; nil if nothing is written for the class. Its Set includes what is yielded.
	Entry  *PathState
	IsRoot bool
	// Network is the type of network of the connection's path; nil if the rule does not learn.
	Network *NetworkType
}

// Explain classifies a connection as the datapath does, and finds the row that it would
// use.
func (e *Engine) Explain(c *class.Conn, now time.Time) Explanation {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out Explanation
	rs := e.rules.classify(c)
	if rs == nil {
		return out
	}
	rule := e.viewRule(rs, now)
	out.Rule = &rule
	if rs.rule.Leave {
		return out
	}
	scope := uint64(0)
	if rs.rule.Learn != nil && rs.rule.Learn.OwnScope {
		scope = c.NetNS
	}
	if rs.rule.Learn != nil {
		out.Network = e.networkType(rs, scope, c.Remote)
	}
	n := e.longest(rs, scope, c)
	if n == nil {
		return out
	}
	v := viewer{e: e, now: now, settings: map[*ruleState][]Setting{}, ofConnection: true}
	out.Entry, out.IsRoot = new(PathState), n.isRoot()
	v.path(out.Entry, n)
	out.Entry.Kernel = v.leftToKernel(n, e.nearest(rs, scope, c, n))
	return out
}

// nearest is the most specific node of a connection, also without a row in the kernel; n if there is
// none.
func (e *Engine) nearest(rs *ruleState, scope uint64, c *class.Conn, n *node) *node {
	for _, bits := range []int{hostBits, e.opt.Bits(c.Remote)} {
		if found := e.nodes[keyOf(rs.class, scope, c.Remote, bits)]; found != nil {
			return found
		}
	}
	return n
}

// longest finds the most specific node with a row in the kernel.
func (e *Engine) longest(rs *ruleState, scope uint64, c *class.Conn) *node {
	for _, k := range []key{
		keyOf(rs.class, scope, c.Remote, hostBits),
		keyOf(rs.class, scope, c.Remote, e.opt.Bits(c.Remote)),
		rootKey(rs.class, scope),
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

// Classify returns the class of a connection; 0 if no rule matches.
func (e *Engine) Classify(c *class.Conn) uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if rs := e.rules.classify(c); rs != nil {
		return rs.class
	}
	return 0
}
