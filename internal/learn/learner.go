package learn

import (
	"fmt"
	"math"
	"slices"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Objective is what a rule optimizes its connections for.
type Objective uint8

const (
	Throughput Objective = iota // log of goodput
	Latency                     // log of srtt over the path's min_rtt, and retransmits
	FCT                         // log of completion time within a size bucket
	Realtime                    // latency and its variation before anything else
)

// String returns the objective's key in the configuration.
func (o Objective) String() string {
	return [...]string{"throughput", "latency", "fct", "realtime"}[o]
}

// ParseObjective finds an objective by its key in the configuration.
func ParseObjective(s string) (Objective, error) {
	for o := Throughput; o <= Realtime; o++ {
		if s == o.String() {
			return o, nil
		}
	}
	return 0, fmt.Errorf("objective %q: want throughput, latency, fct or realtime", s)
}

// Outcome is what one sample says about the arm that its connection used.
type Outcome struct {
	At     int64   // Unix nanoseconds
	Reward float64 // natural log; greater is better
	// Price, 0 or more, is what was subtracted from Reward for costs to other connections:
	// packets sent twice, and the queue. Reward+Price is the speed for the connection's own
	// user, which is compared with the default's.
	Price  float64
	Weight float64 // evidence, above 0; 1 is one informative connection
	MinRTT uint32  // microseconds; 0 is unknown
	Rate   uint64  // delivery rate, bytes per second; 0 is unknown
	Loss   float64 // retransmitted share of the data packets, 0 to 1; negative is unknown
	// Sent and Again count data packets, and those of them that were retransmits. Sent 0:
	// unknown. Stretch is ln(srtt/min_rtt). Queue is the same without what jitter and delayed
	// ACKs add, ln((srtt-rttvar)/min_rtt), how full the queue was: it tells random loss from
	// an overflowing queue.
	Sent, Again, Stretch, Queue float64
	Greedy                      bool // the arm was the best known when it was drawn
	// Slice is the slice of time that the outcome belongs to, as the time at which the slice
	// began (Unix nanoseconds). Connections of a slice share an arm and the path: together
	// they are one observation. 0: this outcome is an observation by itself.
	Slice int64
	// AtOnce is the mean number of concurrent connections of the path, by Little's law. If
	// the path is a host, it is that of the network whose hosts share a draw. 0 is unknown.
	AtOnce float64
	// Oversampled is by what factor the path holds out more slices than usual. A slice held out counts
	// for less in a Comparison then, so that both groups cover the same time. Below 1 is 1.
	Oversampled float64
}

// LogSpeed is the natural log of how fast the connection was for its own user: bytes
// (or completions of its size) over the time that they took.
func (o *Outcome) LogSpeed() float64 { return o.Reward + o.Price }

// maxReward is far beyond any logarithm of a measured ratio or rate.
const maxReward = 1e3

// usable reports whether an outcome may update a belief: not if a value cannot be stored
// as JSON, or is so large that no belief recovers from it.
func (o *Outcome) usable() bool {
	return o.Weight > 0 && !math.IsInf(o.Weight, 0) &&
		math.Abs(o.Reward) <= maxReward && math.Abs(o.Price) <= maxReward // false for NaN
}

// Belief is what is known about the arms of one path. Its exported fields are
// what the store keeps.
type Belief struct {
	Arms    []ArmBelief `json:"arms"`
	HoldOut *ArmBelief  `json:"hold_out,omitempty"`    // connections left at kernel defaults; nil: there were none
	MinRTT  uint32      `json:"min_rtt_us"`            // microseconds, lowest recent value of any arm; 0 is unknown
	Rate    uint64      `json:"rate_bytes_per_second"` // bytes/s, greatest recent of any arm; 0 is unknown
	Last    int64       `json:"last_ns"`               // Unix ns of the latest outcome
	Began   int64       `json:"began_ns"`              // Unix ns at which the latest observation began
	// Count is the number of observations of all arms: outcomes, or slices of them.
	Count uint64 `json:"count"`
	// Gap is the recent mean time between observations in seconds: with many of them a
	// second, a small share explores as fast as a large one.
	Gap     float64 `json:"gap_seconds"`
	Changes uint64  `json:"changes"`    // times that the path was seen to change
	Changed int64   `json:"changed_ns"` // Unix ns of the latest change; 0 is never
	// ChangedAt is Count at the latest change.
	ChangedAt uint64 `json:"changed_at"`
	// Fall is how far the reward fell at the latest change, in natural log; 0 if it did not
	// fall.
	Fall float64 `json:"fall,omitempty"`
	// AtOnce is how many connections there are at a time, by the latest outcome; 0 is
	// unknown.
	AtOnce float32 `json:"at_once,omitempty"`
	// Level is the mean reward of the first connections of paths, without the effect of
	// their arms. Only a pooled belief has it.
	Level Signal `json:"level"`
	// Pooled says that the belief is about many paths: its means are relative to
	// each path's own level, and its spread is the spread between paths.
	Pooled bool `json:"pooled,omitempty"`
}

// heldOut is what is known about connections left at kernel defaults. Most paths have few connections, and
// none of them held out.
func (b *Belief) heldOut() *ArmBelief {
	if b.HoldOut == nil {
		b.HoldOut = &ArmBelief{}
	}
	return b.HoldOut
}

// setBack takes back times that are later than an outcome because the clock was set back since: evidence would
// not age, and the time between observations would seem to be none, until the clock is where it was, also after a restart.
func (b *Belief) setBack(at int64) {
	set := func(t *int64) {
		if *t-at > late {
			*t = at
		}
	}
	set(&b.Last)
	set(&b.Began)
	set(&b.Changed)
	for i := range b.Arms {
		set(&b.Arms[i].Last)
	}
	if b.HoldOut != nil {
		set(&b.HoldOut.Last)
	}
}

// Clone returns a copy that shares nothing with b.
func (b *Belief) Clone() Belief {
	c := *b
	c.Arms = slices.Clone(b.Arms)
	if b.HoldOut != nil {
		h := *b.HoldOut
		c.HoldOut = &h
	}
	return c
}

const (
	// Overlapping is the mean number of concurrent connections of a path from which a trial
	// affects more than one connection.
	Overlapping = 1.5
	// manyOverlapping is the mean number from which a trial or a search affects many.
	manyOverlapping = 6
)

// overlaps reports whether connections of the path usually overlap.
func (b *Belief) overlaps() bool { return b.AtOnce >= Overlapping }

// manyOverlap reports whether many connections overlap.
func (b *Belief) manyOverlap() bool { return b.AtOnce >= manyOverlapping }

// ArmBelief is what is known about one arm of a path.
type ArmBelief struct {
	CC     tcp.CC `json:"cc"`
	Count  uint64 `json:"count"`                 // outcomes
	Greedy uint64 `json:"greedy"`                // outcomes with Outcome.Greedy
	Last   int64  `json:"last_ns"`               // Unix ns of the latest outcome
	SeenAt uint64 `json:"seen_at"`               // Belief.Count at the latest outcome
	Rate   uint64 `json:"rate_bytes_per_second"` // bytes/s; 0 is unknown

	// Mean is the believed reward; for epsilon-greedy the negated published cost.
	Mean float64 `json:"mean"`
	// Weight and M2 are the discounted evidence and the discounted sum of squared
	// deviations from Mean, both as of Last; epsilon-greedy leaves them 0.
	Weight float64 `json:"weight"`
	M2     float64 `json:"m2"`
	// Trials is the evidence since the path was first seen, or since it changed.
	Trials float64 `json:"trials"`
	// Up and Down watch the reward for a change, Loss the share of retransmits.
	Up   Run    `json:"up"`
	Down Run    `json:"down"`
	Loss Signal `json:"loss"`
	// Scatter is the variance of outcomes within one observation; M2 is of
	// observations.
	Scatter float32 `json:"scatter"`
	// Within is the variance within observations of two outcomes or more. Beyond counts the
	// outcomes after the first of each observation, discounted.
	Within float32 `json:"within,omitempty"`
	Beyond float32 `json:"beyond,omitempty"`
	// Calm is the variance of observations before Up or Down began to grow: a change must not raise the
	// noise by which it is judged.
	Calm float32 `json:"calm,omitempty"`
	// Given is the evidence, discounted as of Last, that this path gave to the enclosing
	// prefix. It is subtracted from the prefix's evidence, so as not to count twice.
	Given float32 `json:"given"`
	// Price is the believed Outcome.Price.
	Price float32 `json:"price"`
	// Stretch is the mean of Outcome.Stretch, over the same outcomes as Losses.
	Stretch float32 `json:"stretch"`
	// Tail is how outcomes spread on the slow side of the mean.
	Tail Tail `json:"tail"`
	// Losses are those of the latest outcomes, discounted; Since are those of the outcomes
	// since Loss began to rise, empty if it does not.
	Losses
	Since Losses `json:"since"`
	// MinRTT is the least round-trip time, microseconds; 0 is unknown. It stands beside other
	// fields of 4 bytes, so that none are lost to alignment.
	MinRTT uint32 `json:"min_rtt_us"`

	open slice
}

// Losses sums up the packets and retransmits of outcomes, and how full the queue was.
type Losses struct {
	Sent   float32 `json:"sent"`             // data packets
	Again  float32 `json:"again"`            // retransmits among them
	Judged float32 `json:"judged,omitempty"` // outcomes
	Resent float32 `json:"resent,omitempty"` // outcomes with retransmits

	Queue float32 `json:"queue"` // mean of Outcome.Queue
}

// add adds an outcome and discounts the earlier ones by keep, 0 to 1.
func (l *Losses) add(o Outcome, keep float32) {
	if o.Sent == 0 {
		return
	}
	resent := float32(0)
	if o.Again > 0 {
		resent = 1
	}
	l.Sent, l.Again = l.Sent*keep+float32(o.Sent), l.Again*keep+float32(o.Again)
	l.Judged, l.Resent = l.Judged*keep+1, l.Resent*keep+resent
	l.Queue += (float32(o.Queue) - l.Queue) / l.Judged
}

// allAlike is the least ratio of the connections that had losses to the number that would
// have had any if losses were random.
const allAlike = 0.75

// alike reports whether losses were spread evenly over connections.
func (l *Losses) alike() bool {
	some := 1 - math.Exp(-float64(l.Again/l.Judged)) // would have any, by Poisson
	return float64(l.Resent/l.Judged) > allAlike*some
}

// logSpeed is the believed Outcome.LogSpeed.
func (a *ArmBelief) logSpeed() float64 { return a.Mean + float64(a.Price) }

// arm returns the belief about cc, adding it if the path has none yet.
func (b *Belief) arm(cc tcp.CC) *ArmBelief {
	if a := b.find(cc); a != nil {
		return a
	}
	b.Arms = append(b.Arms, ArmBelief{CC: cc})
	return &b.Arms[len(b.Arms)-1]
}

// find returns the belief about cc, nil if the path has none.
func (b *Belief) find(cc tcp.CC) *ArmBelief {
	if b == nil {
		return nil
	}
	for i := range b.Arms {
		if b.Arms[i].CC == cc {
			return &b.Arms[i]
		}
	}
	return nil
}

// Learner turns outcomes into shares. Implementations keep no state of their
// own: everything that they know is in the Belief.
type Learner interface {
	// Name is the learner's key in the configuration.
	Name() string
	// Observe folds an outcome of cc into b. An outcome without weight, or whose
	// reward is not finite, is left out.
	Observe(b *Belief, cc tcp.CC, o Outcome)
	// ObserveHoldOut folds an outcome of a hold-out connection into b.
	ObserveHoldOut(b *Belief, o Outcome)
	// Weights writes to w[i] the share, 0 to 1, that arms[i] should get of the
	// path's new connections; the shares sum to 1. base is the index of the default:
	// what a connection gets without tcpilot; -1 if the default is not one of the arms. b may be
	// nil: nothing is known. parent is the belief of the nearest enclosing prefix that
	// has any, nil if none has. best is the arm that is now in use, or -1 while
	// nothing is known. Arms that b knows but that are not in arms are ignored.
	Weights(w []float64, arms []tcp.CC, base int, b, parent *Belief, now int64) (best int)
	// StdDev is the standard deviation of the belief in arm's mean; 0 if the
	// learner has none.
	StdDev(arm *ArmBelief, now int64) float64
}

// ObserveParent folds an outcome of a connection of the path child, which the
// child has observed already, into the belief of an enclosing prefix. Use it instead of
// l.Observe(parent, ...): a learner with support for hierarchies subtracts the child's own
// level first. Otherwise an arm would look good only because fast paths use it. It returns
// the evidence that the outcome gave to the parent, in outcomes.
func ObserveParent(l Learner, child, parent *Belief, cc tcp.CC, o Outcome) float64 {
	if p, ok := l.(interface {
		pool(child, parent *Belief, cc tcp.CC, o Outcome) float64
	}); ok {
		return p.pool(child, parent, cc, o)
	}
	l.Observe(parent, cc, o)
	return min(o.Weight, 1)
}

// seconds between two Unix nanosecond times; 0 if to is before from, because samples may
// arrive out of order.
func seconds(from, to int64) float64 {
	return max(0, float64(to-from)*1e-9)
}
