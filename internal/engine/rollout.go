package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Gradual rollout. In mode observe every connection is in the hold-out: tcpilot learns,
// decides and shows policies, but the kernel sets nothing. In mode tune a rule's rollout
// is the share of its connections that the rule applies to. A guard sets it to 0 if those
// connections are slower than the rest.

// Modes of the engine.
const (
	ModeTune    = "tune"
	ModeObserve = "observe"
)

// Who set a rule's rollout, if it was not the configuration.
const (
	ByGuard    = "guard"
	ByOperator = "operator"
)

// Rollout is the share of a rule's connections that the rule applies to.
type Rollout struct {
	Share      float64 `json:"share"`      // in force, 0 to 1
	Configured float64 `json:"configured"` // of the configuration
	// By says who changed it since: guard or operator; empty: nobody.
	By    string    `json:"by,omitempty"`
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since,omitzero"`
}

// override is a rollout other than the configured one. An operator's lasts until rules are
// loaded again, or the daemon ends; a guard's lasts, also across restarts, until the rule is
// edited or an operator changes its rollout.
type override struct {
	share   float64
	by, why string
	since   int64  // Unix ns
	rule    string // policy.Rule.Fingerprint of the rule that a guard took back
}

// StoredRollBack is a rollout that a guard took back.
type StoredRollBack struct {
	Why   string `json:"why"`
	Since int64  `json:"since_ns"` // Unix ns
	Rule  string `json:"rule"`     // policy.Rule.Fingerprint
}

// rolledBack is what the store keeps of the override of a rule; nil if there is none of a guard.
func (e *Engine) rolledBack(rs *ruleState) *StoredRollBack {
	if o := e.overrides[rs.rule.Name]; o.by == ByGuard {
		return &StoredRollBack{Why: o.why, Since: o.since, Rule: o.rule}
	}
	return nil
}

// endOverrides applies the rollouts of the configuration that was loaded, except to rules that a
// guard took back and that were not edited.
func (e *Engine) endOverrides() {
	for _, rs := range e.byRule {
		o, changed := e.overrides[rs.rule.Name]
		if !changed || o.by == ByGuard && o.rule == rs.fingerprint {
			continue
		}
		delete(e.overrides, rs.rule.Name)
		if o.by == ByGuard && rs.root != nil {
			e.log.Info("rollout begins again: the rule was edited", "rule", rs.rule.Name, "to", rs.rule.RolloutShare())
			e.beliefChanged(rs.root, tcp.CC{})
		}
	}
	for name := range e.overrides {
		if !slices.ContainsFunc(e.byRule, func(rs *ruleState) bool { return rs.rule.Name == name }) {
			delete(e.overrides, name)
		}
	}
}

// Mode is tune or observe.
func (e *Engine) Mode() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mode()
}

func (e *Engine) mode() string {
	if e.observe {
		return ModeObserve
	}
	return ModeTune
}

// SetObserve begins or ends mode observe. If rules are in force, it writes the changed
// policies before it returns; failed writes are tried again by later ticks.
func (e *Engine) SetObserve(on bool, now int64) {
	_ = e.rewrite(now, func() error {
		if e.observe != on {
			e.observe = on
			e.log.Info("mode", "mode", e.mode())
			e.markAll()
		}
		return nil
	})
}

// SetRollout changes the rollout of a rule, 0 to 1, until rules are loaded again. If a guard took
// it back, it is as configured then.
func (e *Engine) SetRollout(rule string, share float64, now int64) error {
	if !(share >= 0 && share <= 1) {
		return fmt.Errorf("set rollout of rule %s: %g is not a share", rule, share)
	}
	return e.rewrite(now, func() error {
		rs, err := e.rolledOut(rule)
		if err != nil {
			return err
		}
		e.log.Info("rollout changed", "rule", rule, "from", e.rollout(rs), "to", share)
		e.overrides[rule] = override{share: share, by: ByOperator, since: now}
		e.endComparisons(rs.hasAsAWhole)   // measured with another share
		e.beliefChanged(rs.root, tcp.CC{}) // what is stored of the rollout
		e.markAll()
		return nil
	})
}

// rollBack sets a rule's rollout to 0 because it does harm: its connections keep the kernel's
// defaults until the rule is edited or SetRollout is called. The caller has the lock; the
// next tick writes what changes.
func (e *Engine) rollBack(rs *ruleState, why string, now int64) {
	name := rs.rule.Name
	if o, changed := e.overrides[name]; changed && o.by == ByGuard {
		return
	}
	e.log.Warn("rollout set to 0 by a guard", "rule", name, "from", e.rollout(rs), "to", 0.0, "why", why)
	e.overrides[name] = override{by: ByGuard, why: why, since: now, rule: rs.fingerprint}
	e.beliefChanged(rs.root, tcp.CC{}) // to be stored
	e.endComparisons(rs.hasAsAWhole)
	e.totals.RolledBack++
	e.markAll()
}

func (e *Engine) rolledOut(rule string) (*ruleState, error) {
	for _, rs := range e.byRule {
		switch {
		case rs.rule.Name != rule:
		case rs.root == nil:
			return nil, fmt.Errorf("rule %s leaves its connections alone: it has no rollout", rule)
		default:
			return rs, nil
		}
	}
	return nil, fmt.Errorf("no rule %q", rule)
}

// rewrite changes something under the lock and writes what that changes, unless there are
// no rules yet.
func (e *Engine) rewrite(now int64, change func() error) error {
	e.writing.Lock()
	defer e.writing.Unlock()
	e.mu.Lock()
	err, begun := change(), len(e.byRule) > 0
	e.mu.Unlock()
	if err == nil && begun {
		_ = e.settleAll(now) // counted, logged, and tried again
	}
	return err
}

// rollout is the share of a rule's connections that get what it gives.
func (e *Engine) rollout(rs *ruleState) float64 {
	if o, changed := e.overrideOf(rs); changed {
		return o.share
	}
	return rs.rule.RolloutShare()
}

// overrideOf is the override of a rule, or else that of the rule that it is a variant of.
func (e *Engine) overrideOf(rs *ruleState) (override, bool) {
	o, changed := e.overrides[rs.rule.Name]
	if !changed && rs.rule.Of != "" {
		o, changed = e.overrides[rs.rule.Of]
	}
	return o, changed
}

func (e *Engine) viewRollout(rs *ruleState) *Rollout {
	if rs.rule.Leave {
		return nil
	}
	r := &Rollout{Share: e.rollout(rs), Configured: rs.rule.RolloutShare()}
	if o, changed := e.overrideOf(rs); changed {
		r.By, r.Why, r.Since = o.by, o.why, time.Unix(0, o.since)
	}
	return r
}

// compareFixed updates the comparison of a rule that learns nothing, while it is rolled out
// to a part of its connections. Every connection counts, even if setting an option failed,
// so that both groups differ only in the random draw (intention to treat). Such a rule has
// no objective: it is compared for throughput. The draw is in slices of time: connections that
// were held out one by one began before the rollout did.
func (e *Engine) compareFixed(rs *ruleState, s *tcp.Sample) {
	if s.Kind != tcp.KindClose || !e.comparable(rs, s) || assignmentOf(s) == learn.HoldOutConnection {
		return
	}
	out, why := learn.Reward(learn.Throughput, s, s.MinRTT)
	if why != learn.Scored {
		return
	}
	root := rs.root
	if root.noteLifetime(s); root.sliceShift() != root.policy.slice {
		e.mark(root)
	}
	slice, edge := root.sliceOf(s)
	if edge {
		return
	}
	out.Slice = slice
	if root.compared == nil {
		root.compared = &learn.Comparison{}
	}
	root.compared.Add(out, assignmentOf(s))
	e.toSave(root)
	e.judgeDefault(root, s.At)
}

// addRollout adds the rollout of a rule to the input of a decision.
func (e *Engine) addRollout(in *policy.Input, rs *ruleState) {
	in.Observe, in.NotRolledOut = e.observe, 1-e.rollout(rs)
}
