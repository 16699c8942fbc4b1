package engine

import (
	"reflect"
	"slices"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// ruleSet is the rules in force.
type ruleSet struct {
	list      []policy.Rule
	states    []*ruleState // in the order of list
	byClass   map[uint32]*ruleState
	names     names // cgroups, namespaces and pods that rules name, as last looked up
	table     *class.Table
	waiting   []policy.Waiting
	lastClass uint32 // allocated
}

// ruleState is one rule in force.
type ruleState struct {
	rule    *policy.Rule
	class   uint32
	former  []uint32 // classes that the rule had until it was changed, latest last
	root    *node    // nil if the rule leaves its connections alone
	samples uint64
	paths   int
	// params are the fields that the rule's latest policy set; paramStamp counts their
	// changes.
	params     tcp.Params
	paramStamp uint32
	// copiesDue: the root's row was written after copiedAt (Unix ns), when the paths that copy its
	// arms were last decided on (updateCopies).
	copiesDue   bool
	copiedAt    int64
	treatment   string // policy.Rule.Treatment
	fingerprint string // policy.Rule.Fingerprint
	// changed says that the rule was edited, and kept its name and what it learns. The other two say
	// that its treatment, or its fingerprint, differs from that of the former version.
	changed, treatmentChanged, fingerprintChanged bool
}

// begin decides what Start writes.
func (e *Engine) begin(rules []policy.Rule, found names, now int64) (*plan, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p, err := e.rules.plan(rules, found)
	if err != nil {
		return nil, err
	}
	e.makeRoots(p)
	p.made = nil // settle writes them, as it does every other node
	e.install(p, now)
	if e.load != nil {
		if err := e.load(e.restore); err != nil {
			return nil, err
		}
		e.byLastUse()
		e.evict(now)
	}
	return p, nil
}

// prepare decides what SetRules writes.
func (e *Engine) prepare(rules []policy.Rule, found names, now int64) (*plan, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p, err := e.rules.plan(rules, found)
	if err != nil {
		return nil, err
	}
	e.makeRoots(p)
	for _, rs := range p.states {
		e.comesBack(rs)
	}
	e.rules.register(p)
	for _, n := range p.made {
		if en, write := e.decide(n, now); write {
			p.rows = append(p.rows, en)
		}
	}
	return p, nil
}

// register assigns the samples of new classes to their rules, and those of an edited rule to its
// former version, because the first samples may arrive before SetRules ends.
func (r *ruleSet) register(p *plan) {
	for _, rs := range p.states {
		if r.byClass[rs.class] != nil {
			continue
		}
		p.classes = append(p.classes, rs.class)
		if old := r.byClass[rs.classBefore()]; old != nil {
			r.byClass[rs.class] = old
		} else {
			r.byClass[rs.class] = rs
		}
	}
}

// abandon undoes prepare.
func (e *Engine) abandon(p *plan) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, class := range p.classes {
		delete(e.rules.byClass, class)
	}
	for _, n := range p.made {
		e.drop(n)
	}
}

// putIntoForce ends SetRules. back is what is stored of rules that were not in force.
func (e *Engine) putIntoForce(p *plan, keepRollouts bool, back []StoredPath, now int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.totals.Writes += uint64(len(p.rows))
	e.install(p, now)
	for _, rs := range e.rules.states {
		delete(e.absent, rs.rule.Name)
		_, changed := e.rollouts.of(rs.rule)
		switch {
		case rs.treatmentChanged:
			e.endComparisons(rs.has)
		case rs.fingerprintChanged, changed && !keepRollouts:
			e.endComparisons(rs.hasAsAWhole)
		}
		rs.changed, rs.treatmentChanged, rs.fingerprintChanged = false, false, false
	}
	if !keepRollouts {
		e.endOverrides()
		e.absent.configure(&e.rules)
		e.comeBack(p.comeBack(), back, now)
	}
	e.markAll()
}

// comeBack restores what is known of rules that are in force again: what is stored, and what was not stored yet.
func (e *Engine) comeBack(rules map[string]bool, stored []StoredPath, now int64) {
	for _, m := range stored {
		e.restore(m)
	}
	for _, m := range e.saves.back(rules) {
		if e.restore(m) {
			e.saves.add(e.rules.named(m.Rule).root)
		}
	}
	e.byLastUse()
	e.evict(now)
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

// comeBack names the rules that were not in force: they may have been before, until a reload by mistake.
func (p *plan) comeBack() map[string]bool {
	rules := map[string]bool{}
	for _, n := range p.made {
		if !n.rule.changed {
			rules[n.rule.rule.Name] = true
		}
	}
	return rules
}

// plan plans to replace the rules in force.
func (r *ruleSet) plan(rules []policy.Rule, found names) (*plan, error) {
	kept := map[string]*ruleState{}
	for _, rs := range r.states {
		kept[rs.rule.Name] = rs
	}
	p := &plan{rules: rules, names: found, states: make([]*ruleState, len(rules))}
	ids := make([]uint32, len(rules))
	for i := range rules {
		rs := &ruleState{}
		if old := kept[rules[i].Name]; old != nil && sameLearning(old.rule, &rules[i]) {
			*rs = *old
			if !reflect.DeepEqual(old.rule, &rules[i]) {
				r.lastClass++
				rs.move(r.lastClass)
			}
		} else {
			r.lastClass++ // also if the plan fails: an id is never used twice
			rs.class = r.lastClass
		}
		rs.rule = &rules[i]
		treatment, fingerprint := rs.rule.Treatment(), rs.rule.Fingerprint()
		rs.treatmentChanged = rs.changed && treatment != rs.treatment
		rs.fingerprintChanged = rs.changed && fingerprint != rs.fingerprint
		rs.treatment, rs.fingerprint = treatment, fingerprint
		p.states[i], ids[i] = rs, rs.class
	}
	var err error
	p.table, p.waiting, err = policy.Compile(rules, ids, found.resolver())
	return p, err
}

// maxFormer is the number of former classes that a rule remembers. If the rule has been changed more
// often since a connection began, the connection's samples are not attributed to it.
const maxFormer = 8

// paramsOf returns the stamp of the fixed fields of a policy of the rule.
func (rs *ruleState) paramsOf(p *path.Policy) uint32 {
	if fixed := p.Params.Without(p.Adapted); fixed != rs.params {
		rs.params = fixed
		rs.paramStamp++
	}
	return rs.paramStamp
}

// move gives an edited rule a new class, so that its connections never match policies of
// the rule's old version while both are in the kernel.
func (rs *ruleState) move(class uint32) {
	former := append(slices.Clone(rs.former), rs.class)
	rs.former = former[max(0, len(former)-maxFormer):]
	rs.class, rs.changed = class, true
}

// classBefore is the class under which the rule is in force until the new rules are.
func (rs *ruleState) classBefore() uint32 {
	if rs.changed {
		return rs.former[len(rs.former)-1]
	}
	return rs.class
}

// copyFor returns a copy of a root as it will be once the edited rule rs is in force.
func (n *node) copyFor(rs *ruleState) *node {
	c := *n
	c.key, c.rule, c.links, c.memberOf = rootKey(rs.class, 0), rs, [numLists]links{}, 0
	c.id, c.expires, c.policy, c.best = 0, 0, written{}, -1
	c.dirty, c.gone = true, false // it is in no list
	return &c
}

// rekey moves a node to another class. Its old row is deleted after the new one is written.
func (e *Engine) rekey(n *node, class uint32) {
	delete(e.nodes, n.key)
	e.rows.withdraw(n)
	n.key.class = class
	e.nodes[n.key] = n
}

// sameLearning reports whether what was learned under rule a is valid under rule b.
func sameLearning(a, b *policy.Rule) bool {
	if (a.Learn == nil) != (b.Learn == nil) || a.Leave != b.Leave { // a rule that leaves its connections alone has no root
		return false
	}
	return a.Learn == nil || a.Learn.Objective == b.Learn.Objective && a.Learn.OwnScope == b.Learn.OwnScope
}

// makeRoots creates a root for each rule that needs one and has none.
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

// install replaces the rules by those of p, and returns what is known of the former ones.
func (r *ruleSet) install(p *plan) (before []*ruleState) {
	before = r.states
	for _, rs := range p.states { // samples were counted since the plan was made
		if old := r.byClass[rs.classBefore()]; old != nil {
			rs.samples, rs.paths = old.samples, old.paths
		}
	}
	r.list, r.names, r.table, r.waiting, r.states = p.rules, p.names, p.table, p.waiting, p.states
	r.byClass = make(map[uint32]*ruleState, len(p.states))
	for _, rs := range p.states {
		r.byClass[rs.class] = rs
		for _, class := range rs.former { // of connections that began before
			r.byClass[class] = rs
		}
	}
	return before
}

// named returns the rule of a name; nil if there is none.
func (r *ruleSet) named(name string) *ruleState {
	i := slices.IndexFunc(r.states, func(rs *ruleState) bool { return rs.rule.Name == name })
	if i < 0 {
		return nil
	}
	return r.states[i]
}

// classify returns the rule of a connection; nil if none matches.
func (r *ruleSet) classify(c *class.Conn) *ruleState {
	if r.table == nil {
		return nil
	}
	i := r.table.Classify(c)
	if i < 0 {
		return nil
	}
	return r.states[i]
}

// install is called when the rules of p are in force.
func (e *Engine) install(p *plan, now int64) {
	before := e.rules.install(p)
	for _, n := range p.made {
		if e.nodes[n.key] != n {
			e.rows.byWrite.remove(n) // a copy: the root itself is written again
		}
	}
	adopt := func(n *node) {
		rs := e.rules.byClass[n.key.class]
		switch {
		case rs == nil:
			e.drop(n)
			return
		case rs.class != n.key.class:
			e.rekey(n, rs.class)
		}
		n.rule = rs
	}
	e.cache.byUse.each(adopt)
	for _, rs := range before {
		if rs.root != nil {
			if e.rules.byClass[rs.root.key.class] == nil {
				e.absent.keep(e.leftBy(rs, now))
				e.saves.leave(rs.root, e.leftBy(rs, now)) // a copy of its own, which is written while the other may be in use again
			}
			adopt(rs.root)
		}
	}
	e.markAll()
}

// leftBy is what is known of a rule that is not in force any more, last used now.
func (e *Engine) leftBy(rs *ruleState, now int64) StoredPath {
	m := e.stored(rs.root)
	m.LastUsed = now
	return m
}

// recompile returns the table of rules with the ids that were found; nil if they are the
// ones in force.
func (r *ruleSet) recompile(rules []policy.Rule, found names) (*class.Table, []policy.Waiting, error) {
	if len(rules) == 0 || len(r.list) == 0 || &rules[0] != &r.list[0] || reflect.DeepEqual(found, r.names) {
		return nil, nil, nil // unchanged, or SetRules has just looked up the names of new rules
	}
	ids := make([]uint32, len(r.states))
	for i, rs := range r.states {
		ids[i] = rs.class
	}
	return policy.Compile(r.list, ids, found.resolver())
}

// names are the ids of the cgroups, namespaces and pods that rules name, as last looked up.
type names struct {
	cgroups map[string][]uint64
	netns   map[string]uint64
	pods    map[*pod.Match][]uint64
}

func lookUp(rules []policy.Rule, r policy.Resolver) names {
	n := names{map[string][]uint64{}, map[string]uint64{}, map[*pod.Match][]uint64{}}
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
		if m := rules[i].Match.Pod; m != nil && r.Pods != nil {
			if cookies := r.Pods(m); len(cookies) > 0 {
				n.pods[m] = cookies
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
		Pods: func(m *pod.Match) []uint64 { return n.pods[m] },
	}
}
