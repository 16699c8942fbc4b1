package engine

import (
	"fmt"
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

// rollouts are the shares of their connections that rules apply to.
type rollouts struct {
	observe bool                // none, of any rule
	changed map[string]override // by rule; those of others are configured
}

// of is the override of a rule, or else that of the rule that it is a variant of.
func (r *rollouts) of(rule *policy.Rule) (override, bool) {
	o, changed := r.changed[rule.Name]
	if !changed && rule.Of != "" {
		o, changed = r.changed[rule.Of]
	}
	return o, changed
}

// share is the share of a rule's connections that get what it gives, in mode tune.
func (r *rollouts) share(rule *policy.Rule) float64 {
	if o, changed := r.of(rule); changed {
		return o.share
	}
	return rule.RolloutShare()
}

// holdsOut reports whether some connections of a rule are treated and others held out.
func (r *rollouts) holdsOut(rule *policy.Rule) bool {
	share := r.share(rule)
	return !r.observe && share > 0 && (share < 1 || rule.Learn != nil && rule.Learn.HoldOut > 0)
}

func (r *rollouts) mode() string {
	if r.observe {
		return ModeObserve
	}
	return ModeTune
}

// set sets the share of a rule for an operator.
func (r *rollouts) set(rule string, share float64, now int64) {
	r.changed[rule] = override{share: share, by: ByOperator, since: now}
}

// takeBack sets the share of a rule to 0 for a guard; false: a guard did so before.
func (r *rollouts) takeBack(rs *ruleState, why string, now int64) bool {
	if o, changed := r.changed[rs.rule.Name]; changed && o.by == ByGuard {
		return false
	}
	r.changed[rs.rule.Name] = override{by: ByGuard, why: why, since: now, rule: rs.fingerprint}
	return true
}

// stored is what the store keeps of the override of a rule; nil if there is none of a guard.
func (r *rollouts) stored(rule string) *StoredRollBack {
	if o := r.changed[rule]; o.by == ByGuard {
		return &StoredRollBack{Why: o.why, Since: o.since, Rule: o.rule}
	}
	return nil
}

// restore restores the override that a guard made, unless the rule was edited since, and reports
// whether it did.
func (r *rollouts) restore(rs *ruleState, b *StoredRollBack) bool {
	if b == nil || b.Rule != rs.fingerprint {
		return false
	}
	r.changed[rs.rule.Name] = override{by: ByGuard, why: b.Why, since: b.Since, rule: b.Rule}
	return true
}

// configure applies the rollouts of the rules that were loaded, except to those that a guard took
// back and that were not edited. It returns the rules whose rollout begins again.
func (r *rollouts) configure(rules []*ruleState) (begun []*ruleState) {
	kept := map[string]override{}
	for _, rs := range rules {
		switch o := r.changed[rs.rule.Name]; {
		case o.by != ByGuard:
		case o.rule == rs.fingerprint:
			kept[rs.rule.Name] = o
		default:
			begun = append(begun, rs)
		}
	}
	r.changed = kept
	return begun
}

// view describes the rollout of a rule; nil if the rule leaves its connections alone.
func (r *rollouts) view(rule *policy.Rule) *Rollout {
	if rule.Leave {
		return nil
	}
	v := &Rollout{Share: r.share(rule), Configured: rule.RolloutShare()}
	if o, changed := r.of(rule); changed {
		v.By, v.Why, v.Since = o.by, o.why, time.Unix(0, o.since)
	}
	return v
}

// Mode is tune or observe.
func (e *Engine) Mode() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rollouts.mode()
}

// SetObserve begins or ends mode observe. If rules are in force, it writes the changed
// policies before it returns; failed writes are tried again by later ticks.
func (e *Engine) SetObserve(on bool, now int64) {
	_ = e.rewrite(now, func() error {
		if e.rollouts.observe != on {
			e.rollouts.observe = on
			e.log.Info("mode changed", "mode", e.rollouts.mode())
			e.markAll()
		}
		return nil
	})
}

// SetRollout changes the rollout of a rule, 0 to 1, until rules are loaded again. Then the configured
// rollout applies, even if a guard had taken it back before SetRollout.
func (e *Engine) SetRollout(rule string, share float64, now int64) error {
	if !(share >= 0 && share <= 1) {
		return fmt.Errorf("set rollout of rule %s: %g is not a share", rule, share)
	}
	return e.rewrite(now, func() error {
		rs, err := e.rolledOut(rule)
		if err != nil {
			return err
		}
		e.log.Info("rollout changed", "rule", rule, "from", e.rollouts.share(rs.rule), "to", share)
		e.rollouts.set(rule, share, now)
		e.endComparisons(rs.hasAsAWhole) // measured with another share
		e.saves.add(rs.root)
		e.markAll()
		return nil
	})
}

// rollBack sets a rule's rollout to 0 because it does harm: its connections keep the kernel's
// defaults until the rule is edited or SetRollout is called. The caller has the lock; the
// next tick writes what changes.
func (e *Engine) rollBack(rs *ruleState, why string, now int64) {
	from := e.rollouts.share(rs.rule)
	if !e.rollouts.takeBack(rs, why, now) {
		return
	}
	e.log.Warn("rollout set to 0 by a guard", "rule", rs.rule.Name, "from", from, "to", 0.0, "why", why)
	e.endComparisons(rs.hasAsAWhole)
	e.saves.add(rs.root)
	e.totals.RolledBack++
	e.markAll()
}

// endOverrides applies the rollouts of the rules that were loaded.
func (e *Engine) endOverrides() {
	for _, rs := range e.rollouts.configure(e.rules.states) {
		if rs.root != nil {
			e.log.Info("rollout begins again: the rule was edited", "rule", rs.rule.Name, "to", rs.rule.RolloutShare())
			e.saves.add(rs.root)
		}
	}
}

func (e *Engine) rolledOut(rule string) (*ruleState, error) {
	switch rs := e.rules.named(rule); {
	case rs == nil:
		return nil, fmt.Errorf("no rule %q", rule)
	case rs.root == nil:
		return nil, fmt.Errorf("rule %s leaves its connections alone: it has no rollout", rule)
	default:
		return rs, nil
	}
}

// rewrite changes something under the lock and writes what that changes, unless there are
// no rules yet.
func (e *Engine) rewrite(now int64, change func() error) error {
	e.writing.Lock()
	defer e.writing.Unlock()
	e.mu.Lock()
	err, begun := change(), len(e.rules.states) > 0
	e.mu.Unlock()
	if err == nil && begun {
		_ = e.settleAll(now) // counted, logged, and tried again
	}
	return err
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
		e.queue.mark(root)
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
	e.saves.add(root)
	e.judgeDefault(root, s.At)
}

// addRollout adds the rollout of a rule to the input of a decision.
func (e *Engine) addRollout(in *policy.Input, rs *ruleState) {
	in.Observe, in.NotRolledOut = e.rollouts.observe, 1-e.rollouts.share(rs.rule)
}
