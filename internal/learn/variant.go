package learn

import (
	"math"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// variants lists controls that differ from another only in a few improvements. They are
// expected to be as good.
var variants = [...]struct{ cc, of tcp.CC }{
	{named("tcpilot_cubic"), named("cubic")},
	{named("tcpilot_dctcp"), named("dctcp")},
}

func isVariant(cc, of tcp.CC) bool {
	for i := range variants {
		if variants[i].cc == cc {
			return variants[i].of == of
		}
	}
	return false
}

const (
	// likeness is the standard deviation expected between the default and a variant of it.
	likeness = 0.05
	// contradicts is how many standard deviations what was seen must lie from 0 for this
	// expectation to be given up.
	contradicts = 2
)

// ahead is the belief in by how much the value of a variant of the default is above the
// default's.
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
