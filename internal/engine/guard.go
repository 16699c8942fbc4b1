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
// nobody makes. The first two compare with the path's hold-out, so that a bad path is
// not held against the arms that are used on it.

// Guard says which of them took an arm from a path. The list is closed.
type Guard uint8

const (
	RewardCollapse  Guard = iota // its reward is far below the hold-out's
	RetransmitStorm              // it sends much more again than the hold-out does
	MarksLost                    // it needs ECN, and there is none, or its losses come without marks
	numGuards
)

// String returns the word for snapshots, metrics and the API.
func (g Guard) String() string {
	if g >= numGuards {
		return "unknown"
	}
	return [...]string{"reward-collapse", "retransmit-storm", "marks-lost"}[g]
}

const (
	// collapse is how far an arm's mean reward must lie below the hold-out's, a
	// factor of 2, by certain standard deviations of the difference more: it is
	// looked at after every connection, which makes three not much.
	collapse = math.Ln2
	certain  = 3
	// expectedNoise is the standard deviation of one outcome that is expected of an
	// arm before its own is known, and expectedN the outcomes that this counts for:
	// learn.ThompsonOptions' Noise and NoiseN.
	expectedNoise = 0.4
	expectedN     = 4
	// Connections, ended ones, that a comparison rests on.
	leastCollapse = 10 // of the arm
	leastStorm    = 20 // of the arm: one loss burst is no storm
	leastHeld     = 5  // of the hold-out, for either
	// unmarkedMost is how many connections in a row may lose packets without a mark, or
	// be made without ECN, before the path's proof of ECN is given up.
	unmarkedMost = 8

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
	faded   int64  // Unix ns
	changes uint64 // learn.Belief.Changes
}

type armSeen struct {
	cc tcp.CC
	seen
	unmarked int // latest connections in a row that should have met a mark and did not
	without  int // of these, made without ECN
}

// seen is what connections of one kind did.
type seen struct {
	ended  float64 // connections
	weight float64 // of outcomes
	reward float64 // mean
	m2     float64 // sum of squared deviations from it
	packets
}

func (o *seen) add(s *tcp.Sample, out learn.Outcome) {
	if s.Kind == tcp.KindClose {
		o.ended++
	}
	o.weight += out.Weight
	d, part := out.Reward-o.reward, out.Weight/o.weight
	o.reward += d * part
	o.m2 += out.Weight * d * (out.Reward - o.reward)
	o.packets.add(s)
}

func (o *seen) fade() {
	o.ended /= 2
	o.weight /= 2
	o.m2 /= 2
	o.packets.fade()
}

// variance of the mean reward.
func (o *seen) variance() float64 {
	one := (expectedN*expectedNoise*expectedNoise + o.m2) / (expectedN + max(0, o.weight-1))
	return one / o.weight
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
	if a := n.guardAt(s.At).fold(s, out); a != nil {
		if which, why := e.judge(n, a); why != "" {
			e.ban(n, a.cc, which, why, s.At)
		}
	}
}

// guardAt is what the guards of a path have seen, for an outcome to be added.
func (n *node) guardAt(now int64) *guard {
	if n.guard == nil || n.guard.changes != n.belief.Changes {
		n.guard = &guard{faded: now, changes: n.belief.Changes}
	}
	return n.guard
}

// fold adds an outcome, and returns the arm that it is of; nil is the hold-out.
func (g *guard) fold(s *tcp.Sample, out learn.Outcome) *armSeen {
	if g.held.weight > heldMemory || s.At-g.faded > guardHalfLife {
		g.fade(s.At)
	}
	if s.Has(tcp.FlagHoldOut) {
		g.held.add(s, out)
		return nil
	}
	a := g.arm(s.Arm)
	a.add(s, out)
	a.meet(s)
	return a
}

func (g *guard) fade(now int64) {
	g.held.fade()
	for i := range g.arms {
		g.arms[i].fade()
	}
	g.faded = now
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
	case n.ecn && a.unmarked >= unmarkedMost && e.offered.needsECN(a.cc):
		return MarksLost, a.whyUnmarked()
	case h.ended < leastHeld:
	case a.ended >= leastCollapse && h.reward-a.reward-certain*math.Sqrt(a.variance()+h.variance()) >= collapse:
		return RewardCollapse, fmt.Sprintf("its reward is by a factor of %.1f below the hold-out's, over %.0f connections and %.0f of the hold-out",
			math.Exp(h.reward-a.reward), a.ended, h.ended)
	case a.ended >= leastStorm && stormy(&a.packets, &h.packets):
		return RetransmitStorm, fmt.Sprintf("it sent %.1f %% of its packets again, the hold-out %.1f %%, over %.0f connections and %.0f of the hold-out",
			100*a.share(), 100*h.share(), a.ended, h.ended)
	}
	return 0, ""
}

// ban takes an arm from a path for a while, and has the guards start over.
func (e *Engine) ban(n *node, cc tcp.CC, which Guard, why string, now int64) {
	i := slices.IndexFunc(n.bans, func(b Ban) bool { return b.CC == cc })
	if i < 0 {
		i = len(n.bans)
		n.bans = append(n.bans, Ban{CC: cc})
	}
	b := &n.bans[i]
	length := firstBan
	if last := b.Until - b.Since; last > 0 && now-b.Until < last {
		length = min(2*last, longestBan)
	}
	*b = Ban{CC: cc, Guard: which.String(), Why: why, Since: now, Until: now + length}
	n.guard = nil
	if which == MarksLost {
		n.ecn = false
	}
	e.guarded[which]++
	e.log.Warn("arm retired from a path", "cc", cc, "rule", n.rule.rule.Name, "path", n.key.path().Prefix,
		"reason", policy.ArmRetired, "guard", which, "why", why, "for", time.Duration(length))
	e.mark(n)
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
