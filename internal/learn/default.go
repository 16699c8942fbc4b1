package learn

import (
	"math"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// The default is what a connection would get without tcpilot. It is in use until
// another arm is shown to be better, by what users wait for (Outcome.Wait, as valued in
// tail.go), with an error that holds at whatever time one looks. Until then an arm gets
// shares of which the expected loss of the users' time is within a budget: few at
// first, up to half of the slices once it looks better than the default.
//
// Two things open a search, in which arms are tried at once as the learner likes:
// the rewards of the arm in use fell, or the default takes random loss for congestion.
// Both mean that the default itself does badly now.
//
// A trial is a slice, and so all connections that begin in it. Where they come one at a
// time, an unknown arm is the risk of one connection, and its first trials come soon.
// Where many come at once they are rationed.

const (
	// mostUnproven is the share of all arms together that are not shown to be better:
	// half tells them from the default the soonest. mostPooled is the same of a belief
	// about many paths: what no path has shown for itself is not tried on all of them.
	mostUnproven = 0.5
	mostPooled   = 0.1
	// OnePath is the evidence, in outcomes, that one path may have in a belief about many.
	// What only one says is not shown for all.
	OnePath = 4
	// mostWorse is the share of an arm that is believed to be worse: one
	// connection in a hundred is what a 99th percentile notices.
	mostWorse = 1. / 400
	// firstHarm is the expected loss up to which an arm's first trials, two of each, are
	// not rationed; the very first is not, unless the parent knows of the arm. On a path
	// where outcomes scatter, what is expected of the unknown would else keep it unknown.
	firstHarm = 0.15
	// alpha is the chance of an error, of arms that are shown to be better and of
	// comparisons with the hold-out alike.
	alpha = 0.05

	// crowd is the number of connections in a slice from which a trial is no longer the
	// risk of one. mostUnknown is then the share of all arms together that were not tried
	// yet: with bbr for the default, 20 at a time, a slice of cubic took ten times as
	// long as the others, and one connection in a hundred is what a 99th percentile
	// notices.
	crowd       = 1.5
	mostUnknown = 1. / 100
	// crowdFall is the fall of rewards from which a search puts whole crowds at risk: users
	// wait twice as long. Where 20 connections of bbr fill a link, slices scatter by 0.1 to
	// 0.4 (standard deviation, measured), and less than this is no sign of a change.
	crowdFall = math.Ln2
	// newPath is the number of observations below which a path is new: it is not known yet
	// whether its connections come in crowds, because some of the latest may not have ended.
	newPath = 3
	// worthwhile is the expected gain below which there is nothing to be won by going on:
	// arms that are alike are left for the default.
	worthwhile = 0.02
	// likeness is the standard deviation expected between an arm and the default that it
	// was made from.
	likeness = 0.05

	// randomLoss is the share of packets lost without a queue from which a control that
	// takes each loss for congestion is held back: at 0.3 % the window of CUBIC is about
	// 50 packets at 50 ms (RFC 9438, 5.2). leastSent packets make it believable.
	randomLoss = 0.003
	leastSent  = 500
	// wholeCrowds is how many observations the same must rest on where each is of a crowd.
	wholeCrowds = 3
	// allAlike is the least share of the connections that random loss would meet which it
	// has to have met.
	allAlike = 0.75
	// noQueue is the greatest ln(srtt/min_rtt) of a path that loses packets without a
	// queue. Measured with cubic, 1 MB, a queue of one round trip: with 1 % loss 0.05 (5 at
	// a time) and 0.13 (20, which all but fill the link, so that little is to be won),
	// without loss 0.2 and 0.4.
	noQueue = 0.08
	// ownQueue is the same of controls that keep a queue of their own: 0.2 and 0.45.
	ownQueue = 0.25
)

// lossTolerant lists controls that model the path's rate, and so do not take each loss
// for congestion.
var lossTolerant = [...]tcp.CC{named("bbr"), named("bbr2"), named("bbr3"), named("tcpilot_bbr3")}

func named(name string) tcp.CC {
	cc, _ := tcp.ParseCC(name)
	return cc
}

func tolerant(cc tcp.CC) bool {
	for i := range lossTolerant {
		if lossTolerant[i] == cc {
			return true
		}
	}
	return false
}

// made lists controls that differ from another only in a few improvements. They are expected
// to be as good.
var made = [...]struct{ cc, from tcp.CC }{
	{named("tcpilot_cubic"), named("cubic")},
	{named("tcpilot_dctcp"), named("dctcp")},
}

func madeFrom(cc, original tcp.CC) bool {
	for i := range made {
		if made[i].cc == cc {
			return made[i].from == original
		}
	}
	return false
}

// fell reports whether the path has just become worse, and its arms are being tried
// again.
func (t thompson) fell(b *Belief, now int64) bool {
	least := 0.0
	if b.crowded() {
		least = crowdFall
	}
	return b.Changes > 0 && b.Fall > least && b.Count-b.ChangedAt <= searching &&
		seconds(b.Changed, now) <= t.opt.HalfLife.Seconds()
}

// losesAtRandom reports whether the path loses packets that no queue of ours overflowed
// for, by what the arm met. Random loss comes to all connections alike: where a few have
// most of it, slow start overflowed a queue which was empty again at their end.
//
// Of a crowd, those that end first met less of its queue: whole crowds are looked at.
func (c *candidate) losesAtRandom(b *Belief) bool {
	a, queue := c.arm, noQueue
	if tolerant(c.cc) {
		queue = ownQueue
	}
	if a == nil || b.crowded() && float64(a.Judged) < wholeCrowds*b.outcomesEach() {
		return false
	}
	if a.Sent < leastSent || a.Again <= randomLoss*a.Sent || float64(a.Stretch) >= queue {
		return false
	}
	return a.alike()
}

// alike reports whether losses came to all connections alike.
func (l *Losses) alike() bool {
	some := 1 - math.Exp(-float64(l.Again/l.Judged)) // would have any, by Poisson
	return float64(l.Resent/l.Judged) > allAlike*some
}

// latestOf is the arm that was seen last, of those that sent enough to tell; nil if none did.
func latestOf(cs []candidate) (last *candidate) {
	for i := range cs {
		if a := cs[i].arm; a != nil && a.Sent >= leastSent && (last == nil || a.Last > last.arm.Last) {
			last = &cs[i]
		}
	}
	return last
}

// defaultFirst turns the shares w that arms have by merit into those that they get, and
// returns the arm that is now in use.
func (t thompson) defaultFirst(w []float64, cs []candidate, base int, chance []float64, b *Belief, guided bool, now int64) int {
	var hbuf, mbuf [stackArms]float64
	harm, most := hbuf[:len(cs)], mbuf[:len(cs)]
	t.prices(cs, base)
	for i := range cs {
		harm[i] = expectedLoss(cs[i].value()-cs[base].value(), cs[i].post.sd, cs[base].post.sd)
		if madeFrom(cs[i].cc, cs[base].cc) {
			mean, sd := cs[i].ahead(&cs[base])
			harm[i] = expectedLoss(mean, sd, 0)
			mix(w, i, normal(mean/sd)) // by merit it would get what a stranger does
		}
	}
	best := t.inUse(cs, base, b)
	t.limits(most, harm, cs, base, b, now)
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

// ahead is the belief in by how much the value of an arm that was made from the default is
// above the default's, which is expected to be little.
func (c *candidate) ahead(base *candidate) (mean, sd float64) {
	variance := likeness * likeness
	if c.weight > 0 && base.weight > 0 {
		of := c.scale/c.weight + base.scale/base.weight
		mean = (c.seen + c.price - base.seen - base.price) * variance / (variance + of)
		variance *= of / (variance + of)
	}
	return mean, math.Sqrt(variance)
}

// prospects are by what share an arm's reward is above the default's, in expectation over
// what is believed, where it is, and whether the users are believed to have less of it.
func (c *candidate) prospects(base *candidate) (gain float64, worse bool) {
	if madeFrom(c.cc, base.cc) {
		mean, sd := c.ahead(base)
		return expectedLoss(-mean, sd, 0), mean < -sd
	}
	gain = expectedLoss(base.post.mean-c.post.mean, c.post.sd, base.post.sd)
	return gain, base.value()-c.value() > c.post.sd+base.post.sd
}

// inUse is the best of the arms that are shown to be better than the default; the
// default if none is.
func (t thompson) inUse(cs []candidate, base int, b *Belief) int {
	best := base
	for i := range cs {
		if i != base && cs[i].post.mean > cs[best].post.mean && t.shown(&cs[i], &cs[base], b.Pooled) {
			best = i
		}
	}
	return best
}

// shown reports whether an arm is better than the default: by what was seen on the path
// itself, or on those around it where the path does not contradict. Of an arm that was
// made from the default belief is enough, since to be wrong costs little.
func (t thompson) shown(c, base *candidate, pooled bool) bool {
	if t.better(c.arm, base.arm, c.weight, base.weight, pooled) {
		return true
	}
	if !pooled && madeFrom(c.cc, base.cc) && min(c.trials(), base.trials()) >= thrice && c.arm.wait() > base.arm.wait() {
		if mean, sd := c.ahead(base); mean > 0 && upper(mean/sd) < alpha {
			return true
		}
	}
	return c.value() > base.value() && c.parent != nil && base.parent != nil &&
		t.better(c.parent, base.parent, c.parent.Weight, base.parent.Weight, true)
}

// better reports whether a is better than base, of evidence wa and wb: by the mean of the
// logarithms and by the value with the tail, by one of them for certain. The first is
// known sooner, and the second is what counts.
func (t thompson) better(a, base *ArmBelief, wa, wb float64, manyPaths bool) bool {
	if a == nil || base == nil || a.Trials < settled || base.Trials < settled || wa <= 0 || wb <= 0 {
		return false
	}
	if manyPaths && min(wa, wb) <= OnePath {
		return false
	}
	usual := (t.noise(a, t.opt.Noise*t.opt.Noise) + t.noise(base, t.opt.Noise*t.opt.Noise)) / 2
	var tail Tail
	if !manyPaths {
		tail = t.tailOf([]ArmBelief{*a, *base}, usual)
	}
	na, nb := t.noise(a, usual), t.noise(base, usual)
	pa, va := a.premium(tail, na)
	pb, vb := base.premium(tail, nb)
	mean := a.wait() - base.wait()
	value := mean - pa + pb
	sure := Boundary(1/(1/wa+1/wb), alpha/2)
	return mean > 0 && value > 0 &&
		(value > sure*math.Sqrt(va/wa+vb/wb) || mean > sure*math.Sqrt(na/wa+nb/wb))
}

// limits writes the greatest share that each arm may get: 1 if it is shown to be better
// or a search is on for its like, else what its expected loss leaves of the budget. On a
// path that loses at random an arm which takes that for congestion is not expected to be
// better than any default, and is believed to be worse until shown otherwise.
func (t thompson) limits(most, harm []float64, cs []candidate, base int, b *Belief, now int64) {
	unproven := unprovenOf(b)
	fell := t.fell(b, now)
	last := latestOf(cs)
	random := !tolerant(cs[base].cc) && cs[base].losesAtRandom(b) && b.Count-b.ChangedAt <= searching
	lossy := random || last != nil && last.losesAtRandom(b)
	crowded := b.crowded()
	for i := range cs {
		c := &cs[i]
		hopeful := c.trials() < settled || c.value() > cs[base].value()
		unknown := c.trials() < settled && !madeFrom(c.cc, cs[base].cc)
		newHere := b.Count < newPath && c.parent == nil
		c.unfit = lossy && !tolerant(c.cc)
		switch {
		case i == base, t.shown(c, &cs[base], b.Pooled):
			most[i] = 1
		case c.unfit:
			most[i] = mostWorse
		case hopeful && (random || fell) && (b.Pooled || b.Count > 1 || !newHere):
			most[i] = 1
		case unknown && newHere:
			most[i] = 0
		case unknown && crowded:
			most[i] = mostUnknown / float64(len(cs)-1)
		case c.trials() < tried && c.parent == nil, c.trials() < settled && harm[i] < firstHarm:
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
			if worse {
				most[i] = min(most[i], mostWorse)
			}
		}
	}
}

// outcomesEach is how many outcomes an observation has, on average.
func (b *Belief) outcomesEach() float64 {
	n := uint64(0)
	for i := range b.Arms {
		n += b.Arms[i].Count
	}
	return float64(n) / float64(max(1, b.Count))
}

// crowded reports whether connections come many at a time.
func (b *Belief) crowded() bool { return b.outcomesEach() > crowd }

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

// normal is the distribution function of the standard Normal.
func normal(z float64) float64 {
	if z < 0 {
		return upper(-z)
	}
	return 1 - upper(z)
}
