package engine

import (
	"net/netip"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/path"
)

// Memory is what is kept of a path across restarts. It names the rule, not the
// class: class ids are the process's own.
type Memory struct {
	Rule      string       `json:"rule"`
	Prefix    netip.Prefix `json:"prefix"`
	Objective string       `json:"objective"`
	Learner   string       `json:"learner"`
	Belief    learn.Belief `json:"belief"`
	Samples   uint64       `json:"samples"`
	LastUsed  int64        `json:"last_used"` // Unix ns
	ECN       bool         `json:"ecn,omitempty"`
	Host      netip.Addr   `json:"host,omitzero"`
	Hosts     bool         `json:"hosts,omitempty"`
}

func (e *Engine) memory(n *node) Memory {
	m := Memory{
		Rule: n.rule.rule.Name, Prefix: n.key.Prefix, Learner: e.opt.Learner.Name(),
		Belief: n.belief, Samples: n.samples, LastUsed: n.lastUsed, ECN: n.ecn, Host: n.host, Hosts: n.hosts,
	}
	if l := n.rule.rule.Learn; l != nil {
		m.Objective = l.Objective.String()
	}
	return m
}

// Unsaved returns the beliefs that changed, and the paths that were forgotten,
// since the last call. Paths of a network namespace's own scope are left out:
// the namespace's cookie means nothing after a restart of the machine. max
// bounds the changed ones; more says that there are others.
func (e *Engine) Unsaved(limit int) (changed, forgotten []Memory, more bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for k := range e.unsaved {
		if len(changed) == limit {
			return changed, nil, true
		}
		delete(e.unsaved, k)
		if n := e.nodes[k]; n != nil && k.Scope == 0 {
			m := e.memory(n)
			m.Belief.Arms = append([]learn.ArmBelief(nil), m.Belief.Arms...)
			changed = append(changed, m)
		}
	}
	forgotten, e.dropped = e.dropped, nil
	return changed, forgotten, false
}

// Remember takes back what was kept of a path. It reports whether a rule wants
// it: one whose rule is gone, or learns for another objective or with another
// learner, is not.
func (e *Engine) Remember(m Memory) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, rs := range e.byRule {
		l := rs.rule.Learn
		if rs.rule.Name != m.Rule || l == nil || l.OwnScope ||
			l.Objective.String() != m.Objective || e.opt.Learner.Name() != m.Learner {
			continue
		}
		n := e.rememberNode(rs, m.Prefix)
		if n == nil {
			return false
		}
		n.belief, n.samples, n.lastUsed = m.Belief, m.Samples, m.LastUsed
		n.ecn, n.host, n.hosts = m.ECN, m.Host, m.Hosts
		e.mark(n)
		return true
	}
	return false
}

// rememberNode returns the node of a kept prefix; nil where the configuration
// asks for another granularity by now.
func (e *Engine) rememberNode(rs *ruleState, p netip.Prefix) *node {
	if !p.IsValid() {
		return nil
	}
	root := path.Root(rs.class, 0)
	if p == root.Prefix {
		return rs.root
	}
	bits := e.opt.Bits(p.Addr())
	switch {
	case p.Bits() == bits:
		return e.node(rs, 0, p.Addr())
	case p.Bits() == p.Addr().BitLen() && bits < p.Bits():
		parent := e.node(rs, 0, p.Addr())
		parent.hosts = true
		k := path.Key{Class: rs.class, Prefix: p}
		if n := e.nodes[k]; n != nil {
			return n
		}
		n := e.newNode(k, rs, parent)
		e.evict()
		return n
	}
	return nil
}
