package engine

import (
	"cmp"
	"math"
	"net/netip"
	"time"

	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Observe updates what is known of a path by one sample. It does not keep s. Its steps:
// find rule, path and host; compare failures with those of the hold-out; note what every sample
// contains; compute the outcome, if the sample has one; compare it with the hold-out; update
// the belief; run the guards.
func (e *Engine) Observe(s *tcp.Sample) {
	e.mu.Lock()
	defer e.mu.Unlock()

	rs := e.ruleOf(s)
	switch {
	case rs == nil:
		return
	case rs.rule.Learn == nil:
		if rs.root != nil {
			e.touch(rs.root, s.At)
		}
		e.compareFailures(rs, rs.root, s)
		e.compareFixed(rs, s)
		return
	}
	at := e.find(rs, s)
	if s.SinceLosses() {
		e.observeLosses(rs, &at, s)
		e.evict(s.At)
		return
	}
	leaf := at.leaf()
	if leaf == nil {
		leaf = cmp.Or(e.nodes[rootKey(rs.class, at.scope)], rs.root)
	}
	e.compareFailures(rs, leaf, s)
	e.updateMetrics(rs, &at, s)
	e.compareRunning(leaf, s)
	if out, scored := e.outcome(rs, at, s); scored {
		leaf := e.ensureNode(rs, at, s)
		switch {
		case !e.assignSlice(leaf, s, &out):
		case leaf.hosts: // a host without a node: no level is known with which it could be compared
			e.updateBeliefs(leaf, s, out)
		default:
			e.compare(leaf, s, out)
			e.updateBeliefs(leaf, s, out)
			e.runGuards(leaf, s, out)
		}
	}
	e.evict(s.At) // last: it may drop the nodes used above
}

// ruleOf counts a sample, and returns the rule of its class; nil if the class no longer
// exists.
func (e *Engine) ruleOf(s *tcp.Sample) *ruleState {
	if int(s.Kind) < len(e.kinds) {
		e.kinds[s.Kind]++
		e.stoodFor[s.Kind] += uint64(max(1, s.StandsFor))
	}
	rs := e.rules.byClass[s.Class]
	if rs == nil {
		e.totals.Unattributed++
		return nil
	}
	sent, lost := rs.rule.FirstWindow(s)
	e.totals.InitialPackets += uint64(sent)
	e.totals.InitialLost += uint64(lost)
	rs.samples++
	return rs
}

// position is the path that a sample belongs to, and its host if the path has several.
// Either may be nil: not known yet.
type position struct {
	scope      uint64
	addr       netip.Addr
	path, host *node
}

// leaf is the host, or the path if there is no host; nil if neither is known.
func (p *position) leaf() *node {
	if p.host != nil {
		return p.host
	}
	return p.path
}

func (e *Engine) find(rs *ruleState, s *tcp.Sample) position {
	at := position{addr: s.Remote.Addr().Unmap()}
	if rs.rule.Learn.OwnScope {
		at.scope = s.NetNS
	}
	if at.path = e.node(rs, at.scope, at.addr, false); at.path != nil {
		at.host = e.host(at.path, at.addr)
	}
	return at
}

// updateMetrics records what every sample contains, whether it has an outcome or not. It creates the
// path if values can be adapted to it and the sample shows what they follow from: connections that only
// receive, that are small, or that the application limits, have no outcome.
func (e *Engine) updateMetrics(rs *ruleState, at *position, s *tcp.Sample) {
	if at.path == nil {
		if len(rs.rule.Adapt) == 0 || e.rollouts.observe || !showsPath(rs, s) {
			return
		}
		at.path = e.node(rs, at.scope, at.addr, true)
	}
	if at.host != nil {
		e.noteSample(at.host, e.ofHost(at.host, s))
	}
	e.noteSample(at.path, s)
	if at.host != nil {
		e.readapt(at.host, s)
	}
	e.readapt(at.path, s)
	e.countWithoutECN(at.leaf(), s)
}

// observeLosses records what losses show: the sample of a connection that is followed for them shows nothing else that
// is comparable with those of others.
func (e *Engine) observeLosses(rs *ruleState, at *position, s *tcp.Sample) {
	e.ignored[learn.Adopted]++
	if at.path == nil {
		if !rs.rule.Adapts(tcp.MaxPacingRate) || e.rollouts.observe || !estimate.ShowsCapacity(s) {
			return
		}
		at.path = e.node(rs, at.scope, at.addr, true)
	}
	if at.host != nil {
		at.host.metrics.Policer.Least = rs.rule.LeastPacingRate()
		at.host.metrics.ObserveLosses(e.ofHost(at.host, s))
		e.touch(at.host, s.At)
		e.readapt(at.host, s)
	}
	at.path.metrics.Policer.Least = rs.rule.LeastPacingRate()
	at.path.metrics.ObserveLosses(s)
	e.touch(at.path, s.At)
	e.readapt(at.path, s)
}

// ofHost returns a sample with the number of connections of its host. One that began before the
// host had a row of its own was counted with the path's, which may be many more.
func (e *Engine) ofHost(host *node, s *tcp.Sample) *tcp.Sample {
	if s.Flows <= 1 || host.rowAt != 0 && s.At-int64(s.Duration) >= host.rowAt {
		return s
	}
	e.hostSample = *s
	e.hostSample.Flows = 1
	return &e.hostSample
}

// showsPath reports whether a sample shows something that the rule adapts values to.
func showsPath(rs *ruleState, s *tcp.Sample) bool {
	timeout := tcp.SynAckRTO
	if s.Has(tcp.FlagOutgoing) {
		timeout = tcp.SynRTO
	}
	return estimate.ShowsCapacity(s) || s.SRTT != 0 && rs.rule.Adapts(timeout) ||
		estimate.ShowsTimeouts(s) && (rs.rule.Adapts(tcp.RTOMin) || rs.rule.Adapts(tcp.PeerOption)) ||
		s.Has(tcp.FlagPeerSent) && rs.rule.Adapts(tcp.PeerOption) ||
		estimate.ShowsWaits(s) && rs.rule.Adapts(tcp.DelackMax)
}

// readapt asks for a decision if the values that were computed for a path change with a
// sample: at once if they are too short now.
func (e *Engine) readapt(n *node, s *tcp.Sample) {
	if len(n.rule.rule.Adapt) == 0 || e.rollouts.observe || n.policy.holdOut == policy.One || n.leftToDefault(s.At) {
		return
	}
	now := n.rule.rule.Adapted(&n.metrics, n.first, n.policy.adapted, s.At)
	if now != n.policy.adapted {
		e.saves.add(n) // a path whose connections only receive has no outcome that stores it
	}
	switch {
	case now == n.policy.adapted:
		if policy.WindowRenewed(n.policy.windowExpires, policy.WindowExpires(&n.metrics)) && now.Window != 0 {
			e.queue.markUrgent(n) // a slice may be longer than the window is valid
		}
		if e.toFollow(n, s.At) != n.followsAll() || e.toWatch(n) != n.watchesLosses() || n.id == 0 && e.toCount(n, s.At) {
			e.queue.mark(n)
		}
	case now.Safer(n.policy.adapted):
		e.queue.markUrgent(n)
	default:
		e.queue.mark(n)
	}
}

// noteSample updates what every sample of a node updates: its metrics and counts, the time of its last
// use, the losses of raised initial windows, and whether the path marks.
func (e *Engine) noteSample(n *node, s *tcp.Sample) {
	n.samples++
	e.touch(n, s.At)
	n.metrics.Incast = keepIf(n.adapts(tcp.CwndClamp), n.metrics.Incast)
	n.metrics.Delack = keepIf(n.adapts(tcp.DelackMax), n.metrics.Delack)
	n.metrics.Peer = keepIf(n.adapts(tcp.PeerOption), n.metrics.Peer)
	n.metrics.Policer.Least = n.rule.rule.LeastPacingRate()
	rtoMin, delack := &n.metrics.RTOMin, n.metrics.Delack
	spurious, costly := rtoMin.Until, int64(0)
	if delack != nil {
		costly = delack.Until
	}
	n.metrics.Observe(s)
	if rtoMin.Until != spurious && (n.adapts(tcp.RTOMin) || n.adapts(tcp.PeerOption)) {
		e.barred[rtoMin.Barred]++
		e.logBarred(n, tcp.RTOMin, estimate.RTOMins[rtoMin.Barred], "spurious retransmissions", rtoMin.For)
	}
	if delack != nil && delack.Until != costly {
		e.logBarred(n, tcp.DelackMax, estimate.DelackMaxes[delack.Barred], "more ACKs than with the kernel's value", delack.For)
	}
	e.admit(n)
	if n.first == nil && n.rule.rule.Raised(s) {
		n.first = new(policy.FirstWindows)
	}
	if n.first != nil && n.first.Observe(n.rule.rule, s) && n.raisesWindows() {
		e.firstHalved(n, s.At)
	}
	if n.marks.observe(s) {
		e.saves.add(n)
		e.queue.markUrgent(n)
	}
}

// logBarred reports that a value of a field, in milliseconds, is not used on a path for a time.
func (e *Engine) logBarred(n *node, f tcp.Field, ms uint16, why string, length time.Duration) {
	e.log.Warn(f.String()+" too short for a path", f.String(), time.Duration(ms)*time.Millisecond, "rule", n.rule.rule.Name,
		"path", n.key.path().Prefix, "why", why, "for", length)
}

// halvedAgain is for how long the log does not report again that the initial windows of a path were
// halved. The reason is like that of values that are too short: estimate bars those for ten minutes.
const halvedAgain = 10 * time.Minute

// firstHalved has the bound of initial windows stored, and reports that they were halved.
func (e *Engine) firstHalved(n *node, at int64) {
	e.saves.add(n)
	e.totals.InitialHalved++
	f := n.first
	if since := at - f.LoggedAt; f.LoggedAt != 0 && since >= 0 && since < int64(halvedAgain) {
		return
	}
	f.LoggedAt = at
	e.log.Warn("raised windows lost packets on a path: halved", "most_packets", f.MostAt(at), "rule", n.rule.rule.Name,
		"path", n.key.path().Prefix, "lost_share", math.Round(1e4*float64(f.CutLoss))/1e4)
}

// keepIf is for metrics that only some rules ask for: it returns p, or a new T if p is nil; nil if
// they are not wanted.
func keepIf[T any](wanted bool, p *T) *T {
	switch {
	case !wanted:
		return nil
	case p == nil:
		return new(T)
	}
	return p
}

// outcome is the outcome of a sample for an arm or for the default; false: it has none.
func (e *Engine) outcome(rs *ruleState, at position, s *tcp.Sample) (out learn.Outcome, ok bool) {
	minRTT := uint32(0)
	if leaf := at.leaf(); leaf != nil {
		minRTT = leaf.belief.MinRTT
	}
	out, why := learn.Reward(rs.rule.Learn.Objective, s, minRTT)
	switch {
	case why != learn.Scored:
		e.ignored[why]++
		return out, false
	case s.Arm == (tcp.CC{}) && !s.Has(tcp.FlagHoldOut):
		e.noArm++
		return out, false
	}
	return out, true
}

// ensureNode returns the node that an outcome belongs to, and creates it if needed. It is the path
// if that has no room for a node of the host. Without adapt, nodes are created only here: an address
// without a scored connection gets none.
func (e *Engine) ensureNode(rs *ruleState, at position, s *tcp.Sample) *node {
	if at.path == nil {
		at.path = e.node(rs, at.scope, at.addr, true)
		e.noteSample(at.path, s)
	}
	if at.host == nil {
		if at.host = e.makeHost(at.path, at.addr, s.At); at.host != nil {
			e.noteSample(at.host, e.ofHost(at.host, s))
		}
	}
	return at.leaf()
}

// assignSlice sets the number of concurrent connections and the slice of time of an outcome;
// false: it counts for no slice, and is ignored.
func (e *Engine) assignSlice(leaf *node, s *tcp.Sample, out *learn.Outcome) bool {
	leaf.noteLifetime(s)
	out.AtOnce = leaf.sliceLifetimes().atOnce()
	if !e.slices {
		return true
	}
	slice, edge := leaf.sliceOf(s)
	if edge && !e.rollouts.observe {
		e.ignored[learn.SliceEdge]++
		return false
	}
	if e.rollouts.observe || assignmentOf(s) != learn.HoldOutConnection {
		out.Slice = slice
	}
	return true
}

// changesTransfers reports whether connections of n get adapted fields that change their transfers. Windows come and go with
// the load of the path, so that one was raised is enough: otherwise the default would be observed at busy times only.
func (n *node) changesTransfers() bool {
	row := n.policyNode()
	return row.first != nil || row.policy.adapted.ChangesTransfers()
}

// updateBeliefs updates the beliefs of a path and of its ancestors by an outcome: of the hold-out,
// of an arm, or of both if a slice of the hold-out had the default.
func (e *Engine) updateBeliefs(leaf *node, s *tcp.Sample, out learn.Outcome) {
	arm, by := s.Arm, assignmentOf(s)
	if by != learn.Treated {
		for m := leaf; m != nil; m = m.parent {
			e.opt.Learner.ObserveHoldOut(&m.belief, out)
			e.beliefChanged(m, tcp.CC{})
		}
		// If connections get no fields that change their transfers, and never did,
		// a hold-out slice is also an observation of the default as an arm, except for connections whose application chose another congestion
		// control. In mode observe all connections have the default.
		isDefault := by == learn.HoldOutSlice && leaf.rule.rule.Set.Mask() == 0 && !leaf.changesTransfers() && e.arms.offered.def != (tcp.CC{})
		if s.CC == (tcp.CC{}) || !isDefault && !e.rollouts.observe {
			return
		}
		arm = s.CC
	}
	from := leaf.policyNode()
	arms := from.policy.arms.list()
	out.Greedy = from.best >= 0 && int(from.best) < len(arms) && arms[from.best] == arm
	for m := leaf; m != nil; m = m.parent {
		if m.belief.Arms == nil { // the exact capacity, to save memory
			m.belief.Arms = make([]learn.ArmBelief, 0, max(1, len(arms)))
		}
		switch {
		case leaf.hosts && m.isRoot():
			continue // the hosts with nodes show the rule enough of this path
		case leaf.hosts: // as the first connection of a host
			learn.ObserveParent(e.opt.Learner, &learn.Belief{}, &m.belief, arm, out)
		case m == leaf:
			e.opt.Learner.Observe(&m.belief, arm, out)
		case m.isRoot():
			e.observeRoot(leaf, m, arm, out)
		default:
			learn.ObserveParent(e.opt.Learner, &leaf.belief, &m.belief, arm, out)
		}
		e.admit(m)
		e.beliefChanged(m, arm)
	}
	e.totals.ObserveCount++
}

// rootHalfLife is the half-life of node.rootEvidence in nanoseconds, as
// learn.ThompsonOptions.HalfLife.
const rootHalfLife = 6 * 3600 * 1e9

// observeRoot updates what a rule believes of all its paths by an outcome. The evidence of
// one path is bounded by learn.OnePath, and its hosts share that. Otherwise new paths would
// get what is best for the busiest network, or for a client with many addresses.
func (e *Engine) observeRoot(leaf, root *node, arm tcp.CC, out learn.Outcome) {
	path := leaf
	if path.parent != root {
		path = path.parent
		out.Weight /= float64(max(1, path.children.len))
	}
	out.AtOnce = 0 // a property of the path, not of the rule
	path.rootEvidence *= math.Exp2(-max(0, float64(out.At-path.rootEvidenceAt)) / rootHalfLife)
	path.rootEvidenceAt = learn.Later(path.rootEvidenceAt, out.At)
	if path.rootEvidence < learn.OnePath {
		path.rootEvidence += learn.ObserveParent(e.opt.Learner, &leaf.belief, &root.belief, arm, out)
	}
}

// assignmentOf says whether a connection was treated, or how it came into the hold-out.
func assignmentOf(s *tcp.Sample) learn.Assignment {
	switch {
	case !s.Has(tcp.FlagHoldOut):
		return learn.Treated
	case s.Has(tcp.FlagHoldOutSlice):
		return learn.HoldOutSlice
	}
	return learn.HoldOutConnection
}
