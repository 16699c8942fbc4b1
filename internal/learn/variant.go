package learn

import (
	"math"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// variant is a control that differs from another only in a few improvements. It is expected
// to be as good, or better by lead, a logarithm.
type variant struct {
	cc, of tcp.CC
	lead   float64
}

// tcpilot_cubic is 0.16 ahead where cubic ends slow start early, and not in long flows
// (docs/benchmarks.md): what a path has of it lies between.
var variants = [...]variant{
	{named("tcpilot_cubic"), named("cubic"), 0.03},
	{named("tcpilot_dctcp"), named("dctcp"), 0},
}

// variantOf returns what cc is as a variant of another control; nil if it is none.
func variantOf(cc, of tcp.CC) *variant {
	for i := range variants {
		if variants[i].cc == cc && variants[i].of == of {
			return &variants[i]
		}
	}
	return nil
}

const (
	// likeness is the standard deviation expected around that lead.
	likeness = 0.05
	// contradicts is how many standard deviations what was seen must lie from 0 for this
	// expectation to be given up.
	contradicts = 2
)

// ahead is the belief in by how much the value of c, the variant v of the default, is above
// the default's.
func (v *variant) ahead(c, base *candidate, calm float64) (mean, sd float64) {
	mean, variance := v.lead, likeness*likeness
	if c.weight > 0 && base.weight > 0 {
		seen := c.seen + c.price - base.seen - base.price
		of := c.scale/c.weight + base.scale/base.weight
		if seen*seen > contradicts*contradicts*(variance+of) {
			mean, variance = 0, calm*calm // as any other arm
		}
		mean = (seen*variance + mean*of) / (variance + of)
		variance *= of / (variance + of)
	}
	return mean, math.Sqrt(variance)
}
