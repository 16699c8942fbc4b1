package learn

import (
	"math"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Replaced returns the arms whose running connections are better off with arms[to], the arm that
// nearly all new connections get, as the bit 1<<i for arms[i]: those that are believed to be less
// than half as fast on this path, by evidence of the path itself since it was first seen or
// changed. An arm that was seen, but not since the change, is also replaced if a variant of it is. base is as for
// Weights. A learner that does not support it replaces none.
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
const certain = 2

func (t thompson) replaced(arms []tcp.CC, base, to int, b *Belief, now int64) (mask uint8) {
	var buf [stackArms]candidate
	cs := candidates(buf[:0], arms, b)
	t.priors(cs, nil, t.opt.Spread, now)
	t.posteriors(cs, b, base >= 0, now)
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
		c, fails := &cs[i], false
		switch {
		case i == to, c.arm == nil:
		case c.trials() >= tried:
			fails = worse(c)
		default:
			fails = c.value() < better.value() && relativeFails(cs, c, worse)
		}
		if fails {
			mask |= 1 << i
		}
	}
	return mask
}

// relativeFails reports whether a variant of c, or the arm of which c is a variant, was tried and is worse. After a change of the path new connections may get a variant of the default before the default itself.
func relativeFails(cs []candidate, c *candidate, worse func(*candidate) bool) bool {
	for i := range cs {
		r := &cs[i]
		if (r.VariantOf == c.CC || c.VariantOf == r.CC) && r.trials() >= tried && worse(r) {
			return true
		}
	}
	return false
}
