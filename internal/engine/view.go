package engine

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/guard"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

const (
	// snapshotAge is how old a snapshot may be before a reader gets a new one.
	snapshotAge = time.Second
	// snapshotLife is how long an unused snapshot is kept; it takes half a kilobyte a
	// path.
	snapshotLife = 5 * time.Second
	// viewBatch is how many paths are read under one lock: a snapshot of many
	// paths must not block samples for long.
	viewBatch = 128
)

// Snapshot returns the engine's state, at most a second old.
func (e *Engine) Snapshot(now time.Time) *Snapshot {
	e.viewing.Lock()
	defer e.viewing.Unlock()
	if s := e.snapshot.Load(); s != nil && now.Sub(s.At) < snapshotAge && !now.Before(s.At) {
		return s
	}
	return e.view(now)
}

// View returns the engine's state as of now.
func (e *Engine) View(now time.Time) *Snapshot {
	e.viewing.Lock()
	defer e.viewing.Unlock()
	return e.view(now)
}

// ViewAll is View with PathState.Kernel, which takes much time and memory if there are many paths.
func (e *Engine) ViewAll(now time.Time) *Snapshot {
	e.viewing.Lock()
	defer e.viewing.Unlock()
	return e.viewPaths(now, true)
}

// DropSnapshot drops the cached snapshot if it is older than snapshotLife, and reports
// whether it did.
func (e *Engine) DropSnapshot(now time.Time) bool {
	s := e.snapshot.Load()
	return s != nil && now.Sub(s.At) > snapshotLife && e.snapshot.CompareAndSwap(s, nil)
}

// Summary is a snapshot without paths: it is cheap.
func (e *Engine) Summary(now time.Time) *Snapshot {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.head(now)
}

// view builds and caches a snapshot.
func (e *Engine) view(now time.Time) *Snapshot {
	s := e.viewPaths(now, false)
	e.snapshot.Store(s)
	return s
}

// viewPaths builds a snapshot. Each path is consistent in itself. Samples that arrive meanwhile
// may be part of the later paths and missing from the earlier ones.
func (e *Engine) viewPaths(now time.Time, kernel bool) *Snapshot {
	s, nodes, arms := e.viewNodes(now)
	states := make([]PathState, len(nodes))
	v := viewer{e: e, now: now, settings: map[*ruleState][]Setting{}, arms: make([]PathArm, 0, arms), kernel: kernel}
	for batch := range slices.Chunk(nodes, viewBatch) {
		e.mu.Lock()
		for _, n := range batch {
			if !n.gone {
				p := &states[len(s.Paths)]
				v.path(p, n)
				s.Paths = append(s.Paths, p)
			}
		}
		e.mu.Unlock()
	}
	slices.SortFunc(s.Paths, func(a, b *PathState) int {
		if c := cmp.Compare(b.Samples, a.Samples); c != 0 {
			return c
		}
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), a.Key.Prefix.Addr().Compare(b.Key.Prefix.Addr()),
			cmp.Compare(a.Key.Prefix.Bits(), b.Key.Prefix.Bits()), cmp.Compare(a.Scope, b.Scope))
	})
	return s
}

// viewNodes returns a snapshot without paths, the nodes of its paths, and about how many
// arms these have.
func (e *Engine) viewNodes(now time.Time) (s *Snapshot, nodes []*node, arms int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s = e.head(now)
	nodes = make([]*node, 0, e.cache.byUse.len)
	e.cache.byUse.each(func(n *node) {
		if !n.isRoot() {
			nodes = append(nodes, n)
			arms += max(len(n.policyNode().policy.arms.list()), len(n.belief.Arms))
		}
	})
	s.Paths = make([]*PathState, 0, len(nodes))
	return s, nodes, arms
}

// head is a snapshot without paths.
func (e *Engine) head(now time.Time) *Snapshot {
	s := &Snapshot{
		At: now, Started: e.started, Learner: e.opt.Learner.Name(), Mode: e.rollouts.mode(),
		Rules: make([]RuleState, 0, len(e.rules.states)), Arms: e.arms.view(), Yields: e.yields.list(),
	}
	s.Totals = e.counts.view()
	s.Totals.Paths, s.Totals.PathLimit = e.cache.byUse.len, e.opt.Limit
	for _, rs := range e.rules.states {
		s.Rules = append(s.Rules, e.viewRule(rs, now))
	}
	return s
}

func (e *Engine) viewRule(rs *ruleState, now time.Time) RuleState {
	r := rs.rule
	s := RuleState{
		Name: r.Name, Class: rs.class, Match: r.Match.String(), Action: r.Action(),
		Set: settings(r, e.yields.fields), CC: r.CC, Paths: rs.paths, Samples: rs.samples,
		Rollout: e.rollouts.view(r), Watch: r.Watch.Names(),
	}
	if s.Watch != nil {
		s.WatchShare = r.Watch.Share
	}
	if l := r.Limit; l != (policy.RateLimit{}) {
		s.RateLimit = &RateLimit{Total: l.Total, Connection: l.Connection}
	}
	if o := r.OnRTO; o != (policy.OnRTO{}) {
		s.OnRTO = &OnRTO{CC: o.CC, After: o.After, Share: o.Share}
	}
	if rs.root != nil {
		if s.LeftToDefault = rs.root.viewBack(now); rs.root.compared != nil {
			s.Gain = rs.root.compared.Gain()
		}
	}
	for _, f := range r.Adapt {
		s.Adapt = append(s.Adapt, f.String())
	}
	for _, f := range r.Bounds.Fields() {
		v, _ := r.Bounds.Get(f)
		s.AdaptBounds = append(s.AdaptBounds, setting(f, v, r.Source(f)))
	}
	if l := r.Learn; l != nil {
		s.Arms, s.Objective, s.HoldOut = l.Arms, l.Objective.String(), l.HoldOut
		s.SwitchRunning = l.SwitchRunning
		if s.Arms == nil {
			s.Arms = e.arms.offered.auto
		}
	}
	return s
}

// settings lists the fixed fields of a rule with the reason for each. yielded are the fields that are yielded, by bit; a rule
// that names a namespace, a pod or a cgroup has priority over that.
func settings(r *policy.Rule, yielded uint64) []Setting {
	var out []Setting
	for _, f := range r.Set.Fields() {
		v, _ := r.Set.Get(f)
		why := r.Source(f)
		if yielded&(1<<f) != 0 && !r.Match.Named() {
			why = policy.YieldedSysctl
		}
		out = append(out, setting(f, v, why))
	}
	return out
}

func setting(f tcp.Field, v uint64, why policy.Reason) Setting {
	return Setting{Field: f.String(), Value: v, Unit: tcp.Fields[f].Unit.String(), Reason: why.String()}
}

// viewer describes paths. Paths of one rule share settings, and all share the memory of
// their arms.
type viewer struct {
	e        *Engine
	now      time.Time
	settings map[*ruleState][]Setting
	arms     []PathArm
	// kernel: it is also explained why adapted fields are left to the kernel. That takes much memory for many paths.
	kernel bool
	// ofConnection: it is for one connection, in a network namespace that may not be the daemon's own. Then the caller shows
	// what is yielded there.
	ofConnection bool
}

func (v *viewer) path(p *PathState, n *node) {
	b, from := &n.belief, n.policyNode()
	set, ok := v.settings[n.rule]
	if !ok {
		yielded := v.e.yields.fields
		if v.ofConnection {
			yielded = 0
		}
		set = settings(n.rule.rule, yielded)
		v.settings[n.rule] = set
	}
	if from.policy.adapted != (policy.Adapted{}) {
		set = append(slices.Clip(set), v.adapted(from)...)
	}
	k := n.key.path()
	*p = PathState{
		Key: k, Rule: n.rule.rule.Name, Scope: k.Scope, Prefix: k.Prefix.String(),
		PolicyID: from.id, Reason: n.reason.String(), Expires: time.Unix(0, from.expires), LastUsed: time.Unix(0, n.lastUsed),
		Samples: n.samples, Set: set,
		PathMetrics: viewMetrics(&n.metrics),
		Slice:       from.policy.sliceLength(), HoldOut: holdOut(n, from), LeftToDefault: n.viewBack(v.now),
		Switched: n.running.view(v.now),
	}
	if n.adapts(tcp.RTOMin) || n.adapts(tcp.PeerOption) {
		p.RTOMinBarred = viewBarred(&n.metrics.RTOMin, v.now)
	}
	if n.adapts(tcp.RTOMin) {
		p.RTOMin = cmp.Or(time.Duration(from.policy.adapted.RTOMin), time.Duration(estimate.RTOMins[0])) * time.Millisecond
	}
	if v.kernel {
		p.Kernel = v.leftToKernel(from, n)
	}
	if v.e.opt.Flows != nil && from == n {
		if active, ok := v.e.opt.Flows(k); ok {
			p.Active = &active
		}
	}
	first := len(v.arms)
	arms := from.policy.arms.list()
	for i, cc := range arms {
		a := v.arm(n, cc, float64(from.policy.weights[i])/policy.One)
		a.Default = from.policy.arms.isDefault[i]
		v.arms = append(v.arms, a)
	}
	for i := range b.Arms { // arms with a belief that are no longer offered
		if cc := b.Arms[i].CC; !slices.Contains(arms, cc) {
			v.arms = append(v.arms, v.arm(n, cc, 0))
		}
	}
	for i := range n.retired {
		v.retire(first, n, &n.retired[i])
	}
	p.Arms = v.arms[first:len(v.arms):len(v.arms)]
}

// retire marks an arm that a guard retired on a path, among v.arms from first on.
func (v *viewer) retire(first int, n *node, r *guard.Retirement) {
	if !r.InForce(v.now.UnixNano()) {
		return
	}
	i := slices.IndexFunc(v.arms[first:], func(a PathArm) bool { return a.CC == r.CC })
	if i < 0 {
		i = len(v.arms) - first
		v.arms = append(v.arms, v.arm(n, r.CC, 0))
	}
	v.arms[first+i].Retired = &ArmRetirement{
		Guard: r.Guard, Why: r.Why, Since: time.Unix(0, r.Since), Until: time.Unix(0, r.Until),
	}
}

func (v *viewer) arm(n *node, cc tcp.CC, weight float64) PathArm {
	out := PathArm{CC: cc, Weight: weight}
	for i := range n.belief.Arms {
		if a := &n.belief.Arms[i]; a.CC == cc {
			out.Recent = n.recent(a)
			out.Count, out.Greedy, out.Mean = a.Count, a.Greedy, a.Mean
			out.StdDev = v.e.opt.Learner.StdDev(a, v.now.UnixNano())
			out.MinRTT, out.Rate = a.MinRTT, a.Rate
			if a.Last != 0 {
				out.LastUsed = time.Unix(0, a.Last)
			}
		}
	}
	if math.IsInf(out.StdDev, 0) || math.IsNaN(out.StdDev) {
		out.StdDev = 0
	}
	return out
}

// recent describes the latest connections of an arm, or of the hold-out. The reward for
// throughput is the logarithm of the goodput minus the price of retransmits and delay.
func (n *node) recent(a *learn.ArmBelief) Recent {
	var r Recent
	if a.Sent > 0 {
		r.Retrans, r.DataSegs = float64(a.Again/a.Sent), uint64(math.Ceil(float64(a.Sent)))
	}
	if n.belief.Pooled {
		return r
	}
	if a.Judged > 0 {
		r.SRTT = uint32(math.Round(float64(a.MinRTT) * math.Exp(float64(a.Stretch))))
	}
	if l := n.rule.rule.Learn; l != nil && l.Objective == learn.Throughput && a.Weight > 0 {
		r.Goodput = uint64(math.Round(math.Exp(a.Mean + float64(a.Price))))
	}
	return r
}

func viewMetrics(m *estimate.Path) PathMetrics {
	out := PathMetrics{
		MinRTT: uint32(m.MinRTT.Least()), SRTT: uint32(m.SRTT), RTTVar: uint32(m.RTTVar),
		Rate: m.Rate.Greatest(), ReceiveRate: m.ReceiveRate.Greatest(), Ssthresh: m.Ssthresh.Greatest(), Carried: m.Carried.Greatest(),
		DataSegs: uint64(math.Ceil(float64(m.Sent))),
	}
	out.LossShare, _ = m.Loss()
	if m.Policer.State != estimate.NoPolicer {
		limit, _ := m.Policer.Limit()
		out.RateLimit = uint64(limit)
		out.RateLimitWhy = policy.WhyRateLimit(m)
	}
	out.Peer = viewPeer(m.Peer)
	if m.Updated != 0 {
		out.Updated = time.Unix(0, m.Updated)
	}
	out.NetworkType, out.NetworkWhy = m.Network.Type.String(), m.WhyNetwork()
	return out
}

func viewPeer(p *estimate.Peer) *PeerTold {
	if p == nil || p.At == 0 && p.LostAt == 0 {
		return nil
	}
	out := &PeerTold{Delack: p.Delack, Receive: p.Receive}
	if p.At != 0 {
		out.At = time.Unix(0, p.At)
	}
	if p.LostAt != 0 {
		out.LostAt = time.Unix(0, p.LostAt)
	}
	return out
}

func viewBarred(r *estimate.RTOMin, now time.Time) *BarredRTOMin {
	value := r.BarredAt(now.UnixNano())
	if value == 0 {
		return nil
	}
	return &BarredRTOMin{RTOMin: value, Until: time.Unix(0, r.Until), For: r.For}
}

// RTOMins are the values of RTO_MIN that paths may have, in the form of RTOMinLabel: the kernel's
// first.
func RTOMins() (values []string) {
	for _, ms := range estimate.RTOMins {
		values = append(values, RTOMinLabel(time.Duration(ms)*time.Millisecond))
	}
	return values
}

// RTOMinLabel is a value of RTO_MIN as metrics name it: in seconds.
func RTOMinLabel(v time.Duration) string { return strconv.FormatFloat(v.Seconds(), 'g', -1, 64) }

func holdOut(n, from *node) PathHoldOut {
	slices := float64(from.policy.slices) / policy.One
	h := PathHoldOut{
		Share: slices + (1-slices)*float64(from.policy.holdOut)/policy.One, Slices: slices,
	}
	if more := from.moreHeldOut(); more > 1 {
		h.More = more
	}
	if held := n.belief.HoldOut; held != nil {
		h.Count, h.Recent = held.Count, n.recent(held)
	}
	if n.compared != nil {
		h.Gain = n.compared.Gain()
	}
	return h
}

func (n *node) viewBack(now time.Time) *LeftToDefault {
	b := n.leftNow(now.UnixNano())
	if b == nil {
		return nil
	}
	return &LeftToDefault{Why: b.Why, Since: time.Unix(0, b.Since), Until: time.Unix(0, b.Until)}
}
