package learn

import "math"

const (
	// meansNoise is the standard deviation that is expected of one observation, and counts as meansN
	// observations: a few that happen to agree prove little (Group.relativeVariance has the same).
	meansNoise = 0.4
	meansN     = 16
)

// MeanGain is by what factor the observations of one group are above those of another, with an interval that
// is valid at any time (boundary). They are natural logarithms. It compares means, and not the slowest as Comparison
// does: what a long connection gets is the mean.
func MeanGain(treated, heldOut []float64) Gain {
	n, m := float64(len(treated)), float64(len(heldOut))
	g := Gain{Treated: n, HeldOut: m}
	if n < leastCompared || m < leastCompared {
		return g
	}
	a, devA := meanOf(treated)
	b, devB := meanOf(heldOut)
	variance := (meansN*meansNoise*meansNoise + devA + devB) / (meansN + n + m - 2)
	off := boundary(1/(1/n+1/m), alpha/2) * // each bound is a test
		math.Sqrt(variance*(1/n+1/m))
	g.Ratio, g.Low, g.High = math.Exp(a-b), math.Exp(a-b-off), math.Exp(a-b+off)
	return g
}

// meanOf returns the mean of values, and the sum of squared deviations from it.
func meanOf(values []float64) (mean, deviations float64) {
	for i, v := range values {
		d := v - mean
		mean += d / float64(i+1)
		deviations += d * (v - mean)
	}
	return mean, deviations
}
