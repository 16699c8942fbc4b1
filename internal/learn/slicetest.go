package learn

import "math"

// SliceTest tests whether a path with many connections at a time is slower than it is in the slices of
// time that are held out. It is a test by betting (G. Shafer, "Testing by Betting", J. R. Stat.
// Soc. A 184, 2021; I. Waudby-Smith and A. Ramdas, "Estimating Means of Bounded Random Variables by
// Betting", J. R. Stat. Soc. B 86, 2024) on a draw whose probability is known: a slice is held
// out with the share p, whatever the path does in it. g says how much slower the slice was than those
// before it, from -1 to 1. A bet multiplies its wealth
//
//	by 1 - stake min(1, (1-p)/p) g   if the slice was held out,
//	by 1 + stake min(1, p/(1-p)) g   if it was treated.
//
// The expectation of the factor is 1 if treatment makes no difference, and at most 1 if treated
// slices are not slower. So the wealth reaches 1/alpha with a probability of at most alpha, however
// often that is checked (Ville's inequality). Nothing is assumed of how conditions vary, and p may
// change from slice to slice, also because of the wealth.
//
// A Comparison takes longer: it has to learn how slices scatter, and what was measured before a path
// became worse counts as much as what came later (docs/design/0028-slices-held-out.md).
type SliceTest struct {
	Wealth [len(stakes)]float64 `json:"wealth"` // of each stake; together they begin with a half
	// Recent is the wealth of the greatest stake had its bets begun with 1 at the best time so far (E. Page,
	// "Continuous Inspection Schemes", Biometrika 41, 1954): if a bet leaves 1 or less, the next one begins
	// with 1 again. Treated and HeldOut are the slices since then.
	Recent  float64   `json:"recent"`
	Treated SliceMean `json:"treated,omitzero"`
	HeldOut SliceMean `json:"held_out,omitzero"`

	Slices float64 `json:"slices"` // closed ones
	Level  float64 `json:"level"`  // ln of the time of recent slices
	// The open slices: the latest, and the one before, whose last connections may still end.
	Open [2]OpenSlice `json:"open"`
}

// SliceMean is by how much, in ln of their times, N slices were above the level of their time.
type SliceMean struct {
	N     float64 `json:"n"`
	Above float64 `json:"above"`
}

// OpenSlice is a slice whose connections have not all ended.
type OpenSlice struct {
	At        int64   `json:"at_ns,omitempty"` // its beginning, Unix ns; 0: none
	HeldOut   bool    `json:"held_out,omitempty"`
	Share     float64 `json:"share,omitempty"`     // of slices that were held out then
	Reference float64 `json:"reference,omitempty"` // Outcome.LogSpeed of the first connection
	Sum       float64 `json:"sum,omitempty"`       // of (time/reference)^aversion
	N         float64 `json:"n,omitempty"`         // connections
}

// stakes are the parts of their wealth that bets risk: the least finds small differences among
// slices that scatter, the greatest finds great ones soon.
var stakes = [...]float64{0.2, 0.9}

const (
	half = 0.5 / float64(len(stakes)) // of the wealth of a stake
	// levelSlices is the number of slices over which the level is averaged.
	levelSlices = 8
	// Half of the wealth is bet from the first slice on. The other half is added slice by slice, so that a
	// path that becomes worse late is found as well: after t slices, t/(t+laterSlices) of it was added.
	laterSlices = 256
)

// Add adds an outcome of a slice that was held out, or not, when share of all slices were.
func (c *SliceTest) Add(o Outcome, heldOut bool, share float64) {
	x := o.LogSpeed()
	if !o.usable() || math.IsNaN(x) || o.Slice == 0 || !(share > 0 && share < 1) {
		return
	}
	if c.Open[0].At-o.Slice > late {
		c.Open = [2]OpenSlice{} // the clock was set back
	}
	if o.Slice > c.Open[0].At {
		c.close(&c.Open[1])
		c.Open[1], c.Open[0] = c.Open[0], OpenSlice{At: o.Slice, HeldOut: heldOut, Share: share, Reference: x}
	}
	for i := range c.Open {
		if s := &c.Open[i]; s.At == o.Slice && s.HeldOut == heldOut {
			s.Sum += math.Exp(aversion * min(max(s.Reference-x, -comparedClip), comparedClip))
			s.N++
		}
	}
}

// Follows reports whether the test has had connections of a slice, or of the 16 before it. Slices have a length
// of 1<<shift ns.
func (c *SliceTest) Follows(slice int64, shift uint8) bool { return slice-c.Open[0].At <= 16<<shift }

// close bets on a slice.
func (c *SliceTest) close(s *OpenSlice) {
	if s.N == 0 {
		return
	}
	log := math.Log(s.Sum/s.N)/aversion - s.Reference
	if c.Slices++; c.Slices == 1 {
		c.Level = log
		for i := range c.Wealth {
			c.Wealth[i] = half
		}
		c.Recent = 1
		return
	}
	above := log - c.Level
	g := math.Tanh(aversion * above / 2)
	c.Level += above / min(c.Slices, levelSlices)
	odds := s.Share / (1 - s.Share)
	payoff := min(1, odds) * g
	if s.HeldOut {
		payoff = -min(1, 1/odds) * g
	}
	later := half * laterSlices / ((laterSlices + c.Slices - 1) * (laterSlices + c.Slices))
	for i, stake := range stakes {
		c.Wealth[i] = (c.Wealth[i] + later) * (1 + stake*payoff)
	}
	if c.Recent <= 1 {
		c.Recent, c.Treated, c.HeldOut = 1, SliceMean{}, SliceMean{}
	}
	c.Recent *= 1 + stakes[len(stakes)-1]*payoff
	if s.HeldOut {
		c.HeldOut.add(above)
	} else {
		c.Treated.add(above)
	}
}

func (m *SliceMean) add(above float64) {
	m.N++
	m.Above += (above - m.Above) / m.N
}

// Worse reports whether treated slices are slower, with an error of at most alpha at any time.
func (c *SliceTest) Worse() bool {
	sum := 0.0
	for _, w := range c.Wealth {
		sum += w
	}
	return sum >= 1/alpha
}

// Ratio is by what factor treated slices were faster than those held out, since the evidence began to
// grow.
func (c *SliceTest) Ratio() float64 { return math.Exp(c.HeldOut.Above - c.Treated.Above) }

// More is by what factor more slices are to be held out than usual, at least 1. The clearer recent slices
// say that the default is better, the sooner more of them decide, and the less they cost users.
func (c *SliceTest) More() float64 { return max(1, c.Recent*c.Recent*c.Recent) }
