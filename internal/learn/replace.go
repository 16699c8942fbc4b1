package learn

import (
	"math"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Replaced returns the arms whose running connections are better off with arms[to], the arm that
// nearly all new connections get, as the bit 1<<i for arms[i]: those that are believed to be less
// than half as fast on this path, by evidence of the path itself since it was first seen or
// changed. An arm that was seen, but not twice since the change, is also replaced if a variant of it is that much slower.
// base is as for Weights. A learner that does not support it replaces none.
func Replaced(l Learner, arms []tcp.CC, base, to int, b *Belief, now int64) uint8 {
	if r, ok := l.(interface {
		replaced(arms []tcp.CC, base, to int, b *Belief, now int64) uint8
	}); ok && b != nil && !b.Pooled && to >= 0 {
		return r.replaced(arms, base, to, b, now)
	}
	return 0
}

// certain is how many standard deviations the difference of two values must be from 0 for
// running connections to be switched.
const certain = 2.5

func (t thompson) replaced(arms []tcp.CC, base, to int, b *Belief, now int64) (mask uint8) {
	var buf [stackArms]candidate
	cs := candidates(buf[:0], arms, b)
	t.priors(cs, nil, t.opt.Spread, now)
	t.posteriors(cs, b, false, now) // a long connection gets the mean, whatever the slowest short ones get
	t.prices(cs, max(0, base))
	better := &cs[to]
	if better.trials() < settled {
		return 0
	}
	worse := func(c *candidate) bool {
		gap := better.value() - c.value()
		return gap > t.opt.HarmGap && gap > certain*math.Hypot(better.post.sd, c.post.sd)
	}
	for i := range cs {
		c := &cs[i]
		if i == to || c.arm == nil || related(c, better) {
			continue
		}
		shown := c.trials() >= tried && worse(c)
		if shown || c.trials() < settled && c.value() < better.value() && relativeFails(cs, c, worse) {
			mask |= 1 << i
		}
	}
	return mask
}

// relativeFails reports whether a variant of c, or the arm of which c is a variant, was tried and is worse. After a change
// of the path new connections may get a variant of the default before the default itself.
func relativeFails(cs []candidate, c *candidate, worse func(*candidate) bool) bool {
	for i := range cs {
		r := &cs[i]
		if related(c, r) && r.trials() >= tried && worse(r) {
			return true
		}
	}
	return false
}

// related reports whether one of two arms is a variant of the other. The controls differ too little for
// a switch in mid-flight.
func related(a, b *candidate) bool { return a.VariantOf == b.CC || b.VariantOf == a.CC }
