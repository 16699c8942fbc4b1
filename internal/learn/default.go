package learn

import "math"

// The default is what a connection would get without tcpilot. It is in use until another
// arm is shown to be better by what users wait for (Outcome.LogSpeed, as valued in tail.go), in
// a test whose error probability is valid at any time (boundary). Until then the share of
// an arm is bounded by a budget of the users' time that it is expected to cost: a small
// share at first, up to half of the slices once it looks better than the default.
//
// A trial is a slice: all connections that begin in it. If connections come one at a time,
// a trial of an unknown arm risks one connection, and its first trials come soon. If they
// overlap, trials are rationed. A variant of the default (variant.go) is used as soon as it
// is believed to be better, unless many connections overlap.

const (
	// mostUnproven is the greatest share of all arms together that are not shown to be
	// better: an equal split tells two arms apart the soonest. mostPooled is the same of a
	// belief about many paths: what no path has shown for itself is not tried on all of them.
	mostUnproven = 0.5
	mostPooled   = 0.1
	// mostOverlapping is the greatest share of one arm that is neither shown to be better nor
	// believed to be worse, if connections overlap. Measured with bbr as the default, five
	// at a time: tcpilot_cubic looked better by chance, got 54 of 200 connections, and made
	// their 95th percentile worse.
	mostOverlapping = 0.2
	// OnePath is the greatest evidence, in outcomes, that one path gives to a belief about
	// many. Evidence of one path alone does not show anything for all.
	OnePath = 4
	// mostWorse is the greatest share of an arm that is believed to be worse: one connection
	// in a hundred changes a 99th percentile.
	mostWorse = 1. / 400
	// firstHarm is the expected loss up to which the first two trials of an arm are not
	// rationed. The first one never is, unless several other paths know the arm. Otherwise an
	// unknown arm could stay unknown on a path whose outcomes scatter.
	firstHarm = 0.15

	// mostUnknown is the greatest share of all arms together that were not tried yet, if
	// connections overlap, and mostUnknownMany the same if many do. Measured with 20 at a
	// time: with bbr as the default, a slice of cubic took ten times as long as the others;
	// with cubic as the default, a slice of tcpilot_bbr3 starved the connections beside it.
	// One connection in a hundred changes a 99th percentile.
	mostUnknown     = 1. / 100
	mostUnknownMany = 1. / 400
	// trialsFrom is the number of observations before the first such trial, so that it is one
	// slice in a hundred and not half of what the path has had so far.
	trialsFrom = 100
	// newPath is the number of observations below which a path is new: it is not known yet
	// whether its connections overlap, because some of the latest may not have ended.
	// newToVariant is the same for a variant of the default, for which only many overlapping
	// connections matter.
	newPath      = 3
	newToVariant = 2
	// worthwhile is the expected gain below which more trials are not worth their cost: if
	// an arm is like the default, the default is used.
	worthwhile = 0.02
)

// defaultFirst changes w from shares by merit to the shares that the arms get, and returns
// the arm that is now in use.
func (t thompson) defaultFirst(w []float64, cs []candidate, base int, chance []float64, b *Belief, guided bool, now int64) int {
	var hbuf, mbuf [stackArms]float64
	harm, most := hbuf[:len(cs)], mbuf[:len(cs)]
	t.prices(cs, base)
	for i := range cs {
		c := &cs[i]
		harm[i] = expectedLoss(c.value()-cs[base].value(), c.post.sd, cs[base].post.sd)
		if c.VariantOf == cs[base].CC && !b.manyOverlap() {
			c.variant = true
			c.lead, c.leadSD = c.ahead(&cs[base], t.opt.Calm)
			harm[i] = expectedLoss(c.lead, c.leadSD, 0)
		}
	}
	best := t.inUse(cs, base, b)
	search := t.searchOf(cs, &cs[base], b, now)
	for i := range cs {
		c := &cs[i]
		c.mistakesLoss = search.excludes(c)
		// It replaces the default, but not an arm that is better than both.
		if c.replacesDefault = c.variant && !c.mistakesLoss && (best == base || best == i); c.replacesDefault {
			mix(w, i, t.sharpened(normal(c.lead/c.leadSD))) // shares by merit were computed as if it were any other arm
		}
	}
	t.limits(most, harm, cs, base, best, b, search)
	t.limitUnproven(w, most, harm, base, best, unprovenOf(b))
	if i := t.trial(cs, chance, b, guided, most); i >= 0 && i != best {
		mix(w, i, min(t.trialShare(b, now), most[i]))
	} else {
		t.reprobe(w, cs, best, b, most)
	}
	return best
}

// prices sets candidate.price (Outcome.Price); an arm that was never used has the default's.
func (t thompson) prices(cs []candidate, base int) {
	usual := 0.0
	if a := cs[base].arm; a != nil {
		usual = float64(a.Price)
	}
	for i := range cs {
		c := &cs[i]
		c.price = usual
		if c.arm != nil {
			c.price = (float64(c.arm.Price)*c.arm.Weight + usual) / (c.arm.Weight + 1)
		}
	}
}

// value is the worth of an arm to its own users: the reward without the price.
func (c *candidate) value() float64 { return c.post.mean + c.price }

// gainOverDefault returns the expected gain of an arm over the default, E[max(0, gain)] over what
// is believed, and whether the arm is believed to be worse for its users.
func (c *candidate) gainOverDefault(base *candidate) (gain float64, worse bool) {
	if c.variant {
		return expectedLoss(-c.lead, c.leadSD, 0), c.lead < -c.leadSD
	}
	gain = expectedLoss(base.post.mean-c.post.mean, c.post.sd, base.post.sd)
	return gain, base.value()-c.value() > c.post.sd+base.post.sd
}

// limits writes the greatest share that each arm may get. It is 1 if the arm is shown to be
// better, or is a variant of the default that leads, or a search for such arms is on.
// Otherwise it follows from the arm's expected loss and the budget. On a path with random
// loss, an arm that takes each loss for congestion counts as worse until shown otherwise.
func (t thompson) limits(most, harm []float64, cs []candidate, base, best int, b *Belief, search search) {
	unproven := unprovenOf(b)
	untried := unproven
	switch {
	case b.overlaps() && b.Count < trialsFrom:
		untried = 0
	case b.manyOverlap():
		untried = mostUnknownMany
	case b.overlaps():
		untried = mostUnknown
	}
	for i := range cs {
		c := &cs[i]
		// If the default is in use, evidence of a single other path does not prevent the first
		// trial here.
		unfamiliar := c.parent == nil || c.others <= OnePath && best == base
		hopeful := c.trials() < settled || c.value() > cs[base].value()
		unknown := c.trials() < settled && !c.variant
		// A variant that leads is not bounded: it has the share that the belief in it gives.
		leads := c.replacesDefault && c.lead > 0 && c.trials() >= settled && !b.Pooled
		newHere := b.Count < newPath && !(c.variant && b.Count >= newToVariant) && unfamiliar
		// The first outcomes of a new path may be the first of many overlapping connections.
		early := b.Count < newPath && !b.Pooled && (b.Count <= 1 || b.overlaps())
		switch {
		case i == base, leads, t.shown(c, &cs[base], b.Pooled):
			most[i] = 1
		case c.mistakesLoss:
			most[i] = mostWorse / float64(len(cs)-1) // of all such arms together
		case hopeful && (search.random || search.fell) && !early:
			most[i] = 1
		case newHere && c.trials() < settled:
			most[i] = 0
		case unknown && untried < unproven:
			most[i] = untried / float64(len(cs)-1)
		case c.trials() < tried && unfamiliar, c.trials() < settled && harm[i] < firstHarm:
			most[i] = unproven
		default:
			most[i] = min(unproven, t.opt.Budget/max(harm[i], t.opt.Budget))
			if c.trials() < settled {
				break
			}
			gain, worse := c.gainOverDefault(&cs[base])
			if gain < worthwhile {
				most[i] = max(mostWorse, most[i]*gain*gain/(worthwhile*worthwhile))
			}
			switch {
			case worse:
				most[i] = min(most[i], mostWorse)
			case b.overlaps() && !c.variant:
				most[i] = min(most[i], mostOverlapping)
			}
		}
	}
}

func unprovenOf(b *Belief) float64 {
	if b.Pooled {
		return mostPooled
	}
	return mostUnproven
}

// limitUnproven bounds the shares of arms that are not shown to be better by the budget, and
// by the share that they may have together. The rest goes to the arm in use.
func (t thompson) limitUnproven(w, most, harm []float64, base, best int, together float64) {
	loss, unproven := 0.0, 0.0
	for i := range w {
		w[i] = min(w[i], most[i])
		if i != base && most[i] < 1 {
			loss += w[i] * harm[i]
			unproven += w[i]
		}
	}
	scale := 1.0
	if loss > t.opt.Budget {
		scale = t.opt.Budget / loss
	}
	if unproven*scale > together {
		scale = together / unproven
	}
	total := 0.0
	for i := range w {
		if i != base && most[i] < 1 {
			w[i] *= scale
		}
		total += w[i]
	}
	w[best] += max(0, 1-total)
}

// expectedLoss is by what share users are expected to wait longer with an arm than with the
// default: E[max(0, exp(-d)-1)] for a Normal difference d of values.
func expectedLoss(mean, sdA, sdB float64) float64 {
	s := math.Sqrt(sdA*sdA + sdB*sdB)
	if s == 0 {
		return max(0, math.Expm1(-mean))
	}
	s = min(s, 1) // beyond it the tail dominates the mean of a lognormal
	return max(0, math.Exp(s*s/2-mean)*normal((s*s-mean)/s)-normal(-mean/s))
}
