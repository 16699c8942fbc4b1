package engine

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/guard"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// PathID names a path in terms that outlive the process: its rule, not its class.
type PathID struct {
	Rule   string       `json:"rule"`
	Scope  uint64       `json:"scope,omitempty"` // network namespace cookie; 0 is shared
	Prefix netip.Prefix `json:"prefix"`
}

// StoredPath is what is kept of a path across restarts.
type StoredPath struct {
	PathID
	Objective     string               `json:"objective"`
	Learner       string               `json:"learner"`
	Belief        learn.Belief         `json:"belief"`
	Samples       uint64               `json:"samples"`
	LastUsed      int64                `json:"last_used_ns"`  // Unix ns
	ECN           bool                 `json:"ecn,omitempty"` // the path marks
	Marks         *storedMarks         `json:"marks,omitempty"`
	Host          netip.Addr           `json:"host,omitzero"`
	Hosts         bool                 `json:"hosts,omitempty"`
	Compared      *learn.Comparison    `json:"compared,omitempty"`
	SliceTest     *learn.SliceTest     `json:"slice_test,omitempty"`
	Failures      *learn.Failures      `json:"failures,omitempty"`
	LeftToDefault *StoredLeftToDefault `json:"left_to_default,omitempty"`
	Switching     *StoredSwitching     `json:"switching,omitempty"`
	Retired       guard.Retirements    `json:"retired,omitempty"`
	// Default and Treatment are what Compared, SliceTest, Failures, LeftToDefault and Switching are about: the default, and
	// what the rule gave (policy.Rule.Treatment; of a rule as a whole, its Fingerprint and rollout).
	Default   tcp.CC `json:"default,omitzero"`
	Treatment string `json:"treatment,omitempty"`
	// RolledBack is stored of the root of a rule whose rollout a guard took back.
	RolledBack *StoredRollBack `json:"rolled_back,omitempty"`
	Metrics    estimate.Path   `json:"metrics"`
	// First is stored if an initial window was raised on the path.
	First *policy.FirstWindows `json:"first_windows,omitempty"`
}

func (n *node) place() PathID {
	k := n.key.path()
	return PathID{Rule: n.rule.rule.Name, Scope: k.Scope, Prefix: k.Prefix}
}

func (e *Engine) stored(n *node) StoredPath {
	m := StoredPath{
		PathID: n.place(), Learner: e.opt.Learner.Name(),
		Belief: n.belief.Clone(), Samples: n.samples, LastUsed: n.lastUsed, ECN: n.marks.proven, Marks: n.marks.stored(), Host: n.host, Hosts: n.hosts,
		LeftToDefault: n.left, Switching: n.running.stored(), Retired: slices.Clone(n.retired), Metrics: n.metrics.Clone(),
	}
	if n.compared != nil {
		compared := *n.compared
		m.Compared = &compared
	}
	if n.slices != nil {
		test := *n.slices
		m.SliceTest = &test
	}
	if n.failures != nil {
		failures := *n.failures
		m.Failures = &failures
	}
	if n.first != nil {
		first := *n.first
		m.First = &first
	}
	if n.comparisons != (comparisons{}) {
		m.Default, m.Treatment = e.baseline.now, e.subject(n)
	}
	if n == n.rule.root {
		m.RolledBack = e.rollouts.stored(n.rule.rule.Name)
	}
	if l := n.rule.rule.Learn; l != nil {
		m.Objective = l.Objective.String()
	}
	return m
}

// Unsaved returns at most limit beliefs that changed, and the paths to delete from the
// store; more says that there are more changes. A path may be in both lists, if it was
// dropped and created again, and twice among the beliefs, if its rule was gone for a moment: the
// later one is in force. The caller reports the result by Saved before it calls Unsaved again.
func (e *Engine) Unsaved(limit int) (changed []StoredPath, forgotten []PathID, more bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	nodes, forgotten, more := e.saves.take(limit)
	changed = append(changed, e.saves.leaving...)
	for _, n := range nodes {
		changed = append(changed, e.stored(n))
	}
	return changed, forgotten, more
}

// Saved notes the result of storing what Unsaved returned.
func (e *Engine) Saved(at time.Time, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.totals.StoreErrors++
		e.saves.putBack()
		return
	}
	e.saves.confirm()
	e.totals.LastSaved = at
}

// storedOf returns what is stored of rules.
func (e *Engine) storedOf(rules map[string]bool) (paths []StoredPath) {
	if e.load == nil || len(rules) == 0 {
		return nil
	}
	err := e.load(func(m StoredPath) bool {
		if rules[m.Rule] {
			paths = append(paths, m)
		}
		return rules[m.Rule]
	})
	if err != nil {
		e.log.Error("rules begin without what was learned for them before", "rules", slices.Sorted(maps.Keys(rules)), "error", err)
	}
	return paths
}

// restore takes over what is stored of a path. It reports whether it did: not if the rule is
// gone, or has another objective, scope or learner now. A rollout that a guard took back is restored
// for every rule that was not edited.
func (e *Engine) restore(m StoredPath) bool {
	rs := e.rules.named(m.Rule)
	if rs == nil {
		e.absent.keep(m)
		return false
	}
	return e.restoreRule(rs, m)
}

// restoreRule is restore for a rule that is in force, or will be.
func (e *Engine) restoreRule(rs *ruleState, m StoredPath) bool {
	taken := e.rollouts.restore(rs, m.RolledBack)
	switch l := rs.rule.Learn; {
	case l == nil: // there are only the comparisons of the rule as a whole
		return rs.root != nil && m.Prefix.Bits() == 0 && e.restoreOfRule(rs.root, &m) || taken
	case l.Objective.String() != m.Objective || e.opt.Learner.Name() != m.Learner:
		return false
	case l.OwnScope && m.Scope == 0: // of all namespaces together there is no belief
		return m.Prefix.Bits() == 0 && e.restoreOfRule(rs.root, &m)
	case l.OwnScope != (m.Scope != 0):
		return false
	}
	n := e.restoreNode(rs, m.PathID)
	if n == nil {
		return false
	}
	n.belief, n.samples, n.lastUsed = m.Belief.Clone(), m.Samples, m.LastUsed
	n.host, n.hosts = m.Host, n.hosts || m.Hosts
	if m.ECN {
		n.marks = m.Marks.restored(m.LastUsed)
	}
	n.retired, n.metrics = m.Retired, m.Metrics
	if n.raisesWindows() {
		n.first = m.First
	}
	e.restoreComparisons(n, &m)
	n.stored = true
	return true
}

func (m *StoredPath) comparisons() comparisons {
	return comparisons{compared: m.Compared, slices: m.SliceTest, failures: m.Failures, left: m.LeftToDefault, running: m.Switching.restored()}
}

// restoreOfRule restores what is stored of a rule as a whole, of which there is no belief.
func (e *Engine) restoreOfRule(root *node, m *StoredPath) bool {
	root.stored = true
	return e.restoreComparisons(root, m)
}

// restoreComparisons restores the stored comparisons of n, if there are any, and if they are with
// the present default and about what the rule gives now. It reports whether it did.
func (e *Engine) restoreComparisons(n *node, m *StoredPath) bool {
	c := m.comparisons()
	if c == (comparisons{}) || m.Default != e.baseline.now || m.Treatment != e.subject(n) {
		return false
	}
	n.comparisons = c
	return true
}

// restoreNode returns the node of a stored prefix; nil if the configuration now asks for
// another prefix length.
func (e *Engine) restoreNode(rs *ruleState, p PathID) *node {
	if !p.Prefix.IsValid() {
		return nil
	}
	addr, bits := p.Prefix.Addr(), p.Prefix.Bits()
	if bits == 0 {
		return e.root(rs, p.Scope)
	}
	want := e.opt.Bits(addr)
	switch {
	case bits == want:
		return e.node(rs, p.Scope, addr, true)
	case bits == addr.BitLen() && want < bits:
		parent := e.node(rs, p.Scope, addr, true)
		parent.hosts = true
		k := keyOf(rs.class, p.Scope, addr, bits)
		if n := e.nodes[k]; n != nil {
			return n
		}
		return e.newNode(k, rs, parent)
	}
	return nil
}
