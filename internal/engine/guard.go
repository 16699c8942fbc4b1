package engine

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Guards take an arm from a path on which it does harm. A learner finds out which
// arm serves its own connections best; guards look at what it leaves open: an arm
// that is tried again and again though it brings next to nothing, one that wins
// by filling the path with packets sent twice, and one that waits for marks which
// nobody makes. All but the last compare with the path's hold-out, so that a bad path is
// not held against the arms that are used on it.

// Guard says which of them took an arm from a path. The list is closed.
type Guard uint8

const (
	RewardCollapse   Guard = iota // its reward is far below the hold-out's
	GoodputCollapse               // its goodput is, and below the other arms', whatever the objective
	RetransmitStorm               // it sends much more again than the hold-out does
	WorseThanDefault              // all of the path, or of the rule, is: see compare.go
	MarksLost                     // it needs ECN, and there is none, or its losses come without marks
	numGuards
)

// String returns the word for snapshots, metrics and the API.
func (g Guard) String() string {
	if g >= numGuards {
		return "unknown"
	}
	return [...]string{"reward-collapse", "goodput-collapse", "retransmit-storm", "worse-than-default", "marks-lost"}[g]
}

const (
	// collapse is how far an arm's mean reward must lie below the hold-out's, a
	// factor of 2, by certain standard deviations of the difference more: it is
	// looked at after every connection, which makes three not much.
	collapse = math.Ln2
	certain  = 3
	// goodputCollapse is the same for its goodput, a factor of 4: an objective other
	// than throughput may well trade some. The other arms must be that far above as well.
	goodputCollapse = 2 * math.Ln2
	// expectedNoise is the standard deviation of one outcome that is expected of an
	// arm before its own is known, and expectedN the outcomes that this counts for:
	// learn.ThompsonOptions' Noise and NoiseN.
	expectedNoise = 0.4
	expectedN     = 4
	// Connections, ended ones, that a comparison rests on.
	leastCollapse = 10 // of the arm, for either collapse
	leastStorm    = 20 // of the arm: one loss burst is no storm
	leastHeld     = 5  // of the hold-out, for each
	// leastSlices they must have come in, of the arm: connections of one slice met the
	// same weather, the hold-out's are of all slices.
	leastSlices = 3
	// unmarkedMost is how many connections in a row may lose packets without a mark, or
	// be made without ECN, before the path's proof of ECN is given up.
	unmarkedMost = 8
	// unmarkedApart of them one after the other.
	unmarkedApart = 3

	// What was seen counts half after heldMemory outcomes of the hold-out, or after
	// guardHalfLife, whichever comes first: arms and hold-out together, so that they are
	// compared over the same time.
	heldMemory    = 50
	guardHalfLife = int64(6 * time.Hour)

	// An arm comes back after firstBan, after twice that the next time, and so on; after
	// as long a time without, it starts over.
	firstBan   = int64(10 * time.Minute)
	longestBan = int64(24 * time.Hour)
)

// guard is what the guards of a path have seen: since the hold-out was first met, or
// the path changed, or they last acted.
type guard struct {
	held    seen
	arms    []armSeen
	aged    int64  // Unix ns: since when slices have not faded
	changes uint64 // learn.Belief.Changes
}

type armSeen struct {
	cc tcp.CC
	seen
	unmarked unmarked
}

// Ban is an arm that a guard took from a path.
type Ban struct {
	CC    tcp.CC `json:"cc"`
	Guard string `json:"guard"`
	Why   string `json:"why"`   // with figures
	Since int64  `json:"since"` // Unix ns
	Until int64  `json:"until"` // Unix ns; later it is an arm again
}

// watch folds an outcome of a path's connection into what its guards go by, and
// takes the arm from the path if one of them says so.
func (e *Engine) watch(n *node, s *tcp.Sample, out learn.Outcome) {
	if !(out.Weight > 0) || math.IsInf(out.Reward, 0) || math.IsNaN(out.Reward) {
		return
	}
	held := s.Has(tcp.FlagHoldOut)
	switch {
	case !held && n.bannedUntil(s.Arm) > s.At:
		return // it began before
	case n.guard == nil && !held && !n.ecn:
		return // nothing to compare with; most paths are spared the memory
	}
	v := verdict{reward: out}
	if n.rule.rule.Learn.Objective != learn.Throughput {
		v.goodput, _ = learn.Goodput(s)
		v.goodput.Slice = out.Slice
	}
	if a := n.guardAt(s.At).fold(s, v); a != nil {
		if which, why := e.judge(n, a); why != "" {
			e.ban(n, a.cc, which, why, s.At)
		}
	}
}

// guardAt is what the guards of a path have seen, for an outcome to be added.
func (n *node) guardAt(now int64) *guard {
	if n.guard == nil || n.guard.changes != n.belief.Changes {
		n.guard = &guard{aged: now, changes: n.belief.Changes}
	}
	return n.guard
}

// fold adds an outcome, and returns the arm that it is of; nil is the hold-out.
func (g *guard) fold(s *tcp.Sample, v verdict) *armSeen {
	old := s.At-g.aged > guardHalfLife
	if old {
		g.aged = s.At
	}
	if old || g.held.reward.weight > heldMemory {
		g.fade(old)
	}
	if s.Has(tcp.FlagHoldOut) {
		g.held.add(s, v)
		return nil
	}
	a := g.arm(s.Arm)
	a.add(s, v)
	a.unmarked.meet(s)
	return a
}

func (g *guard) fade(old bool) {
	g.held.fade(old)
	for i := range g.arms {
		g.arms[i].fade(old)
	}
}

func (g *guard) arm(cc tcp.CC) *armSeen {
	i := slices.IndexFunc(g.arms, func(a armSeen) bool { return a.cc == cc })
	if i < 0 {
		i = len(g.arms)
		g.arms = append(g.arms, armSeen{cc: cc})
	}
	return &g.arms[i]
}

// judge says what an arm does wrong on a path; why is empty if it does not.
func (e *Engine) judge(n *node, a *armSeen) (which Guard, why string) {
	h := &n.guard.held
	switch {
	case n.ecn && a.unmarked.tooMany() && e.offered.needsECN(a.cc):
		return MarksLost, a.unmarked.why()
	case a.reward.collapsed(&h.reward, collapse):
		return RewardCollapse, whyBelow("reward", &a.reward, &h.reward)
	case a.goodput.collapsed(&h.goodput, goodputCollapse) && a.goodput.collapsed(n.guard.others(a.cc), goodputCollapse):
		return GoodputCollapse, whyBelow("goodput", &a.goodput, &h.goodput)
	case a.reward.ended >= leastStorm && a.reward.slices >= leastSlices && h.reward.ended >= leastHeld && stormy(&a.packets, &h.packets):
		return RetransmitStorm, fmt.Sprintf("it sent %.1f %% of its packets again, the hold-out %.1f %%, over %.0f connections and %.0f of the hold-out",
			100*a.share(), 100*h.share(), a.reward.ended, h.reward.ended)
	}
	return 0, ""
}

// others is the goodput of all arms but one, each in slices of time of its own. A
// connection held out lives among those of the arm, and may have taken from them what
// they lack.
func (g *guard) others(but tcp.CC) *series {
	var all series
	for i := range g.arms {
		if a := &g.arms[i]; a.cc != but {
			all.ended += a.goodput.ended
			all.merge(a.goodput.weight, a.goodput.mean, a.goodput.m2)
		}
	}
	return &all
}

func whyBelow(what string, arm, held *series) string {
	return fmt.Sprintf("its %s is by a factor of %.1f below the hold-out's, over %.0f connections and %.0f of the hold-out",
		what, math.Exp(held.mean-arm.mean), arm.ended, held.ended)
}

// ban takes an arm from a path for a while, and has the guards start over.
func (e *Engine) ban(n *node, cc tcp.CC, which Guard, why string, now int64) {
	i := slices.IndexFunc(n.bans, func(b Ban) bool { return b.CC == cc })
	if i < 0 {
		i = len(n.bans)
		n.bans = append(n.bans, Ban{CC: cc})
	}
	b := &n.bans[i]
	length := banLength(b.Since, b.Until, now)
	*b = Ban{CC: cc, Guard: which.String(), Why: why, Since: now, Until: now + length}
	n.guard = nil
	if which == MarksLost {
		n.ecn, n.marked = false, 0
	}
	e.guarded[which]++
	e.log.Warn("arm retired from a path", "cc", cc, "rule", n.rule.rule.Name, "path", n.key.path().Prefix,
		"reason", policy.ArmRetired, "guard", which, "why", why, "for", time.Duration(length))
	e.urge(n)
}

// banLength is how long a ban lasts after one from since to until: twice as long, unless
// as long a time has passed without. Both 0: there was none.
func banLength(since, until, now int64) int64 {
	if last := until - since; last > 0 && now-until < last {
		return min(2*last, longestBan)
	}
	return firstBan
}

// bannedUntil is the time up to which cc is no arm of the path, 0 if it always was.
func (n *node) bannedUntil(cc tcp.CC) int64 {
	for i := range n.bans {
		if n.bans[i].CC == cc {
			return n.bans[i].Until
		}
	}
	return 0
}

// retiredFor lists what must not be used on a path now.
func (e *Engine) retiredFor(n *node, now int64) []tcp.CC {
	if len(n.bans) == 0 {
		return e.retired
	}
	e.banned = append(e.banned[:0], e.retired...)
	for i := range n.bans {
		if n.bans[i].Until > now {
			e.banned = append(e.banned, n.bans[i].CC)
		}
	}
	return e.banned
}
