package engine

import (
	"container/list"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Sink is where decisions go: the datapath, or nothing in a replay.
type Sink interface {
	// WriteRules puts a compiled table into force as a whole.
	WriteRules(t *class.Table) error
	// WritePolicies adds or replaces rows of the policy table.
	WritePolicies(entries []path.Entry) error
	// DeletePolicies removes rows; one that is not there is no error.
	DeletePolicies(keys []path.Key) error
}

// Discard is a Sink for replays.
type Discard struct{}

func (Discard) WriteRules(*class.Table) error        { return nil }
func (Discard) WritePolicies([]path.Entry) error     { return nil }
func (Discard) DeletePolicies(keys []path.Key) error { return nil }

// Options are the engine's settings; they hold for its life.
type Options struct {
	Learner learn.Learner
	// Bits returns the prefix length of an address's path; nil is /24 and /48.
	Bits func(netip.Addr) int
	// Limit bounds the paths held; the least recently used goes first. 0 is 16384.
	Limit int
	// TTL is how long the kernel obeys a policy that is not renewed; 0 is 10 min.
	TTL  time.Duration
	Sink Sink
	Log  *slog.Logger
	// FirstClass is the first class id to give out; ids below may still be in the
	// kernel. 0 is 1.
	FirstClass uint32
	Now        int64 // Unix nanoseconds
}

// Engine holds what is learned. Its methods may be called from any goroutine;
// one lock orders them.
type Engine struct {
	mu  sync.Mutex
	opt Options
	log *slog.Logger

	rules   []policy.Rule
	table   *class.Table
	waiting []policy.Waiting
	byClass map[uint32]*ruleState
	byRule  []*ruleState // in the order of rules
	classes uint32       // last class id given out
	ids     uint32       // last policy id given out

	offered []tcp.CC // congestion controls that the kernel has
	arms    map[tcp.CC]*ArmState
	retired []tcp.CC
	yields  map[string]Yield
	yieldCC bool
	yieldFs uint64

	nodes    map[path.Key]*node
	byUse    *list.List // of *node, least recently used first; roots are not in it
	byWrite  *list.List // of *node, least recently decided first
	dirty    []*node
	removed  []path.Key // to be deleted from the kernel
	unsaved  map[path.Key]struct{}
	dropped  []Memory // beliefs to be deleted from the store
	in       policy.Input
	scratch  []path.Entry
	totals   Totals
	ignored  [learn.NumIgnored]uint64
	noArm    uint64
	reasons  map[policy.Reason]uint64
	kinds    [tcp.KindFailedConnect + 1]uint64
	started  time.Time
	snapshot *Snapshot
}

// ruleState is one rule in force.
type ruleState struct {
	rule    *policy.Rule
	class   uint32
	root    *node
	samples uint64
	paths   int
}

// Defaults of Options.
const (
	defaultLimit = 16384
	defaultTTL   = 10 * time.Minute
)

// New returns an engine without rules.
func New(opt Options) *Engine {
	if opt.Limit <= 0 {
		opt.Limit = defaultLimit
	}
	if opt.TTL <= 0 {
		opt.TTL = defaultTTL
	}
	if opt.Bits == nil {
		opt.Bits = DefaultBits
	}
	e := &Engine{
		opt: opt, log: opt.Log,
		byClass: map[uint32]*ruleState{},
		classes: max(opt.FirstClass, 1) - 1,
		arms:    map[tcp.CC]*ArmState{},
		yields:  map[string]Yield{},
		nodes:   map[path.Key]*node{},
		byUse:   list.New(), byWrite: list.New(),
		unsaved: map[path.Key]struct{}{},
		reasons: map[policy.Reason]uint64{},
		started: time.Unix(0, opt.Now),
	}
	e.in.Learner = opt.Learner
	return e
}

// DefaultBits is the prefix length of an address's path unless told otherwise:
// 24 for IPv4 and 48 for IPv6, what networks commonly announce at the finest.
func DefaultBits(a netip.Addr) int {
	if a.Unmap().Is4() {
		return 24
	}
	return 48
}

// SetRules puts rules into force. Rules that keep their name keep their class,
// and what was learned in it unless the objective changed. On an error the old
// rules stay in force.
func (e *Engine) SetRules(rules []policy.Rule, r policy.Resolver, now int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()

	kept := map[string]*ruleState{}
	for _, rs := range e.byRule {
		kept[rs.rule.Name] = rs
	}
	next := make([]*ruleState, len(rules))
	ids := make([]uint32, len(rules))
	classes := e.classes
	for i := range rules {
		next[i] = &ruleState{rule: &rules[i]}
		if old := kept[rules[i].Name]; old != nil && sameLearning(old.rule, &rules[i]) {
			*next[i] = *old
			next[i].rule = &rules[i]
		} else {
			classes++
			next[i].class = classes
		}
		ids[i] = next[i].class
	}
	table, waiting, err := policy.Compile(rules, ids, r)
	if err != nil {
		return err
	}
	// Roots of new classes must be in the kernel before their class is.
	if err := e.writeRoots(next, now); err != nil {
		return fmt.Errorf("write policies of rules: %w", err)
	}
	if err := e.opt.Sink.WriteRules(table); err != nil {
		return err
	}
	e.classes = classes
	e.install(rules, next, table, waiting)
	e.settle(now)
	return nil
}

// sameLearning reports whether beliefs under a are still about the same thing
// under b.
func sameLearning(a, b *policy.Rule) bool {
	if (a.Learn == nil) != (b.Learn == nil) {
		return false
	}
	return a.Learn == nil || a.Learn.Objective == b.Learn.Objective && a.Learn.OwnScope == b.Learn.OwnScope
}

func (e *Engine) install(rules []policy.Rule, next []*ruleState, table *class.Table, waiting []policy.Waiting) {
	e.rules, e.table, e.waiting = rules, table, waiting
	e.byRule = next
	e.byClass = make(map[uint32]*ruleState, len(next))
	for _, rs := range next {
		e.byClass[rs.class] = rs
	}
	for _, n := range e.nodes {
		rs := e.byClass[n.key.Class]
		if rs == nil {
			e.drop(n)
			continue
		}
		n.rule = rs
		e.mark(n)
	}
}

// writeRoots makes the policies that hold for whatever no path is known of, as
// the new rules want them.
func (e *Engine) writeRoots(next []*ruleState, now int64) error {
	var entries []path.Entry
	for _, rs := range next {
		if rs.rule.Leave {
			continue
		}
		if rs.root == nil {
			rs.root = e.newNode(path.Root(rs.class, 0), rs, nil)
		}
		old := rs.root.rule
		rs.root.rule = rs
		if en, write := e.decide(rs.root, now); write {
			entries = append(entries, en)
		}
		rs.root.rule = old
	}
	return e.opt.Sink.WritePolicies(entries)
}

// Recompile looks the names of cgroups and namespaces up again, and puts the
// table into force if it changed.
func (e *Engine) Recompile(r policy.Resolver) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	ids := make([]uint32, len(e.byRule))
	for i, rs := range e.byRule {
		ids[i] = rs.class
	}
	table, waiting, err := policy.Compile(e.rules, ids, r)
	if err != nil {
		return err
	}
	if equalTables(e.table, table) {
		e.waiting = waiting
		return nil
	}
	if err := e.opt.Sink.WriteRules(table); err != nil {
		return err
	}
	e.log.Info("rules follow cgroups and network namespaces", "waiting", len(waiting))
	e.table, e.waiting = table, waiting
	return nil
}

// Waiting lists what rules name and does not exist yet.
func (e *Engine) Waiting() []policy.Waiting {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.waiting
}

// Rules returns the rules in force. The caller must not change them.
func (e *Engine) Rules() []policy.Rule {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rules
}

// Fields has the bit 1<<f for each field that some rule sets.
func (e *Engine) Fields() (mask uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.rules {
		mask |= e.rules[i].Set.Mask()
	}
	return mask
}
