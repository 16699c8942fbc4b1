package learn

import "math"

// A variant is a control that differs from another only in a few improvements
// (congestion.Control.VariantOf).

const (
	// likeness is the standard deviation of what a variant is expected to be ahead or behind.
	likeness = 0.05
	// contradicts is how many standard deviations the observed difference must lie from 0 for
	// this expectation to be given up.
	contradicts = 2
)

// ahead returns mean and standard deviation of the believed difference between the value of
// c, a variant of the default, and the default's. calm is the standard deviation to use if
// observations contradict what is expected of the variant.
func (c *candidate) ahead(base *candidate, calm float64) (mean, sd float64) {
	variance := likeness * likeness
	if c.weight > 0 && base.weight > 0 {
		seen := c.seen + c.price - base.seen - base.price
		of := c.scale/c.weight + base.scale/base.weight
		if seen*seen > contradicts*contradicts*(variance+of) {
			variance = calm * calm // as any other arm
		}
		mean = seen * variance / (variance + of)
		variance *= of / (variance + of)
	}
	return mean, math.Sqrt(variance)
}
