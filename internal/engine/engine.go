package engine

import (
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/estimate"
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
	// DeletePolicies removes rows; a row that does not exist is not an error.
	DeletePolicies(keys []path.Key) error
}

// Discard is a Sink for replays.
type Discard struct{}

func (Discard) WriteRules(*class.Table) error        { return nil }
func (Discard) WritePolicies([]path.Entry) error     { return nil }
func (Discard) DeletePolicies(keys []path.Key) error { return nil }

// Options are the engine's settings. They do not change while it runs.
type Options struct {
	Learner learn.Learner
	// Bits returns the prefix length of an address's path; nil is /24 and /48.
	Bits func(netip.Addr) int
	// Limit bounds the paths kept; the least recently used is dropped first. 0 is 16384.
	Limit int
	// TTL is how long the kernel applies a policy that is not renewed; 0 is 10 min.
	TTL  time.Duration
	Sink Sink
	// Flows returns how many established connections the path of a policy has; false: they
	// are not counted. It must not block. May be nil.
	Flows func(path.Key) (uint32, bool)
	Log   *slog.Logger // nil: nothing is logged
	// Clock measures how long a tick takes; nil: it is not measured.
	Clock func() time.Time
	// FirstClass is the first class id to allocate; smaller ids may still be in the
	// kernel. 0 is 1.
	FirstClass uint32
	Now        int64 // Unix nanoseconds
}

// Engine holds what is learned. Its methods may be called from any goroutine.
type Engine struct {
	writing sync.Mutex // taken to write to the sink; lock it before mu
	mu      sync.Mutex // protects everything else; not held during writes to the sink
	opt     Options
	log     *slog.Logger

	rules   []policy.Rule
	names   names // cgroups, namespaces and pods that rules name, as last looked up
	table   *class.Table
	waiting []policy.Waiting
	byClass map[uint32]*ruleState
	byRule  []*ruleState // in the order of rules
	classes uint32       // last class id allocated
	ids     uint32       // last policy id allocated

	offered offers
	// comparedWith is the default that connections are compared with, the last one that was known;
	// formerDefault is the one before it.
	comparedWith, formerDefault tcp.CC

	arms     map[tcp.CC]*ArmState
	retired  []tcp.CC // refused by the kernel
	unusable []tcp.CC // scratch: retired, and the arms that guards retired on one path
	armSets  []*armSet
	yields   map[string]Yield
	yieldCC  bool
	yieldFs  uint64

	observe   bool
	overrides map[string]override // rollouts, by rule

	lists
	saves
	waits
	scratch
	counts

	slices bool // the learner uses slices
	// armsOnly: guards judge single arms, and not the path as a whole. For tests of the
	// guards of arms.
	armsOnly bool

	viewing  sync.Mutex // held while a snapshot is built; lock it before mu
	snapshot atomic.Pointer[Snapshot]
}

// lists are the nodes, and the orders in which they are visited.
type lists struct {
	nodes   map[key]*node
	cache   cache
	byWrite list    // nodes with a row in the kernel
	stamp   uint32  // incremented when something changed that all decisions depend on
	dirty   []*node // to be decided on at the next tick
	later   []*node // to be decided on at a limited rate (laterRate), in this order
	removed []key   // to be deleted from the kernel
	retryAt int64   // 0 unless the latest write failed
	listed  int     // nodes that were dropped but are still in dirty, later, deferred or unsaved
}

// saves are on their way to the store.
type saves struct {
	unsaved    []*node  // whose belief the store does not have
	forgotten  []PathID // to be deleted from the store
	saving     []*node  // on the way to the store, not confirmed
	forgetting []PathID
}

// waits limit how soon paths are decided on.
type waits struct {
	// allowance is how many of later may be decided on, as of allowed (Unix ns): a token
	// bucket.
	allowance float64
	allowed   int64
	// deferred are paths that wait for their slice to end, by the length of the slice.
	// releasedAt (Unix ns) is when releaseDeferred last ran.
	deferred   [longestSlice + fixedShift - leastSlice + 1][]*node
	releasedAt int64
}

// scratch is memory that is used again.
type scratch struct {
	in policy.Input
	// Used by the goroutine that holds writing.
	deciding []*node // not yet decided on in this round
	spare    []*node // memory of the last round, to be used again
	batch    []path.Entry
	batched  []*node
}

// counts are counters since the start.
type counts struct {
	totals      Totals
	ignored     [learn.NumIgnored]uint64
	noArm       uint64
	retirements [guard.NumKinds]uint64
	hostSample  tcp.Sample                    // of ofHost
	barred      [len(estimate.RTOMins)]uint64 // values of RTO_MIN found too short, by index
	reasons     []uint64                      // by policy.Reason
	kinds       [tcp.KindFailedConnect + 1]uint64
	// stoodFor counts the connections that the samples of each kind stand for.
	stoodFor [tcp.KindFailedConnect + 1]uint64
	started  time.Time
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
	// The root's row was written since copiedAt, Unix ns, when the paths that copy its arms were
	// last decided on (updateCopies).
	copiesDue   bool
	copiedAt    int64
	treatment   string // policy.Rule.Treatment
	fingerprint string // policy.Rule.Fingerprint
	// changed says that the rule was edited, and kept its name and what it learns; the others, that
	// treatment and fingerprint are not what they were before that.
	changed, treatmentChanged, fingerprintChanged bool
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
		opt.Bits = defaultBits
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
		lists: lists{
			nodes: map[key]*node{},
			cache: newCache(opt.Limit), byWrite: list{which: listWrite},
		},
		counts: counts{reasons: make([]uint64, len(policy.Reasons())), started: time.Unix(0, opt.Now)},
	}
	e.in.Learner, e.slices = opt.Learner, learn.UsesSlices(opt.Learner)
	return e
}

// defaultBits is the default prefix length of an address's path: 24 for IPv4 and 48 for
// IPv6, the longest prefixes that networks commonly announce.
func defaultBits(a netip.Addr) int {
	if a.Unmap().Is4() {
		return 24
	}
	return 48
}

// Waiting lists the cgroups and namespaces that rules name and that do not exist yet.
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

// Fields has the bit 1<<f for each field that some rule sets or adapts: none in mode observe. An
// adapted initial receive window is not among them: it is set before the SYN, and the kernel's
// question for it, which would cost a look-up at both ends, is not answered with it.
func (e *Engine) Fields() (mask uint64) {
	if e.Mode() == ModeObserve {
		return 0
	}
	for _, r := range e.Rules() {
		mask |= r.Set.Mask()
		for _, f := range r.Adapt {
			if f != tcp.InitRwnd {
				mask |= 1 << f
			}
		}
	}
	return mask
}
