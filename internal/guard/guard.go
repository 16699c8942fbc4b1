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
	GoodputCollapse              // its goodput is, and below the other arms', whatever the objective
	RetransmitStorm              // it sends much more again than the hold-out does
	WorseThanDefault             // all of the path, or of the rule, is: see compare.go of package engine
	MarksLost                    // it needs ECN, and there is none, or its losses come without marks
	NumKinds
)

// String returns the word for snapshots, metrics and the API.
func (k Kind) String() string {
	if k >= NumKinds {
		return "unknown"
	}
	return [...]string{"reward-collapse", "goodput-collapse", "retransmit-storm", "worse-than-default", "marks-lost"}[k]
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
	// What was seen counts half after heldMemory outcomes of the hold-out, or after
	// halfLife, whichever comes first: arms and hold-out together, so that they are
	// compared over the same time.
	heldMemory = 50
	halfLife   = int64(6 * time.Hour)
)

// Watch is what the guards of a path have seen: since the hold-out was first met, or the
// path changed, or they last acted.
type Watch struct {
	held    outcomes
	arms    []Arm
	aged    int64 // Unix ns: since when slices have not faded
	changes uint64
}

// Arm is what they have seen of one arm.
type Arm struct {
	CC tcp.CC
	outcomes
	unmarked unmarked
}

// New returns a watch that begins at now, Unix ns, and is of one state of the path: changes
// is learn.Belief.Changes.
func New(now int64, changes uint64) *Watch { return &Watch{aged: now, changes: changes} }

// Current reports whether the path has not changed since w began; nil has not begun.
func (w *Watch) Current(changes uint64) bool { return w != nil && w.changes == changes }

// Add adds a connection's outcome, by the rule's objective and as goodput (no weight: that
// says nothing, or is the objective), and returns the arm that it is of; nil is the
// hold-out.
func (w *Watch) Add(s *tcp.Sample, reward, goodput learn.Outcome) *Arm {
	old := s.At-w.aged > halfLife
	if old {
		w.aged = s.At
	}
	if old || w.held.reward.weight > heldMemory {
		w.fade(old)
	}
	if s.Has(tcp.FlagHoldOut) {
		w.held.add(s, reward, goodput)
		return nil
	}
	a := w.arm(s.Arm)
	a.add(s, reward, goodput)
	a.unmarked.meet(s)
	return a
}

// AddWithoutECN adds a connection of an arm that needs ECN which was made without, and
// returns the arm.
func (w *Watch) AddWithoutECN(s *tcp.Sample) *Arm {
	a := w.arm(s.Arm)
	a.unmarked.add(s)
	a.unmarked.without++
	return a
}

// Forget drops what is known of an arm.
func (w *Watch) Forget(cc tcp.CC) {
	w.arms = slices.DeleteFunc(w.arms, func(a Arm) bool { return a.CC == cc })
}

func (w *Watch) fade(old bool) {
	w.held.fade(old)
	for i := range w.arms {
		w.arms[i].fade(old)
	}
}

func (w *Watch) arm(cc tcp.CC) *Arm {
	i := slices.IndexFunc(w.arms, func(a Arm) bool { return a.CC == cc })
	if i < 0 {
		i = len(w.arms)
		w.arms = append(w.arms, Arm{CC: cc})
	}
	return &w.arms[i]
}

// Judge says what an arm does wrong; why is empty if it does not. expectsMarks: it needs
// ECN, and the path has proved to mark.
func (w *Watch) Judge(a *Arm, expectsMarks bool) (which Kind, why string) {
	h := &w.held
	switch {
	case expectsMarks && a.unmarked.tooMany():
		return MarksLost, a.unmarked.why()
	case a.reward.collapsed(&h.reward, collapse):
		return RewardCollapse, whyBelow("reward", &a.reward, &h.reward)
	case a.goodput.collapsed(&h.goodput, goodputCollapse) && a.goodput.collapsed(w.others(a.CC), goodputCollapse):
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
func (w *Watch) others(but tcp.CC) *series {
	var all series
	for i := range w.arms {
		if a := &w.arms[i]; a.CC != but {
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
