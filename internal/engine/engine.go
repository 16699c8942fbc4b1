package engine

import (
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/guard"
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
	Log  *slog.Logger // nil: nothing is logged
	// Clock measures what a tick costs; nil: it is not measured.
	Clock func() time.Time
	// FirstClass is the first class id to give out; ids below may still be in the
	// kernel. 0 is 1.
	FirstClass uint32
	Now        int64 // Unix nanoseconds
}

// Engine holds what is learned. Its methods may be called from any goroutine.
type Engine struct {
	writing sync.Mutex // held by who writes to the sink; before mu
	mu      sync.Mutex // orders all else; not held while anything is written
	opt     Options
	log     *slog.Logger

	rules   []policy.Rule
	names   names // what rules name, as last looked up
	table   *class.Table
	waiting []policy.Waiting
	byClass map[uint32]*ruleState
	byRule  []*ruleState // in the order of rules
	classes uint32       // last class id given out
	ids     uint32       // last policy id given out

	offered offers
	arms    map[tcp.CC]*ArmState
	retired []tcp.CC // refused by the kernel
	banned  []tcp.CC // scratch: these, and those that guards took from a path
	armSets []*armSet
	yields  map[string]Yield
	yieldCC bool
	yieldFs uint64

	observe   bool
	overrides map[string]override // rollouts, by rule

	nodes   map[key]*node
	byUse   list // all but the rules' own roots
	byTrial list // of them, those of which too little is known to be kept
	byWrite list // what is in the kernel
	stamp   uint32
	dirty   []*node // to be decided on at the next tick
	later   []*node // to be decided on in their turn
	removed []key   // to be deleted from the kernel
	retryAt int64   // 0 unless the latest write failed
	// allowance is how many of later may be decided on, as of allowed.
	allowance float64
	allowed   int64

	listed int // nodes that are gone, and still in the lists above or below

	unsaved    []*node // whose belief the store does not have
	forgotten  []Place // to be deleted from the store
	saving     []*node // on the way to the store, not confirmed
	forgetting []Place

	// onHold are paths that wait for their slice to end, by its length, as of releasedAt.
	onHold     [longestSlice + manyShift - leastSlice + 1][]*node
	releasedAt int64
	slices     bool // the learner uses them
	// armsOnly: guards look at arms by themselves, and not at all that a path gets. For
	// tests of these.
	armsOnly bool

	in policy.Input // scratch
	// Of who writes.
	deciding []*node // what the round has yet to decide on
	spare    []*node // memory of the last round
	batch    []path.Entry
	batched  []*node

	totals  Totals
	ignored [learn.NumIgnored]uint64
	noArm   uint64
	guarded [guard.NumKinds]uint64
	reasons []uint64 // by policy.Reason
	kinds   [tcp.KindFailedConnect + 1]uint64
	// stoodFor has the connections that the samples of a kind stand for.
	stoodFor [tcp.KindFailedConnect + 1]uint64
	started  time.Time

	viewing  sync.Mutex // held while a snapshot is built; before mu
	snapshot atomic.Pointer[Snapshot]
}

// ruleState is one rule in force.
type ruleState struct {
	rule    *policy.Rule
	class   uint32
	former  []uint32 // classes that the rule had until it was changed, latest last
	root    *node    // nil if the rule leaves its connections alone
	samples uint64
	paths   int
	// params is what the rule's latest policy set, and paramStamp counts its changes.
	params     tcp.Params
	paramStamp uint32
	// changed says that the rule is another than before, of the same name and learning.
	changed bool
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
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{
		opt: opt, log: opt.Log,
		byClass: map[uint32]*ruleState{},
		classes: max(opt.FirstClass, 1) - 1,
		arms:    map[tcp.CC]*ArmState{},
		yields:  map[string]Yield{}, overrides: map[string]override{},
		nodes: map[key]*node{},
		byUse: list{which: listUse}, byTrial: list{which: listTrial}, byWrite: list{which: listWrite},
		reasons: make([]uint64, len(policy.Reasons())),
		started: time.Unix(0, opt.Now),
	}
	e.in.Learner, e.slices = opt.Learner, learn.UsesSlices(opt.Learner)
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

// Fields has the bit 1<<f for each field that some rule sets: none in mode observe.
func (e *Engine) Fields() (mask uint64) {
	if e.Mode() == ModeObserve {
		return 0
	}
	for _, r := range e.Rules() {
		mask |= r.Set.Mask()
	}
	return mask
}
