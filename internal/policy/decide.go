package policy

import (
	"math"
	"slices"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/estimate"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// One is the share of all connections, as a policy counts shares.
const One = 1 << 16

// learnedShare is the share from which a best known arm counts as learned and
// no longer as explored: three connections of four.
const learnedShare = 0.75

// Input is the input of a decision about one path. It also contains scratch space: reuse
// one Input for many decisions, from one goroutine at a time.
type Input struct {
	Rule *Rule // nil is no rule
	// Arms are the congestion controls that can be used now, in order. Decide leaves out
	// those that the rule does not list.
	Arms []tcp.CC
	// Default is what connections get without tcpilot: always an arm, and in use until
	// another is shown to be better. Zero: not known.
	Default tcp.CC
	// ByName are the part of Arms that only a rule that names them uses.
	ByName []tcp.CC
	// Retired are those that the kernel refused, or that did harm on this path. They are
	// never used, even if Rule fixes one of them.
	Retired []tcp.CC
	Learner learn.Learner
	Belief  *learn.Belief  // of this path; nil is a path without samples
	Metrics *estimate.Path // of this path; nil is a path without samples
	Adapted Adapted        // of the policy in use
	First   *FirstWindows  // of this path; nil: no initial window was raised
	Root    bool           // the policy is that of all unknown paths
	Parent  *learn.Belief  // of the enclosing prefix; nil at the root
	Now     int64          // Unix nanoseconds
	// Slice is path.Policy's, for paths that learn and for rules that are rolled out to a part.
	Slice uint8
	// LeftToDefault says that the path was shown to do worse than with the default, and gets the
	// default for now.
	LeftToDefault bool
	// Observe puts every connection into the hold-out. NotRolledOut is the share (0 to 1)
	// that a partial rollout puts there, in addition to the rule's own hold-out.
	Observe      bool
	NotRolledOut float64

	// Followed: all connections of the path are followed now. Counted: those that are followed are counted. WindowUsed: a
	// raised initial window was in use lately.
	Followed, Counted, WindowUsed bool
	// Many says that many connections of the path overlap: then its hold-out is drawn in slices only.
	// MoreHeldOut is by what factor the hold-out is to be larger than usual.
	Many        bool
	MoreHeldOut float64
	// KeepRunning says that no running connection is to get another arm.
	KeepRunning bool

	unknown learn.Belief
	arms    [path.MaxArms]tcp.CC
	shares  [path.MaxArms]float64
}

// Decision is what a path gives to its new connections, and why.
type Decision struct {
	Policy path.Policy
	Reason Reason
	Best   int // index into Policy.Arms of the arm that is best known, or -1
}

// changeReporter is a learner that reports changes of paths.
type changeReporter interface {
	Changed(b *learn.Belief, now int64) bool
}

// Decide makes the policy of one path. Only the learner may allocate.
func Decide(in *Input) Decision {
	d := Decision{Best: -1}
	switch {
	case in.Rule == nil:
		d.Reason = NoRule
		return d
	case in.Rule.Leave:
		d.Reason = LeftAlone
		return d
	}
	adapted := in.Rule.Adapted(in.Metrics, in.First, in.Adapted, in.Now)
	in.follow(&d.Policy, adapted.Window != 0 && !in.LeftToDefault)
	if in.LeftToDefault {
		d.Reason = WorseThanDefault
		return d
	}
	d.Policy.Params = in.Rule.Set
	d.Policy.Defaults = in.Rule.Set.Mask() & in.Rule.ByObjective
	switch {
	case in.Rule.CC != (tcp.CC{}):
		d.Reason = in.fixed(&d)
	case in.Rule.Learn != nil:
		d.Reason = in.learned(&d)
	default:
		d.Reason = ByRule
	}
	adapted.addTo(&d.Policy, in.Metrics)
	if in.Rule.Adapts(tcp.CwndClamp) {
		d.Policy.LeastClamp = uint16(in.Rule.bound(tcp.CwndClamp, leastClamp))
	}
	in.holdOut(&d.Policy)
	return d
}

// follow says which of the path's connections are followed and counted, and whether their losses are watched.
func (in *Input) follow(p *path.Policy, window bool) {
	m := in.Metrics
	if in.Root {
		m = nil
	}
	windows := in.Rule.adaptsWindows(m, in.Followed || in.Counted)
	p.WatchLosses = in.Rule.WatchesLosses(m, in.Followed || in.Counted)
	p.CountFlows = !in.Root && (windows || in.Rule.Adapts(tcp.CwndClamp))
	p.FollowAll = in.Rule.FollowsAll(m, in.Followed, window || in.WindowUsed)
}

// FollowsAll reports whether all connections of a path are followed, also on a busy host: running ones may be given
// something, or their number decides what new ones get. m is nil for a path of which nothing is known. was says whether they
// are now, and window whether a raised initial window is in use, or was lately.
func (r *Rule) FollowsAll(m *estimate.Path, was, window bool) bool {
	return window && r.adaptsWindows(m, was) || r.names(tcp.RTOMin, tcp.DelackMax, tcp.CwndClamp, tcp.PeerOption)
}

// WatchesLosses reports whether losses on a path are watched: a connection without state is followed once it has some. m and was
// are as in FollowsAll.
func (r *Rule) WatchesLosses(m *estimate.Path, was bool) bool {
	return r.Adapts(tcp.MaxPacingRate) && !knownShort(m, was)
}

// adaptsWindows reports whether windows or pacing rates of a path may be adapted now or later.
func (r *Rule) adaptsWindows(m *estimate.Path, was bool) bool {
	return r.names(tcp.MaxPacingRate, tcp.InitCwnd, tcp.ResumeCwnd) && !knownShort(m, was)
}

// names reports whether the rule adapts one of the fields.
func (r *Rule) names(fields ...tcp.Field) bool {
	return slices.ContainsFunc(fields, func(f tcp.Field) bool { return slices.Contains(r.Adapt, f) })
}

const (
	// newHoldOut is the hold-out share of a path without observations. It falls to half of
	// that after newObservations, and never below the configured share.
	newHoldOut      = 0.1
	newObservations = 25
	// mostHeldOut bounds the share if recent slices say that the default is better: two groups are told
	// apart soonest if each has half.
	mostHeldOut = 0.5
)

// holdOut sets the shares of the hold-out. For a rule that learns, half of the configured
// share is drawn by connection, and the rest in whole slices of time, which are the unbiased
// comparison (learn.Comparison). If the rule clamps windows, all of it is: one connection without a
// clamp among others fills the queue for all of them, and gets more than its share. If many connections
// overlap, all of it is as well: single ones would be compared with those beside them. What a partial
// rollout leaves out is also drawn in slices, whether the rule learns or not. If everything is in the hold-out, request ops are not answered
// either: the kernel asks them before a connection is classified as hold-out.
func (in *Input) holdOut(p *path.Policy) {
	if p.Params.Mask() == 0 && p.NumArms == 0 && in.Rule.OnRTO == (OnRTO{}) {
		return
	}
	share, single := in.heldOut(p.Slice != 0)
	tuned := in.tuned(share)
	if in.allHeldOut(share, nil) {
		p.HoldOut, p.SwitchFrom = One, 0
		p.FollowAll, p.CountFlows, p.WatchLosses = false, false, false
		for _, f := range p.Params.Fields() {
			if tcp.Fields[f].When == tcp.AtRequest {
				p.Params.Unset(f)
				p.Adapted &^= 1 << f
			}
		}
		return
	}
	if in.NotRolledOut > 0 {
		p.Slice = in.Slice
	}
	if p.Slice == 0 { // a learner that draws for each connection
		p.HoldOut = shareOf(1 - tuned)
		return
	}
	p.HoldOut = shareOf(single)
	p.HoldSlices = shareOf(1 - tuned/(1-single))
}

// heldOut is the share of connections in the rule's own hold-out, and the part of it that is drawn by connection. slices says
// that arms are drawn for slices of time.
func (in *Input) heldOut(slices bool) (share, single float64) {
	l := in.Rule.Learn
	if l == nil || l.HoldOut <= 0 {
		return 0, 0
	}
	share, single = l.HoldOut, l.HoldOut/2
	if slices {
		share = max(share, newHoldOut*newObservations/(newObservations+in.observations()))
		if in.Rule.Adapts(tcp.CwndClamp) || in.Many {
			single = 0
		}
		share = max(share, min(share*in.MoreHeldOut, mostHeldOut))
	}
	return share, single
}

// tuned is the share of connections that are not held out, if share are in the rule's own hold-out.
func (in *Input) tuned(share float64) float64 { return (1 - in.NotRolledOut) * (1 - share) }

// allHeldOut reports whether all connections are in the hold-out, if share are in the rule's own.
func (in *Input) allHeldOut(share float64, why *estimate.Why) bool {
	switch {
	case in.Observe:
		why.Is(func() string { return "nothing is set in mode observe" })
	case in.tuned(share) <= 0:
		why.Is(func() string { return "the rule applies to none of its connections now: all are in the hold-out" })
	default:
		return false
	}
	return true
}

// observations is the number of observations of the path, or of its parent if the path has
// none: a path whose connections only receive never has any.
func (in *Input) observations() float64 {
	switch {
	case in.Belief != nil && in.Belief.Count > 0:
		return float64(in.Belief.Count)
	case in.Parent != nil:
		return float64(in.Parent.Count)
	}
	return 0
}

// fixed gives the path the one congestion control that the rule names.
func (in *Input) fixed(d *Decision) Reason {
	if slices.Contains(in.Retired, in.Rule.CC) {
		return ArmRetired
	}
	d.Policy.Arms[0] = path.Arm{CC: in.Rule.CC, Weight: One}
	d.Policy.NumArms = 1
	d.Best = 0
	return ByRule
}

// learned gives the arms the shares that the learner computes.
func (in *Input) learned(d *Decision) Reason {
	arms, base := in.usable()
	if len(arms) == 0 {
		return ArmRetired
	}
	b := in.Belief
	if b == nil {
		in.unknown = learn.Belief{Arms: in.unknown.Arms[:0]}
		b = &in.unknown
	}
	shares := in.shares[:len(arms)]
	clear(shares)
	best := in.Learner.Weights(shares, arms, base, b, in.Parent, in.Now)
	if best >= len(arms) {
		best = -1
	}
	for i, cc := range arms {
		d.Policy.Arms[i] = path.Arm{CC: cc, Default: i == base}
	}
	d.Policy.NumArms = uint8(len(arms))
	weigh(d.Policy.Arms[:len(arms)], shares)
	d.Policy.Slice = in.Slice
	d.Best = best
	if in.Rule.Learn.SwitchRunning && !in.KeepRunning {
		// Not `best`: while the default does badly, nearly all new connections may get another
		// arm before that arm is shown to be better.
		if to := usual(d.Policy.Arms[:len(arms)]); to >= 0 && to != base && !congestion.Of(arms[to]).NeedsECN {
			d.Policy.SwitchFrom, d.Policy.SwitchTo = learn.Replaced(in.Learner, arms, base, to, b, in.Now), uint8(to)
		}
	}
	if c, ok := in.Learner.(changeReporter); ok && c.Changed(b, in.Now) {
		return ChangeDetected
	}
	switch {
	case !known(b) && known(in.Parent):
		return Inherited
	case !known(b):
		return NewPath
	case best >= 0 && best == base && d.Policy.Arms[best].Weight >= learnedShare*One:
		return DefaultBest
	case best >= 0 && d.Policy.Arms[best].Weight >= learnedShare*One:
		return Learned
	}
	return Exploring
}

// usual is the arm that nearly all new connections get; -1: there is none.
func usual(arms []path.Arm) int {
	return slices.IndexFunc(arms, func(a path.Arm) bool { return a.Weight >= learnedShare*One })
}

// usable writes to in.arms the arms that the rule allows and that are available and not
// retired: the default first, if it is known. base is its index, or -1.
func (in *Input) usable() (arms []tcp.CC, base int) {
	want, auto := in.Rule.Learn.Arms, in.Rule.Learn.Arms == nil
	if auto {
		want = in.Arms
	}
	arms, base = in.arms[:0], -1
	if in.Default != (tcp.CC{}) {
		arms, base = append(arms, in.Default), 0
	}
	for _, cc := range want {
		switch {
		case len(arms) == cap(arms), cc == in.Default, !slices.Contains(in.Arms, cc), slices.Contains(in.Retired, cc):
		case auto && !Auto(cc, in.Arms, in.ByName, in.Retired):
		default:
			arms = append(arms, cc)
		}
	}
	return arms, base
}

// known reports whether b rests on any outcome.
func known(b *learn.Belief) bool {
	if b == nil {
		return false
	}
	for i := range b.Arms {
		if b.Arms[i].Count != 0 {
			return true
		}
	}
	return false
}

// weigh turns shares into weights that sum to One. The rounding error, less than one unit
// an arm, goes to the arm with the greatest share. Invalid shares (NaN, negative, none) give
// equal weights.
func weigh(arms []path.Arm, shares []float64) {
	sum, top := 0.0, 0
	for i, s := range shares {
		if !(s >= 0) || math.IsInf(s, 0) {
			sum = math.NaN()
			break
		}
		sum += s
		if s > shares[top] {
			top = i
		}
	}
	even := !(sum > 0) || math.IsInf(sum, 0)
	if even {
		top = 0
	}
	left := uint32(One)
	for i := range arms {
		part := 1 / float64(len(arms))
		if !even {
			part = shares[i] / sum
		}
		arms[i].Weight = min(uint32(part*One), left)
		left -= arms[i].Weight
	}
	arms[top].Weight += left
}

// shareOf returns a share of 0 to 1 in 1/65536; a share above 0 is never rounded to 0.
func shareOf(share float64) uint32 {
	if !(share > 0) {
		return 0
	}
	return max(1, uint32(math.Round(min(share, 1)*One)))
}
