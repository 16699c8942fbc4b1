package learn

import (
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Published values of bpftune's congestion-control tuner: one choice in 20 is
// random, and a cost moves by two bit shifts, 1/4, of its error.
const (
	PublishedEpsilon = 0.05
	PublishedRate    = 0.25
)

// epsilonGreedy is the algorithm that bpftune published and still uses. It is
// kept for comparison, faults included, except for its integer arithmetic (MB/s,
// scaled costs). Two rules of bpftune that are not learning are left out: it does
// nothing until a remote's 4th connection, and it moves any connection with more
// than 1/64 of its segments retransmitted to BBR for good.
type epsilonGreedy struct{ epsilon, rate float64 }

// NewEpsilonGreedy returns the published learner. It chooses the arm of least cost,
// and with probability epsilon (0 to 1; published 0.05) any arm. An arm's cost is
//
//	(min_rtt - least min_rtt ever) / least
//	  + (greatest rate ever - greatest rate ever of this arm) / greatest
//
// updated by the delta rule with the given rate (0 to 1; published 0.25). An arm
// without outcomes costs 0, the best; equal arms share. Round-trip times are
// microseconds, rates bytes/s. It ignores Reward, Weight, parent and time.
func NewEpsilonGreedy(epsilon, rate float64) Learner {
	return epsilonGreedy{epsilon: epsilon, rate: rate}
}

func (epsilonGreedy) Name() string { return "epsilon-greedy" }

func (e epsilonGreedy) Observe(b *Belief, cc tcp.CC, o Outcome) {
	if !o.usable() {
		return
	}
	b.Count++
	b.Last = max(b.Last, o.At)
	e.fold(b, b.arm(cc), o)
}

func (e epsilonGreedy) ObserveHoldOut(b *Belief, o Outcome) {
	if !o.usable() {
		return
	}
	b.Last = max(b.Last, o.At)
	h := b.heldOut()
	h.Count++
	h.Last = max(h.Last, o.At)
	// Not in the published algorithm: a plain mean of the reward, so that the gain
	// is measured with this learner too.
	h.Mean += (o.Reward - h.Mean) / float64(h.Count)
}

func (e epsilonGreedy) fold(b *Belief, a *ArmBelief, o Outcome) {
	a.Count++
	a.Trials++
	if o.Greedy {
		a.Greedy++
	}
	a.Last, a.SeenAt = max(a.Last, o.At), b.Count
	if o.MinRTT > 0 && (a.MinRTT == 0 || o.MinRTT < a.MinRTT) {
		a.MinRTT = o.MinRTT
	}
	if o.MinRTT > 0 && (b.MinRTT == 0 || o.MinRTT < b.MinRTT) {
		b.MinRTT = o.MinRTT
	}
	a.Rate = max(a.Rate, o.Rate)
	b.Rate = max(b.Rate, a.Rate)

	cost := 0.0
	if b.MinRTT > 0 && o.MinRTT > 0 {
		cost += float64(o.MinRTT-b.MinRTT) / float64(b.MinRTT)
	}
	if b.Rate > 0 {
		cost += float64(b.Rate-a.Rate) / float64(b.Rate)
	}
	if a.Mean == 0 { // published: a cost of 0 is replaced, not moved
		a.Mean = -cost
		return
	}
	a.Mean += e.rate * (-cost - a.Mean)
}

func (e epsilonGreedy) Weights(w []float64, arms []tcp.CC, _ int, b, _ *Belief, _ int64) int {
	if len(arms) == 0 {
		return -1
	}
	value := func(i int) float64 {
		if a := b.find(arms[i]); a != nil {
			return a.Mean
		}
		return 0
	}
	top, ties, best := value(0), 1, 0
	for i := 1; i < len(arms); i++ {
		switch v := value(i); {
		case v > top:
			top, ties, best = v, 1, i
		case v == top:
			ties++
		}
	}
	for i := range arms {
		w[i] = e.epsilon / float64(len(arms))
		if value(i) == top {
			w[i] += (1 - e.epsilon) / float64(ties)
		}
	}
	if ties > 1 || b.find(arms[best]) == nil {
		return -1
	}
	return best
}

func (epsilonGreedy) StdDev(*ArmBelief, int64) float64 { return 0 }
