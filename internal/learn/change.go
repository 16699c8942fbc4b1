package learn

import "math"

// Run is a one-sided CUSUM (Page 1954): evidence that a mean has moved, and what
// was seen since that evidence began.
type Run struct {
	Sum  float64 `json:"sum"`  // of excess over the slack, in standard deviations
	N    float64 `json:"n"`    // weight seen since Sum was last 0
	Mean float64 `json:"mean"` // of these
}

// Signal is a baseline with a CUSUM on either side.
type Signal struct {
	Mean   float64 `json:"mean"`
	Weight float64 `json:"weight"`
	M2     float64 `json:"m2"`
	Up     Run     `json:"up"`
	Down   Run     `json:"down"`
}

const (
	// slack, in standard deviations: half the least shift that is looked for. With
	// limit 6.7 a one-sided CUSUM of Normal values runs about 120000 outcomes before it
	// raises a false alarm (Siegmund 1985: (exp(2kh')-1-2kh')/(2k^2), h' = h+1.166),
	// and finds a shift of 1.7 deviations in about 7. Baselines of a few outcomes, and other distributions,
	// make false alarms more frequent than that. Three extreme outcomes (clip) are enough.
	slack = 0.75
	limit = 6.7
	// clip bounds the influence of one outcome: two outcomes alone never raise an alarm.
	clip = 3
	// runRate is the least weight of the latest outcome in a run's mean, because a run
	// may have begun with noise before the change.
	runRate = 0.5
	// runMax is the greatest evidence that a run's mean counts for.
	runMax = 2
	// baseline is the least weight of a mean before deviations from it count.
	baseline = 1.8

	// Loss is watched on the scale ln(share + lossFloor), on which 0 to 1 % and 1 %
	// to 10 % are both a step of 2.3: more than a path's usual noise.
	lossFloor = 1e-3
	lossSD    = 0.5 // prior standard deviation on that scale
	lossDOF   = 3   // outcomes that it counts for
)

// step folds value x, which is z standard deviations beyond the mean in the
// direction watched, and reports whether the mean has moved.
func (r *Run) step(x, z, w float64) bool {
	r.Sum += w * (min(z, clip) - slack)
	if r.Sum <= 0 {
		*r = Run{}
		return false
	}
	r.N += w
	r.Mean += (x - r.Mean) * w * max(1/r.N, runRate)
	return r.Sum > limit
}

// watch reports whether x, of standard deviation sd around the baseline, completes
// the evidence for a change.
func watch(up, down *Run, x, mean, sd, w float64) bool {
	z := (x - mean) / sd
	rise := up.step(x, z, w)
	fall := down.step(x, -z, w)
	return rise || fall
}

// observe adds the retransmitted share of one outcome, 0 to 1. This share may show a change
// of the path that the reward of the arm in use does not show. For example, 2 % of loss
// hardly change the goodput of bbr; when the loss ends, cubic may be best again, and the
// goodput of bbr alone would never show it.
func (s *Signal) observe(loss, w, memory float64) (changed bool) {
	x := math.Log(loss + lossFloor)
	v := (lossDOF*lossSD*lossSD + s.M2) / (lossDOF + max(0, s.Weight-1))
	if s.Weight >= baseline {
		changed = watch(&s.Up, &s.Down, x, s.Mean, math.Sqrt(v*(1+1/s.Weight)), w)
	}
	s.Mean, s.Weight, s.M2 = fold(s.Mean, s.Weight, s.M2, x, w, memory)
	return changed
}

// restart takes what was seen since the change began as the new baseline.
func (s *Signal) restart() {
	if run := latest(&s.Up, &s.Down); run != nil {
		s.Mean = run.Mean
	}
	s.Weight = min(s.Weight, baseline)
	s.M2, s.Up, s.Down = 0, Run{}, Run{}
}

// latest returns the run with the most evidence; nil if neither has half of the limit.
func latest(up, down *Run) *Run {
	r := up
	if down.Sum > up.Sum {
		r = down
	}
	if r.Sum < limit/2. {
		return nil
	}
	return r
}

// fold adds x with weight w to a mean whose evidence fades with each new outcome,
// so that it never exceeds memory.
func fold(mean, weight, m2, x, w, memory float64) (float64, float64, float64) {
	keep := 1 - w/memory
	weight, m2 = weight*keep+w, m2*keep
	d := x - mean
	mean += d * w / weight
	return mean, weight, m2 + w*d*(x-mean)
}
