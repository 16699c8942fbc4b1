package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

const (
	holdOut = 0.02 // share of connections left at the default arm, as the policy does
	baseRTT = 2000 // microseconds
	packets = 1000 // of one connection, for the noise of its loss
)

// Result is what a run cost.
type Result struct {
	// Regret is the sum, over connections that the learner decided, of the share of
	// goodput (by the mean of times) lost against the path's best arm: 1 is the goodput of one
	// connection.
	Regret float64
	// Connections is the number of connections that the learner decided.
	Connections int
	// BestShareLast20 is the share of the last 20 connections of each path that
	// used its best arm, 0 to 1, and GoodputLast20 their goodput over the best's.
	BestShareLast20 float64
	GoodputLast20   float64
	// FirstUse and Recovery hold, for each change of the first path, how many
	// connections passed until the new best arm was first used, and until 4 of 5
	// in a row used an arm within 10 % of it. A change not recovered from by the
	// next one counts as the number of connections between.
	FirstUse []int
	Recovery []int
	// FarWorse is, for each of these changes, how many of the next 20 connections began with an arm
	// that was worth a fifth of the best or less.
	FarWorse []int
	// Changes seen by the learner, false alarms included.
	Changes int
	// Times is the time per byte of each connection that the learner decided, and Default
	// the time that it would have taken with the default.
	Times, Default []float64
}

// MeanTime and P95Time are the connections' times over the default's: in the mean, and of
// the one in twenty that takes longest.
func (r *Result) MeanTime() float64 { return mean(r.Times) / mean(r.Default) }
func (r *Result) P95Time() float64  { return quantile(r.Times, 0.95) / quantile(r.Default, 0.95) }

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

func quantile(v []float64, q float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[int(q*float64(len(v)-1))]
}

// world is one run in progress.
type world struct {
	s       *Scenario
	l       learn.Learner
	rng     *rand.Rand
	arms    []tcp.CC
	root    *learn.Belief
	paths   []*simPath
	now     int64
	pending []pending
	weights []float64
	slice   int64 // the latest, with its arm
	drawn   int
	greedy  bool
	result  Result
}

type simPath struct {
	group  *Group
	belief *learn.Belief
	offset []float64 // of ln(goodput), each arm
	n      int       // connections so far
	used   []use
}

// use is one decided connection: the arm, and its goodput over the best's.
type use struct {
	conn  int
	best  bool
	ratio float64
}

type pending struct {
	p       *simPath
	cc      tcp.CC
	out     learn.Outcome
	holdOut bool
}

// Run simulates a learner in a scenario. Every path has a belief, and all paths share the
// belief of an enclosing prefix. A new path starts with the shares of that prefix, as by the
// kernel's longest match.
func Run(s *Scenario, l learn.Learner, rng *rand.Rand) Result {
	w := &world{s: s, l: l, rng: rng, arms: s.arms(), root: &learn.Belief{}, now: 1_700_000_000_000_000_000}
	w.weights = make([]float64, len(w.arms))
	batch := max(1, s.Batch)
	for step, gi := range w.schedule() {
		w.connect(w.paths[gi])
		w.now += int64(s.Gap)
		if (step+1)%batch == 0 {
			w.report()
		}
	}
	w.report()
	w.summarise()
	return w.result
}

// schedule creates the paths and returns which one each connection is on.
func (w *world) schedule() []int {
	type slot struct {
		key  float64
		path int
	}
	var slots []slot
	for gi := range w.s.Groups {
		g := &w.s.Groups[gi]
		first := len(w.paths)
		for range g.Paths {
			p := &simPath{group: g, offset: make([]float64, len(w.arms))}
			level := w.s.Level * w.rng.NormFloat64()
			for i := range p.offset {
				p.offset[i] = level + w.s.Spread*w.rng.NormFloat64()
			}
			w.paths = append(w.paths, p)
		}
		span := float64(g.Paths * g.Connections)
		for p := first; p < len(w.paths); p++ {
			for range g.Connections {
				slots = append(slots, slot{float64(g.Start) + span*w.rng.Float64(), p})
			}
		}
	}
	slices.SortFunc(slots, func(a, b slot) int {
		if a.key < b.key {
			return -1
		}
		return 1
	})
	order := make([]int, len(slots))
	for i, s := range slots {
		order[i] = s.path
	}
	return order
}

func (w *world) connect(p *simPath) {
	truth := p.group.at(p.n)
	if w.s.Drift > 0 {
		for i := range p.offset {
			p.offset[i] += w.s.Drift * w.rng.NormFloat64()
		}
	}
	mu := logs(truth)
	top := 0
	for i := range mu {
		mu[i] += p.offset[i]
		if mu[i]-truth[i].tail() > mu[top]-truth[top].tail() {
			top = i
		}
	}
	held := w.rng.Float64() < holdOut
	would := w.outcome(mu[0], truth[0])
	i, greedy := 0, false
	if !held {
		i, greedy = w.draw(p)
		ratio := math.Exp(mu[i] - truth[i].tail() - mu[top] + truth[top].tail())
		w.result.Regret += 1 - ratio
		w.result.Connections++
		p.used = append(p.used, use{p.n, i == top, ratio})
	}
	p.n++
	out := w.outcome(mu[i], truth[i])
	out.Greedy = greedy
	if !held {
		w.result.Times = append(w.result.Times, math.Exp(-out.LogSpeed()))
		w.result.Default = append(w.result.Default, math.Exp(-would.LogSpeed()))
	}
	w.pending = append(w.pending, pending{p, w.arms[i], out, held})
}

// draw picks an arm as the datapath does, from the shares of the most specific
// belief that exists.
func (w *world) draw(p *simPath) (arm int, greedy bool) {
	b, parent := p.belief, w.root
	if b == nil {
		b, parent = w.root, nil
	}
	slice := int64(0)
	if w.s.Slice > 0 {
		if slice = w.now / int64(w.s.Slice); slice == w.slice {
			return w.drawn, w.greedy
		}
	}
	best := w.l.Weights(w.weights, w.arms, 0, b, parent, w.now)
	u := w.rng.Float64()
	arm = len(w.arms) - 1
	for i, share := range w.weights {
		if u -= share; u < 0 {
			arm = i
			break
		}
	}
	w.slice, w.drawn, w.greedy = slice, arm, arm == best
	return arm, arm == best
}

// outcome is what the connection's sample would report. The figures favour neither learner:
// the rate follows the goodput, and min_rtt is the same for all arms.
func (w *world) outcome(mu float64, a Arm) learn.Outcome {
	reward := mu + a.SD*w.rng.NormFloat64()
	if w.rng.Float64() < w.s.Outlier {
		reward -= math.Ln10
	}
	if a.Slow > 0 && w.rng.Float64() < a.Slow {
		reward -= math.Log(a.SlowBy)
	}
	lost := a.Loss * packets
	lost = max(0, math.Round(lost+math.Sqrt(lost+0.25)*w.rng.NormFloat64()))
	slice, atOnce := int64(0), 1 // each connection draws
	if w.s.Slice > 0 {
		slice, atOnce = w.now/int64(w.s.Slice)*int64(w.s.Slice), max(1, w.s.Batch)
	}
	price := 5 * lost / (packets + lost) // as for throughput
	return learn.Outcome{
		At: w.now + int64(time.Second), Reward: reward - price, Price: price, Weight: packets / (packets + 50.),
		MinRTT: uint32(baseRTT * (1 + 0.03*math.Abs(w.rng.NormFloat64()))),
		Rate:   uint64(math.Exp(reward + 0.1*w.rng.NormFloat64())),
		Loss:   lost / (packets + 100),
		Sent:   packets + lost, Again: lost,
		Slice: slice, AtOnce: float64(atOnce),
	}
}

// report passes the outcomes since the last report to the learner.
func (w *world) report() {
	for _, d := range w.pending {
		if d.p.belief == nil {
			d.p.belief = &learn.Belief{}
		}
		if d.holdOut {
			w.l.ObserveHoldOut(d.p.belief, d.out)
			continue
		}
		w.l.Observe(d.p.belief, d.cc, d.out)
		learn.ObserveParent(w.l, d.p.belief, w.root, d.cc, d.out)
	}
	w.pending = w.pending[:0]
}

func (w *world) summarise() {
	best, ratio, n := 0.0, 0.0, 0.0
	for _, p := range w.paths {
		if p.belief != nil {
			w.result.Changes += int(p.belief.Changes)
		}
		for _, u := range p.used[max(0, len(p.used)-20):] {
			if u.best {
				best++
			}
			ratio += u.ratio
			n++
		}
	}
	w.result.BestShareLast20, w.result.GoodputLast20 = best/max(n, 1), ratio/max(n, 1)
	changes := w.s.Changes()
	for k, at := range changes {
		end := w.paths[0].n
		if k+1 < len(changes) {
			end = changes[k+1]
		}
		first, whole := recovery(w.paths[0].used, at, end)
		w.result.FirstUse = append(w.result.FirstUse, first)
		w.result.Recovery = append(w.result.Recovery, whole)
		w.result.FarWorse = append(w.result.FarWorse, farWorse(w.paths[0].used, at))
	}
}

// farWorse counts the far worse arms of the 20 connections that were decided from one on.
func farWorse(used []use, from int) (n int) {
	i := slices.IndexFunc(used, func(u use) bool { return u.conn >= from })
	if i < 0 {
		return 0
	}
	for _, u := range used[i:min(i+20, len(used))] {
		if u.ratio <= 0.2 {
			n++
		}
	}
	return n
}

// recovery looks at the connections from, inclusive, to end, exclusive.
func recovery(used []use, from, end int) (first, whole int) {
	first, whole = end-from, end-from
	var window []bool
	for _, u := range used {
		if u.conn < from || u.conn >= end {
			continue
		}
		since := u.conn - from
		if u.best && since < first {
			first = since
		}
		window = append(window, u.ratio >= 0.9)
		if len(window) < 5 {
			continue
		}
		good := 0
		for _, ok := range window[len(window)-5:] {
			if ok {
				good++
			}
		}
		if good >= 4 && since-4 < whole {
			whole = max(0, since-4)
		}
	}
	return first, whole
}
