package learn

import (
	"math"
	"slices"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// stackArms are kept on the stack while shares are decided; a policy holds no more.
const stackArms = path.MaxArms

// leastKnown is the evidence, in outcomes, below which nothing is known of an arm.
const leastKnown = 1. / 8

// candidate is an arm while shares are decided.
type candidate struct {
	congestion.Control // what is known of it on any path

	arm          *ArmBelief // nil if the path has no belief about it
	parent       *ArmBelief // nil if the parent has none
	others       float64    // evidence of other paths, by the parent, aged to now
	weight       float64    // own evidence, aged to now
	effect       float64    // prior: above or below the path's level
	spread       float64    // variance of that prior
	noise        float64    // variance of one outcome
	post         posterior  // of the reward's value (see tail.go)
	price        float64    // believed Outcome.Price
	seen         float64    // mean of its own rewards, minus the penalty of its tail
	scale        float64    // variance of one observation in seen
	mistakesLoss bool       // takes the random losses of this path for congestion
	// variant: of the default (if many connections overlap, a variant counts as any other
	// arm). lead and leadSD are mean and standard deviation of the believed difference of its
	// value to the default's.
	variant         bool
	lead, leadSD    float64
	replacesDefault bool // a variant that replaces the default to the extent that it is believed to lead
}

func (c *candidate) trials() float64 {
	if c.arm == nil {
		return 0
	}
	return c.arm.Trials
}

// candidates appends the arms of a path to cs.
func candidates(cs []candidate, arms []tcp.CC, b *Belief) []candidate {
	for _, cc := range arms {
		cs = append(cs, candidate{Control: congestion.Of(cc), arm: b.find(cc)})
	}
	return cs
}

// Weights implements Learner.
func (t thompson) Weights(w []float64, arms []tcp.CC, base int, b, parent *Belief, now int64) int {
	if len(arms) == 0 {
		return -1
	}
	if b == nil {
		b = &Belief{}
	}
	var buf [stackArms]candidate
	cs := candidates(buf[:0], arms, b)
	spread := t.opt.Spread
	if base >= 0 && !t.fell(b, now) {
		spread = t.opt.Calm
	}
	guided := t.priors(cs, parent, spread, now)
	seen := t.posteriors(cs, b, base >= 0 && !b.Pooled, now)

	var pbuf [stackArms]posterior
	post := pbuf[:0]
	for i := range cs {
		post = append(post, cs[i].post)
	}
	w = w[:len(arms)]
	bestShares(w, post)
	var kbuf [stackArms]float64
	chance := append(kbuf[:0], w...)

	best := leader(cs, chance, seen && !guided)
	try := t.trialShare(b, now)
	t.sharpen(w, cs, best, t.power(b))
	if seen && !guided {
		unknown(w, cs, best, try)
	}
	if base >= 0 {
		return t.defaultFirst(w, cs, base, chance, b, guided, now)
	}
	if i := t.trial(cs, chance, b, guided, nil); i >= 0 {
		if guided && b.Changed == 0 {
			try = min(try, verifyTry)
		}
		mix(w, i, try)
	} else {
		t.reprobe(w, cs, best, b, nil)
	}
	if !seen && !guided {
		return -1
	}
	return best
}

// priors sets the priors of the arms from the parent: how the arms differ, and how much
// that varies over its paths. Arms that the parent does not know have a prior of the
// standard deviation unknown. It reports whether the parent has evidence of other paths.
func (t thompson) priors(cs []candidate, parent *Belief, unknown float64, now int64) (guided bool) {
	wide := t.opt.Spread * t.opt.Spread
	pooled := t.pooledNoise(parent)
	level, n := 0.0, 0.0
	for i := range cs {
		c := &cs[i]
		c.spread = unknown * unknown
		p := parent.find(c.CC)
		if p == nil {
			continue
		}
		c.parent = p
		w := p.Weight * t.keep(p.Last, max(now, p.Last))
		if c.arm != nil {
			w -= float64(c.arm.Given) * t.keep(c.arm.Last, max(now, c.arm.Last))
		}
		c.others = max(0, w)
		if w < leastKnown {
			continue
		}
		between := t.noise(p, pooled)
		c.spread = max(between, t.opt.ParentMin*t.opt.ParentMin) + between/w
		c.effect = p.Mean
		level += p.Mean * min(w, 1)
		n += min(w, 1)
	}
	if n == 0 {
		return false
	}
	known := 0
	for i := range cs {
		c := &cs[i]
		if c.others < leastKnown {
			continue
		}
		known++
		// Hyperprior: arms are alike until shown to differ.
		c.effect = (c.effect - level/n) * wide / (wide + c.spread)
		c.spread = min(c.spread, wide)
	}
	return known > 1
}

// posteriors combines priors and own evidence, and reports whether there is own evidence.
// tails says that the slow tail counts: not in a belief about many paths, whose differences
// are not a tail of an arm.
func (t thompson) posteriors(cs []candidate, b *Belief, tails bool, now int64) (seen bool) {
	pooled := t.pooledNoise(b)
	var tail Tail
	if tails {
		tail = t.tailOf(b.Arms, pooled)
	}
	level, precision := 0.0, 0.0
	for i := range cs {
		c := &cs[i]
		c.weight, c.noise = 0, pooled
		if c.arm == nil {
			continue
		}
		c.weight = c.arm.Weight * t.keep(c.arm.Last, max(now, c.arm.Last))
		c.noise = t.noise(c.arm, pooled)
		seen = seen || c.weight >= leastKnown
		if c.weight > 0 {
			u := 1 / (c.noise/c.weight + c.spread)
			level += u * (c.arm.Mean - c.effect)
			precision += u
		}
	}
	if precision > 0 {
		level /= precision
	}
	for i := range cs {
		c := &cs[i]
		prior := max(c.spread, c.noise/t.opt.ParentMax)
		pp, po := 1/prior, c.weight/c.noise
		c.post.mean = level + c.effect
		if po > 0 {
			c.post.mean = (pp*(level+c.effect) + po*c.arm.Mean) / (pp + po)
		}
		penalty, noise := c.arm.tailPenalty(tail, c.noise)
		c.post.mean -= penalty
		if c.arm != nil {
			c.seen, c.scale = c.arm.Mean-penalty, noise
		}
		if po > 0 { // the tail may be less certain than the mean
			po = c.weight / noise
		}
		c.post.sd = math.Sqrt(1 / (pp + po))
		c.post.dof = 3 + c.weight
	}
	return seen
}

// leader is the arm most likely to be best; with onlySeen among the arms with evidence.
// Names break ties, so that the order of the arms does not matter.
func leader(cs []candidate, chance []float64, onlySeen bool) int {
	best := -1
	for i := range cs {
		if onlySeen && cs[i].weight < leastKnown {
			continue
		}
		if best < 0 {
			best = i
		} else if d := chance[i] - chance[best]; d > 1e-9 || d > -1e-9 && congestion.Safer(&cs[i].Control, &cs[best].Control) {
			best = i
		}
	}
	return best
}

// unknown bounds the share of each arm without evidence to that of a trial: its chance of
// being best is only its prior.
func unknown(w []float64, cs []candidate, best int, most float64) {
	for i := range cs {
		if cs[i].weight < leastKnown && w[i] > most {
			w[best] += w[i] - most
			w[i] = most
		}
	}
}

// power is the exponent of sharpen. It grows with the observations since the path was
// first seen or changed: if many observations could not tell arms apart, comparing them
// further gains nothing, and a path that stays with one of them is easier to understand.
func (t thompson) power(b *Belief) float64 {
	return t.opt.Sharpness * (1 + float64(b.Count-b.ChangedAt)/t.opt.Commit)
}

// sharpen turns chances of being best into shares by raising them to a power: a clear
// winner gets everything.
func (t thompson) sharpen(w []float64, cs []candidate, best int, power float64) {
	top, total := slices.Max(w), 0.0
	for i := range w {
		w[i] = math.Pow(w[i]/top, power)
		if w[i] < t.opt.Cut {
			w[i] = 0
		}
		total += w[i]
	}
	over := 0.0
	for i := range w {
		w[i] /= total
		harm := cs[best].post.mean-cs[i].post.mean > t.opt.HarmGap && cs[i].trials() >= tried
		if harm && w[i] > t.opt.HarmShare {
			over += w[i] - t.opt.HarmShare
			w[i] = t.opt.HarmShare
		}
	}
	w[best] += over
}

// sharpened is the share by sharpen of one of two arms with the given chance, at the power
// of a path with few observations.
func (t thompson) sharpened(chance float64) float64 {
	p, q := math.Pow(chance, t.opt.Sharpness), math.Pow(1-chance, t.opt.Sharpness)
	return p / (p + q)
}

const (
	// hopeless is the chance of being best below which an arm is not tried a second time if
	// other evidence (of a parent, of many paths, of before a change) speaks against it.
	// doubtful is the chance below which a new path does not try it even once if the parent
	// has evidence.
	hopeless = 0.05
	doubtful = 0.1
	// contends is the chance from which an arm is worth more than two trials.
	contends = 0.25
	// noisy bounds by what factor a path gets more trials if its outcomes scatter more than
	// expected.
	noisy = 2
)

// trial picks the arm to try now, -1 if none: on a path that is new or has changed, each arm
// is tried about twice. Arms with the best prospects go first, and among equals the safest.
//
// most bounds the shares; nil is no bound. Arms with a bound of about 0, and those that take
// random losses for congestion, are not tried.
func (t thompson) trial(cs []candidate, chance []float64, b *Belief, guided bool, most []float64) int {
	trust := guided && b.Changed == 0 && float64(b.Count) < t.opt.Patience
	pick := -1
	for i := range cs {
		c := &cs[i]
		if most != nil && (c.mistakesLoss || most[i] < leastReprobe) || c.trials() >= t.enough(c, chance[i], b, guided && b.Changed == 0) || trust && chance[i] < doubtful {
			continue
		}
		if pick < 0 || t.sooner(c, &cs[pick]) {
			pick = i
		}
	}
	return pick
}

// enough is how many trials an arm gets before only its merit decides. A single bad outcome
// never excludes an arm: it may have had another cause, and an arm that is not used could
// not correct it.
func (t thompson) enough(c *candidate, chance float64, b *Belief, guided bool) float64 {
	pooled := b.Pooled
	expected := t.opt.Noise * t.opt.Noise
	switch {
	case (pooled || guided || b.Changed != 0) && chance < hopeless:
		return tried // evidence of other paths, of the parent or of before the change confirms it
	case pooled:
		return settled
	case c.arm != nil && c.arm.Trials < thrice && c.arm.M2 > outlier*outlier*expected:
		return thrice // its first two outcomes contradict each other
	case chance >= contends:
		return settled * min(noisy, max(1, c.noise/expected))
	}
	return settled
}

func (t thompson) sooner(a, b *candidate) bool {
	if x, y := a.trials() >= tried, b.trials() >= tried; x != y {
		return y
	}
	if d := a.post.mean - b.post.mean; math.Abs(d) > 1e-9 {
		return d > 0
	}
	return congestion.Safer(&a.Control, &b.Control)
}

const (
	leastTry  = 0.1 // least share of a trial, so that it ends
	verifyTry = 0.1 // share of a trial against the parent's belief
	// quiet is the number of gaps (Belief.Gap) without an outcome after which the arm on
	// trial is assumed to give none, for example because all its connections are too small:
	// then its share falls to quietTry.
	quiet    = 20
	quietTry = 0.25
)

// trialShare is the share of the arm on trial. On a path with 20 observations a second a
// small share is enough to judge an arm, and risks less.
func (t thompson) trialShare(b *Belief, now int64) float64 {
	if b.Count < 2 {
		return 1
	}
	share := min(1, max(leastTry, b.Gap/t.opt.TrialPace.Seconds()))
	if seconds(b.Last, now) > quiet*max(b.Gap, 1) {
		share = min(share, quietTry)
	}
	return share
}

// mix raises the share of arm i to the given one, and scales down the others.
func mix(w []float64, i int, share float64) {
	if w[i] >= share {
		return
	}
	rest := 1 - w[i]
	for j := range w {
		w[j] *= (1 - share) / rest
	}
	w[i] = share
}

const (
	leastReprobe = 1. / 4096 // least share: 16 of the kernel's steps of 1/65536
	// steadyAfter is the number of observations without a change after which trials that
	// only look for unseen changes become rarer, because they cost more than they gain. With
	// a change every n connections, a share of about 1/sqrt(n) is right, therefore the share follows the square root.
	steadyAfter = 500
)

// reprobe gives a small share to arms that are not in use, because they may have become
// better unseen: about one observation per Reprobe; less for arms believed far worse and on
// paths that do not change, nothing while their last trial is fresh. most bounds the shares;
// nil is no bound.
func (t thompson) reprobe(w []float64, cs []candidate, best int, b *Belief, most []float64) {
	hazard := float64(1+b.Changes) * steadyAfter / (steadyAfter + float64(b.Count))
	each := t.opt.ReprobeMax / float64(max(1, len(cs)-1)) * math.Sqrt(min(1, hazard))
	pace := min(each, max(leastReprobe, b.Gap/t.opt.Reprobe.Seconds()))
	for i := range cs {
		c := &cs[i]
		if i == best || c.arm == nil {
			continue
		}
		stale := min(1, float64(b.Count-c.arm.SeenAt)/(2*staleAfter))
		gap := max(0, cs[best].post.mean-c.post.mean)
		share := pace * stale / (1 + gap)
		if most != nil {
			share = min(share, most[i])
		}
		if add := min(share-w[i], w[best]); add > 0 {
			w[best] -= add
			w[i] += add
		}
	}
}
