package learn

import (
	"math"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Replaced returns the arms whose running connections are better off with arms[to], the arm that
// nearly all new connections get, as the bit 1<<i for arms[i]: those that are believed to be less
// than half as fast on this path, by evidence of the path itself since it was first seen or
// changed. base is as for Weights. A learner that does not support it replaces none.
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
	for i := range cs {
		c := &cs[i]
		gap := better.value() - c.value()
		if i != to && c.trials() >= tried && gap > t.opt.HarmGap && gap > certain*math.Hypot(better.post.sd, c.post.sd) {
			mask |= 1 << i
		}
	}
	return mask
}
