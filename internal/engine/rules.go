package engine

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/policy"
)

// Start puts the first rules into force, with what is remembered of earlier: load
// calls keep for each memory. What paths have learned is in the kernel before the
// rules are, so that connections pass from an earlier process to this one without
// starting over. After an error the engine is of no use.
func (e *Engine) Start(rules []policy.Rule, r policy.Resolver, load func(keep func(Memory) bool) error, now int64) error {
	found := lookUp(rules, r)
	e.writing.Lock()
	defer e.writing.Unlock()
	p, err := e.begin(rules, found, load)
	if err != nil {
		return err
	}
	if err := e.settle(now, true); err != nil {
		return fmt.Errorf("write first policies: %w", err)
	}
	return e.opt.Sink.WriteRules(p.table)
}

func (e *Engine) begin(rules []policy.Rule, found names, load func(keep func(Memory) bool) error) (*plan, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p, err := e.plan(rules, found)
	if err != nil {
		return nil, err
	}
	e.makeRoots(p)
	p.made = nil // written as any other
	e.install(p)
	if load != nil {
		if err := load(e.remember); err != nil {
			return nil, err
		}
		e.byLastUse()
		e.evict()
	}
	return p, nil
}

// SetRules puts other rules into force. Rules that keep their name keep their
// class, and what was learned in it unless it is about something else now. On an
// error the old rules stay in force, whole.
func (e *Engine) SetRules(rules []policy.Rule, r policy.Resolver, now int64) error {
	found := lookUp(rules, r)
	e.writing.Lock()
	defer e.writing.Unlock()
	p, err := e.prepare(rules, found, now)
	if err != nil {
		return err
	}
	if err := e.write(p); err != nil {
		e.abandon(p)
		return err
	}
	e.putIntoForce(p)
	_ = e.settle(now, true) // counted, logged, and tried again
	return nil
}

// prepare decides what SetRules writes.
func (e *Engine) prepare(rules []policy.Rule, found names, now int64) (*plan, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p, err := e.plan(rules, found)
	if err != nil {
		return nil, err
	}
	e.makeRoots(p)
	e.announce(p)
	for _, n := range p.made {
		if en, write := e.decide(n, now); write {
			p.rows = append(p.rows, en)
		}
	}
	return p, nil
}

// announce has samples of new classes count, for the rule as it was: the first may come
// before SetRules has ended.
func (e *Engine) announce(p *plan) {
	for _, rs := range p.states {
		if e.byClass[rs.class] != nil {
			continue
		}
		p.classes = append(p.classes, rs.class)
		if old := e.byClass[rs.classBefore()]; old != nil {
			e.byClass[rs.class] = old
		} else {
			e.byClass[rs.class] = rs
		}
	}
}

// abandon undoes prepare.
func (e *Engine) abandon(p *plan) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, class := range p.classes {
		delete(e.byClass, class)
	}
	for _, n := range p.made {
		e.drop(n)
	}
}

// write writes the roots of new classes, which must be in the kernel before their class
// is, and the rules.
func (e *Engine) write(p *plan) error {
	if err := e.opt.Sink.WritePolicies(p.rows); err != nil {
		return fmt.Errorf("write policies of rules: %w", err)
	}
	return e.opt.Sink.WriteRules(p.table)
}

func (e *Engine) putIntoForce(p *plan) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.totals.Writes += uint64(len(p.rows))
	e.install(p)
	for _, rs := range e.byRule {
		if _, changed := e.overrides[rs.rule.Name]; rs.root != nil && (changed || rs.changed) {
			rs.root.compared, rs.root.back = nil, nil
		}
		rs.changed = false
	}
	clear(e.overrides) // the configuration says it anew
	e.markAll()
}

// plan is a set of rules on its way into force.
type plan struct {
	rules   []policy.Rule
	names   names
	states  []*ruleState
	table   *class.Table
	waiting []policy.Waiting
	classes []uint32 // new ones
	made    []*node  // their roots
	rows    []path.Entry
}

func (e *Engine) plan(rules []policy.Rule, found names) (*plan, error) {
	kept := map[string]*ruleState{}
	for _, rs := range e.byRule {
		kept[rs.rule.Name] = rs
	}
	p := &plan{rules: rules, names: found, states: make([]*ruleState, len(rules))}
	ids := make([]uint32, len(rules))
	for i := range rules {
		rs := &ruleState{}
		if old := kept[rules[i].Name]; old != nil && sameLearning(old.rule, &rules[i]) {
			*rs = *old
			if !reflect.DeepEqual(old.rule, &rules[i]) {
				e.classes++
				rs.move(e.classes)
			}
		} else {
			e.classes++ // also where the plan fails: an id is never used twice
			rs.class = e.classes
		}
		rs.rule = &rules[i]
		p.states[i], ids[i] = rs, rs.class
	}
	var err error
	p.table, p.waiting, err = policy.Compile(rules, ids, found.resolver())
	return p, err
}

// maxFormer bounds the classes by which connections of a changed rule are still
// known as its own: connections that began that many changes ago are not.
const maxFormer = 8

// move gives a rule that was changed a class of its own: as long as rows of both
// exist, no connection of the new rule meets a row of the old one.
func (rs *ruleState) move(class uint32) {
	former := append(slices.Clone(rs.former), rs.class)
	rs.former = former[max(0, len(former)-maxFormer):]
	rs.class, rs.changed = class, true
}

// classBefore is the class that the rule has in force, if it has one.
func (rs *ruleState) classBefore() uint32 {
	if rs.changed {
		return rs.former[len(rs.former)-1]
	}
	return rs.class
}

// copyFor is a root as it will be once the changed rule rs is in force.
func (n *node) copyFor(rs *ruleState) *node {
	c := *n
	c.key, c.rule, c.links = rootKey(rs.class, 0), rs, [numLists]links{}
	c.id, c.expires, c.policy, c.best = 0, 0, written{}, -1
	c.dirty, c.gone = true, false // it is in no list
	return &c
}

// rekey moves a node to another class. Its row goes when the new one is written.
func (e *Engine) rekey(n *node, class uint32) {
	delete(e.nodes, n.key)
	if n.id != 0 {
		e.removed = append(e.removed, n.key)
	}
	e.byWrite.remove(n)
	n.id, n.expires, n.policy, n.best = 0, 0, written{}, -1
	n.key.class = class
	e.nodes[n.key] = n
}

// sameLearning reports whether beliefs under a are still about the same thing
// under b.
func sameLearning(a, b *policy.Rule) bool {
	if (a.Learn == nil) != (b.Learn == nil) {
		return false
	}
	return a.Learn == nil || a.Learn.Objective == b.Learn.Objective && a.Learn.OwnScope == b.Learn.OwnScope
}

// makeRoots gives a root to each rule that has none and needs one.
func (e *Engine) makeRoots(p *plan) {
	for _, rs := range p.states {
		if rs.root == nil && !rs.rule.Leave {
			rs.root = e.newNode(rootKey(rs.class, 0), rs, nil)
			p.made = append(p.made, rs.root)
		} else if rs.changed && !rs.rule.Leave {
			p.made = append(p.made, rs.root.copyFor(rs))
		}
	}
}

// install is called when the rules of p are in force.
func (e *Engine) install(p *plan) {
	before := e.byRule
	for _, rs := range p.states { // samples came in meanwhile
		if old := e.byClass[rs.classBefore()]; old != nil {
			rs.samples, rs.paths = old.samples, old.paths
		}
	}
	e.rules, e.names, e.table, e.waiting, e.byRule = p.rules, p.names, p.table, p.waiting, p.states
	e.byClass = make(map[uint32]*ruleState, len(p.states))
	for _, rs := range p.states {
		e.byClass[rs.class] = rs
		for _, class := range rs.former { // of connections that began before
			e.byClass[class] = rs
		}
	}
	for _, n := range p.made {
		if e.nodes[n.key] != n {
			e.byWrite.remove(n) // a copy: the root itself is written again
		}
	}
	adopt := func(n *node) {
		rs := e.byClass[n.key.class]
		switch {
		case rs == nil:
			e.drop(n)
			return
		case rs.class != n.key.class:
			e.rekey(n, rs.class)
		}
		n.rule = rs
	}
	e.byUse.each(adopt)
	for _, rs := range before {
		if rs.root != nil {
			adopt(rs.root)
		}
	}
	e.markAll()
}

// Recompile looks the names of cgroups and namespaces up again, and puts the
// table into force if they stand for something else now.
func (e *Engine) Recompile(r policy.Resolver) error {
	rules := e.Rules()
	found := lookUp(rules, r) // asks the kernel: not under a lock
	e.writing.Lock()
	defer e.writing.Unlock()
	table, waiting, err := e.recompile(rules, found)
	if err != nil || table == nil {
		return err
	}
	if err := e.opt.Sink.WriteRules(table); err != nil {
		return err
	}
	e.log.Info("rules follow cgroups and network namespaces", "waiting", len(waiting))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.table, e.waiting, e.names = table, waiting, found
	return nil
}

// recompile returns the table of rules for what their names stand for now; nil if that is
// what is in force.
func (e *Engine) recompile(rules []policy.Rule, found names) (*class.Table, []policy.Waiting, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(rules) == 0 || len(e.rules) == 0 || &rules[0] != &e.rules[0] || reflect.DeepEqual(found, e.names) {
		return nil, nil, nil // other rules since, which were looked up then
	}
	ids := make([]uint32, len(e.byRule))
	for i, rs := range e.byRule {
		ids[i] = rs.class
	}
	return policy.Compile(e.rules, ids, found.resolver())
}

// names is what the names in a set of rules stood for when they were looked up.
type names struct {
	cgroups map[string][]uint64
	netns   map[string]uint64
}

func lookUp(rules []policy.Rule, r policy.Resolver) names {
	n := names{map[string][]uint64{}, map[string]uint64{}}
	for i := range rules {
		for _, name := range rules[i].Match.Cgroup {
			if r.Cgroup == nil || n.cgroups[name] != nil {
				continue
			}
			if ids := r.Cgroup(name); len(ids) > 0 {
				n.cgroups[name] = ids
			}
		}
		for _, name := range rules[i].Match.NetNS {
			if r.NetNS == nil {
				continue
			}
			if cookie, ok := r.NetNS(name); ok {
				n.netns[name] = cookie
			}
		}
	}
	return n
}

func (n names) resolver() policy.Resolver {
	return policy.Resolver{
		Cgroup: func(name string) []uint64 { return n.cgroups[name] },
		NetNS: func(name string) (uint64, bool) {
			cookie, ok := n.netns[name]
			return cookie, ok
		},
	}
}
