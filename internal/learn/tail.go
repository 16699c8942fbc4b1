package learn

import "math"

// Users wait, and they notice the slow connections. So arms are not compared by
// the mean of the logarithm of speed, in which a connection that takes half as long
// compensates for one that takes twice as long. They are compared by the mean of the cube
// of the time:
//
//	value = -1/3 ln E[time^3]
//
// the entropic (exponential) utility of -ln(time) with risk aversion 3 (Howard and
// Matheson, "Risk-Sensitive Markov Decision Processes", Management Science 18, 1972).
// Aversion 0 is the mean of logarithms, 1 the mean of times (a harmonic mean of speeds).
// docs/design/0009-default-first.md explains why it is 3.

const (
	// aversion to risk: the power of the time.
	aversion = 3
	// tailClip bounds one outcome, in natural log: more than 4 times slower than the
	// arm's mean counts as 4 times, because it may have other causes than the arm.
	tailClip = 2 * math.Ln2
	// tailMemory is the number of outcomes over which the tail is averaged. The tail of all
	// arms of the path counts as tailPrior outcomes.
	tailMemory = 200
	tailPrior  = 20
)

// Tail holds moments of time^aversion, over the time at Center.
type Tail struct {
	Center float32 `json:"center"` // natural log of speed
	Mean   float32 `json:"mean"`   // of exp(aversion (Center-x))
	Square float32 `json:"square"` // of its square
	N      float32 `json:"n"`      // outcomes, discounted
}

// add folds an outcome of speed exp(x), around a center that may have moved.
func (l *Tail) add(x, center, weight float64) {
	l.recenter(center)
	e, w := float32(math.Exp(aversion*min(max(center-x, -tailClip), tailClip))), float32(weight)
	l.N = l.N*(1-w/tailMemory) + w
	l.Mean += (e - l.Mean) * w / l.N
	l.Square += (e*e - l.Square) * w / l.N
}

// recenter moves the center. Beyond the clip the moments cannot be converted, and are reset.
func (l *Tail) recenter(center float64) {
	d := center - float64(l.Center)
	switch {
	case math.Abs(d) > tailClip:
		*l = Tail{}
	case l.N > 0 && d != 0:
		f := float32(math.Exp(aversion * d))
		l.Mean *= f
		l.Square *= f * f
	}
	l.Center = float32(center)
}

// at returns the moments around another center.
func (l Tail) at(center float64) Tail {
	l.recenter(center)
	return l
}

// tailOf combines the tails of arms, each around its arm's own mean, with a prior: the tail
// of a Normal distribution of the given variance.
func (t thompson) tailOf(arms []ArmBelief, variance float64) Tail {
	v := min(variance, 1) // beyond it the clip binds
	all := Tail{
		Mean: float32(math.Exp(aversion * aversion * v / 2)), Square: float32(math.Exp(2 * aversion * aversion * v)), N: tailPrior,
	}
	for i := range arms {
		a := &arms[i]
		l := a.Tail.at(a.logSpeed())
		all.Mean += (l.Mean - all.Mean) * l.N / max(all.N+l.N, 1)
		all.Square += (l.Square - all.Square) * l.N / max(all.N+l.N, 1)
		all.N += l.N
	}
	return all
}

// tailPenalty is how far an arm's value lies below its mean. noise is the variance of one
// observation of the value, and mean is that of one observation of the mean. The arm's tail
// is shrunk toward that of all arms. Without any tail the penalty is 0.
func (a *ArmBelief) tailPenalty(all Tail, mean float64) (penalty, noise float64) {
	if all.N == 0 {
		return 0, mean
	}
	penalty, noise = a.tailValue(all)
	if a != nil && a.Scatter > 0 {
		// An observation of several outcomes says more than one outcome, by as much as its
		// mean scatters less.
		noise *= mean / (mean + float64(a.Scatter))
	}
	return penalty, max(noise, mean)
}

// tailValue is tailPenalty, with the variance of one outcome.
func (a *ArmBelief) tailValue(all Tail) (penalty, noise float64) {
	mean, square := all.Mean, all.Square
	if a != nil && a.Tail.N > 0 {
		l := a.Tail.at(a.logSpeed())
		mean = (tailPrior*all.Mean + l.N*l.Mean) / (tailPrior + l.N)
		square = (tailPrior*all.Square + l.N*l.Square) / (tailPrior + l.N)
	}
	relative := max(0, float64(square/(mean*mean))-1) // squared coefficient of variation
	return math.Log(float64(mean)) / aversion, relative / (aversion * aversion)
}
