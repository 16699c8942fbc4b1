package learn

import "math"

// An arm is in use in place of the default once it is shown to be better.

// alpha is the probability of error, both of showing that an arm is better and of
// comparisons with the hold-out.
const alpha = 0.05

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

// shown reports whether an arm is shown to be better than the default: by evidence of the
// path itself, or by that of its parent if the path does not contradict. For a variant of
// the default a belief is enough, because a wrong choice costs little. (If many connections
// overlap, it would cost the others; then candidate.variant is not set.)
func (t thompson) shown(c, base *candidate, pooled bool) bool {
	if t.better(c.arm, base.arm, c.weight, base.weight, pooled) {
		return true
	}
	if !pooled && c.variant && min(c.trials(), base.trials()) >= thrice && c.arm.logSpeed() > base.arm.logSpeed() &&
		c.lead > 0 && upper(c.lead/c.leadSD) < alpha {
		return true
	}
	return c.value() > base.value() && c.parent != nil && base.parent != nil &&
		t.better(c.parent, base.parent, c.parent.Weight, base.parent.Weight, true)
}

// better reports whether a is better than base; wa and wb are their evidence. Both the mean
// of the logarithms and the value with the tail must be better, and one of them
// significantly. The mean is known sooner; the value is what counts.
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
	pa, va := a.tailPenalty(tail, na)
	pb, vb := base.tailPenalty(tail, nb)
	mean := a.logSpeed() - base.logSpeed()
	value := mean - pa + pb
	sure := boundary(1/(1/wa+1/wb), alpha/2)
	return mean > 0 && value > 0 &&
		(value > sure*math.Sqrt(va/wa+vb/wb) || mean > sure*math.Sqrt(na/wa+nb/wb))
}
