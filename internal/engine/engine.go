package engine

import (
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
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
	// DeletePolicies removes rows; a row that does not exist is not an error. adopt: connections that they left
	// without state are to be followed from now on.
	DeletePolicies(keys []path.Key, adopt bool) error
}

// Discard is a Sink for replays.
type Discard struct{}

func (Discard) WriteRules(*class.Table) error         { return nil }
func (Discard) WritePolicies([]path.Entry) error      { return nil }
func (Discard) DeletePolicies([]path.Key, bool) error { return nil }

// Options are the engine's settings. They do not change while it runs.
type Options struct {
	Learner learn.Learner
	// Bits returns the prefix length of an address's path; nil is /24 and /48.
	Bits func(netip.Addr) int
	// Limit bounds the paths kept; the least recently used is dropped first, with the exceptions in
	// cache.go. 0 is 16384.
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
	mu      sync.Mutex // protects everything below but writer; not held during writes to the sink
	opt     Options
	log     *slog.Logger
	slices  bool                                   // the learner uses slices
	load    func(keep func(StoredPath) bool) error // of Start; protected by writing

	rules    ruleSet
	rollouts rollouts
	absent   absent
	arms     armStates
	baseline baseline
	yields   yields

	nodes map[key]*node // of cache, and the roots of rules
	cache cache
	queue queue
	rows  rows
	saves saves
	// dropped counts nodes that were dropped but are still in queue or saves.
	dropped int

	scratch
	counts
	writer writer // used by the goroutine that holds writing

	viewing  sync.Mutex // held while a snapshot is built; lock it before mu
	snapshot atomic.Pointer[Snapshot]
}

// scratch is memory that is used again.
type scratch struct {
	in         policy.Input
	unusable   []tcp.CC   // retired arms, and those that guards retired on one path
	hostSample tcp.Sample // of ofHost
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
		rules:    ruleSet{byClass: map[uint32]*ruleState{}, lastClass: max(opt.FirstClass, 1) - 1},
		rollouts: rollouts{changed: map[string]override{}},
		absent:   absent{},
		arms:     newArmStates(),
		yields:   yields{bySysctl: map[string]Yield{}},
		nodes:    map[key]*node{},
		cache:    newCache(opt.Limit),
		rows:     rows{ttl: int64(opt.TTL), byWrite: list{which: listWrite}},
		counts:   counts{reasons: make([]uint64, len(policy.Reasons())), started: time.Unix(0, opt.Now)},
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
	return e.rules.waiting
}

// Rules returns the rules in force. The caller must not change them.
func (e *Engine) Rules() []policy.Rule {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rules.list
}

// Fields has the bit 1<<f for each field that some rule sets, and for each that some rule adapts: none in mode
// observe.
func (e *Engine) Fields() (set, adapted uint64) {
	if e.Mode() == ModeObserve {
		return 0, 0
	}
	for _, r := range e.Rules() {
		set |= r.Set.Mask()
		for _, f := range r.Adapt {
			adapted |= 1 << f
		}
	}
	return set, adapted
}
