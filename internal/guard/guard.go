package guard

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Kind says why connections of a path do not get an arm. The list is closed.
type Kind uint8

const (
	RewardCollapse   Kind = iota // the arm's reward is far below the hold-out's
	GoodputCollapse              // its goodput is far below the hold-out's and the other arms', under any objective
	RetransmitStorm              // it retransmits much more than the hold-out
	WorseThanDefault             // the whole path, or rule, is worse than the default: see compare.go of package engine
	MarksLost                    // it needs ECN, and ECN is not negotiated, or its losses come without marks
	SwitchedWorse                // running connections that were switched to it did worse than those that kept theirs: see running.go there
	NumKinds
)

// String returns the word for snapshots, metrics and the API.
func (k Kind) String() string {
	if k >= NumKinds {
		return "unknown"
	}
	return [...]string{"reward-collapse", "goodput-collapse", "retransmit-storm", "worse-than-default", "marks-lost", "switched-worse"}[k]
}

const (
	// An arm's mean reward has collapsed if it lies below the hold-out's by collapse, a
	// factor of 2, plus `certain` standard deviations of the difference. Fewer than three would
	// cause false alarms, because the check runs after every connection.
	collapse = math.Ln2
	certain  = 3
	// goodputCollapse is the same for goodput, a factor of 4, because other objectives may
	// trade some goodput. The other arms must be above by as much, too.
	goodputCollapse = 2 * math.Ln2
	// expectedNoise is the standard deviation expected of one outcome before the arm's own
	// is known; it counts as expectedN outcomes (learn.ThompsonOptions' Noise and NoiseN).
	expectedNoise = 0.4
	expectedN     = 4
	// Least numbers of closed connections for a comparison.
	leastCollapse = 10 // of the arm, for either collapse
	leastStorm    = 20 // of the arm: a single burst of losses is not a storm
	leastHoldOut  = 5  // of the hold-out, for each comparison
	// leastSlices is the least number of slices with connections of the arm: those of one
	// slice met the same traffic, while the hold-out's are from all slices.
	leastSlices = 3
	// All counts are halved after holdOutMemory outcomes of the hold-out, or after halfLife,
	// whichever comes first: those of arms and hold-out together, so that they cover the
	// same time.
	holdOutMemory = 50
	halfLife      = int64(6 * time.Hour)
)

// State is that of the guards of a path: the connections since the first one of the
// hold-out, or since the path changed, or since a guard last acted.
type State struct {
	holdOut outcomes
	arms    []Arm
	aged    int64 // Unix ns: when the counts were last halved by time
	changes uint64
}

// Arm is the state of the guards for one arm.
type Arm struct {
	CC tcp.CC
	outcomes
	unmarked unmarked
}

// New returns a State that begins at now, Unix ns. It is valid as long as the path does not
// change: changes is learn.Belief.Changes.
func New(now int64, changes uint64) *State { return &State{aged: now, changes: changes} }

// Current reports whether the path has not changed since g began; false for nil.
func (g *State) Current(changes uint64) bool { return g != nil && g.changes == changes }

// Add adds a connection's outcomes: by the rule's objective, and by goodput (its weight is 0
// if there is none, or if goodput is the objective). It returns the arm; nil is the hold-out.
func (g *State) Add(s *tcp.Sample, reward, goodput learn.Outcome) *Arm {
	old := s.At-g.aged > halfLife
	if old {
		g.aged = s.At
	}
	if old || g.holdOut.reward.weight > holdOutMemory {
		g.fade(old)
	}
	if s.Has(tcp.FlagHoldOut) {
		g.holdOut.add(s, reward, goodput)
		return nil
	}
	a := g.arm(s.Arm)
	a.add(s, reward, goodput)
	a.unmarked.observe(s)
	return a
}

// AddWithoutECN adds a connection without ECN of an arm that needs it, and returns the arm.
func (g *State) AddWithoutECN(s *tcp.Sample) *Arm {
	a := g.arm(s.Arm)
	a.unmarked.add(s)
	a.unmarked.without++
	return a
}

// Forget drops what is known of an arm.
func (g *State) Forget(cc tcp.CC) {
	g.arms = slices.DeleteFunc(g.arms, func(a Arm) bool { return a.CC == cc })
}

func (g *State) fade(old bool) {
	g.holdOut.fade(old)
	for i := range g.arms {
		g.arms[i].fade(old)
	}
}

func (g *State) arm(cc tcp.CC) *Arm {
	i := slices.IndexFunc(g.arms, func(a Arm) bool { return a.CC == cc })
	if i < 0 {
		i = len(g.arms)
		g.arms = append(g.arms, Arm{CC: cc})
	}
	return &g.arms[i]
}

// Judge says what harm an arm does; why is empty if it does none. expectsMarks: it needs ECN,
// and the path has proved to mark.
func (g *State) Judge(a *Arm, expectsMarks bool) (which Kind, why string) {
	h := &g.holdOut
	switch {
	case expectsMarks && a.unmarked.tooMany():
		return MarksLost, a.unmarked.why()
	case a.reward.collapsed(&h.reward, collapse):
		return RewardCollapse, whyBelow("reward", &a.reward, &h.reward)
	case a.goodput.collapsed(&h.goodput, goodputCollapse) && a.goodput.collapsed(g.others(a.CC), goodputCollapse):
		return GoodputCollapse, whyBelow("goodput", &a.goodput, &h.goodput)
	case a.reward.ended >= leastStorm && a.reward.slices >= leastSlices && h.reward.ended >= leastHoldOut && stormy(&a.packets, &h.packets):
		return RetransmitStorm, fmt.Sprintf("it retransmitted %.1f %% of its packets, the hold-out %.1f %%, over %.0f connections and %.0f of the hold-out",
			100*a.share(), 100*h.share(), a.reward.ended, h.reward.ended)
	}
	return 0, ""
}

// others is the goodput of all arms but one, each in its own slices of time. It is compared
// as well, because a single connection of the hold-out competes with those of the arm, and
// may have taken its goodput from them.
func (g *State) others(but tcp.CC) *series {
	var all series
	for i := range g.arms {
		if a := &g.arms[i]; a.CC != but {
			all.ended += a.goodput.ended
			all.merge(a.goodput.weight, a.goodput.mean, a.goodput.m2)
		}
	}
	return &all
}

func whyBelow(what string, arm, holdOut *series) string {
	return fmt.Sprintf("its %s is %.1f times less than the hold-out's, over %.0f connections and %.0f of the hold-out",
		what, math.Exp(holdOut.mean-arm.mean), arm.ended, holdOut.ended)
}
