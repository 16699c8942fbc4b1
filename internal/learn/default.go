package learn

import (
	"math"

	"github.com/tcpilot/tcpilot/internal/congestion"
)

// The default is what a connection would get without tcpilot. It is in use until
// another arm is shown to be better, by what users wait for (Outcome.Wait, as valued in
// tail.go), with an error that holds at whatever time one looks. Until then an arm gets
// shares of which the expected loss of the users' time is within a budget: few at
// first, up to half of the slices once it looks better than the default.
//
// A trial is a slice, and so all connections that begin in it. Where they come one at a
// time, an unknown arm is the risk of one connection, and its first trials come soon.
// Where they overlap, trials are rationed. A variant of the default (variant.go) is used as
// soon as it is believed to be better, but not in a crowd.

const (
	// mostUnproven is the share of all arms together that are not shown to be better:
	// half tells them from the default the soonest. mostPooled is the same of a belief
	// about many paths: what no path has shown for itself is not tried on all of them.
	mostUnproven = 0.5
	mostPooled   = 0.1
	// mostOverlapping is the share of one arm that is neither shown to be better nor believed
	// to be worse, where connections overlap: five at a time, with bbr, tcpilot_cubic looked
	// better by luck and had 54 of 200 connections, whose 95th percentile was the worse for it.
	mostOverlapping = 0.2
	// OnePath is the evidence, in outcomes, that one path may have in a belief about many.
	// What only one says is not shown for all.
	OnePath = 4
	// mostWorse is the share of an arm that is believed to be worse: one
	// connection in a hundred is what a 99th percentile notices.
	mostWorse = 1. / 400
	// firstHarm is the expected loss up to which an arm's first trials, two of each, are
	// not rationed; the very first is not, unless several other paths have told of the arm. On a path
	// where outcomes scatter, what is expected of the unknown would else keep it unknown.
	firstHarm = 0.15

	// mostUnknown is the share of all arms together that were not tried yet, where
	// connections overlap, and mostInCrowd the same from crowd connections at a
	// time: with bbr for the default, 20 at a time, a slice of cubic took ten times
	// as long as the others, and one of tcpilot_bbr3 among cubic's starved those beside it.
	// One connection in a hundred is what a 99th percentile notices.
	mostUnknown = 1. / 100
	mostInCrowd = 1. / 400
	// trialsFrom is the number of observations from which there are such trials: the first is
	// one slice in a hundred, and not half of what the path has had so far.
	trialsFrom = 100
	// newPath is the number of observations below which a path is new: it is not known yet
	// whether its connections overlap, because some of the latest may not have ended.
	// newToVariant is the same for a variant of the default, which waits for signs of a crowd.
	newPath      = 3
	newToVariant = 2
	// worthwhile is the expected gain below which more trials are not worth their cost: of
	// arms that are alike the default is used.
	worthwhile = 0.02
)

// defaultFirst turns the shares w that arms have by merit into those that they get, and
// returns the arm that is now in use.
func (t thompson) defaultFirst(w []float64, cs []candidate, base int, chance []float64, b *Belief, guided bool, now int64) int {
	var hbuf, mbuf [stackArms]float64
	harm, most := hbuf[:len(cs)], mbuf[:len(cs)]
	t.prices(cs, base)
	for i := range cs {
		c := &cs[i]
		harm[i] = expectedLoss(c.value()-cs[base].value(), c.post.sd, cs[base].post.sd)
		if known := congestion.Of(c.cc); known.VariantOf == cs[base].cc && !b.crowded() {
			c.variant = true
			c.lead, c.leadSD = c.ahead(&cs[base], known.Lead, t.opt.Calm)
			harm[i] = expectedLoss(c.lead, c.leadSD, 0)
		}
	}
	best := t.inUse(cs, base, b)
	search := t.searchOf(cs, &cs[base], b, now)
	for i := range cs {
		c := &cs[i]
		c.unfit = search.excludes(c)
		// It stands in for the default, and not for what is better than both.
		if c.standsIn = c.variant && !c.unfit && (best == base || best == i); c.standsIn {
			mix(w, i, t.sharpened(normal(c.lead/c.leadSD))) // shares by merit do not know that it is a variant
		}
	}
	t.limits(most, harm, cs, base, best, b, search)
	t.ration(w, most, harm, base, best, unprovenOf(b))
	if i := t.trial(cs, chance, b, guided, most); i >= 0 && i != best {
		mix(w, i, min(t.trialShare(b, now), most[i]))
	} else {
		t.reprobe(w, cs, best, b, most)
	}
	return best
}

// prices completes what others pay for: an arm that was never used costs as much as the
// default.
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

// value is what the users have of an arm: without what others pay for.
func (c *candidate) value() float64 { return c.post.mean + c.price }

// prospects are by what share an arm's reward is above the default's, in expectation over
// what is believed, where it is, and whether the users are believed to have less of it.
func (c *candidate) prospects(base *candidate) (gain float64, worse bool) {
	if c.variant {
		return expectedLoss(-c.lead, c.leadSD, 0), c.lead < -c.leadSD
	}
	gain = expectedLoss(base.post.mean-c.post.mean, c.post.sd, base.post.sd)
	return gain, base.value()-c.value() > c.post.sd+base.post.sd
}

// limits writes the greatest share that each arm may get: 1 if it is shown to be better, or
// is a variant of the default that leads, or a search is on for its like, else what its
// expected loss leaves of the budget. On a path that loses at random an arm which takes that
// for congestion is not expected to be better than any default, and is believed to be worse
// until shown otherwise.
func (t thompson) limits(most, harm []float64, cs []candidate, base, best int, b *Belief, search search) {
	unproven := unprovenOf(b)
	untried := unproven
	switch {
	case b.overlaps() && b.Count < trialsFrom:
		untried = 0
	case b.crowded():
		untried = mostInCrowd
	case b.overlaps():
		untried = mostUnknown
	}
	for i := range cs {
		c := &cs[i]
		// Evidence of one other path does not keep an arm from its first trial here, as long as
		// the default is in use.
		unfamiliar := c.parent == nil || c.others <= OnePath && best == base
		hopeful := c.trials() < settled || c.value() > cs[base].value()
		unknown := c.trials() < settled && !c.variant
		// What leads has the share that the belief in it gives, more than half.
		leads := c.standsIn && c.lead > 0 && c.trials() >= settled && !b.Pooled
		newHere := b.Count < newPath && !(c.variant && b.Count >= newToVariant) && unfamiliar
		// The first outcomes of a new path may be the first of many at a time.
		early := b.Count < newPath && !b.Pooled && (b.Count <= 1 || b.overlaps())
		switch {
		case i == base, leads, t.shown(c, &cs[base], b.Pooled):
			most[i] = 1
		case c.unfit:
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
			gain, worse := c.prospects(&cs[base])
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

// ration keeps arms that are not shown to be better within the budget, and below the share
// that they may have together, and gives what is left to the arm in use.
func (t thompson) ration(w, most, harm []float64, base, best int, together float64) {
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

// expectedLoss is by what share users wait longer for an arm than for the default, in
// expectation over what is believed, where they do: E[max(0, exp(-d)-1)] for a Normal
// difference d of values.
func expectedLoss(mean, sdA, sdB float64) float64 {
	s := math.Sqrt(sdA*sdA + sdB*sdB)
	if s == 0 {
		return max(0, math.Expm1(-mean))
	}
	s = min(s, 1) // a lognormal's mean is all tail beyond it
	return max(0, math.Exp(s*s/2-mean)*normal((s*s-mean)/s)-normal(-mean/s))
}
