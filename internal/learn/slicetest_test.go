package learn

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
)

// slicesOf is a path that has many connections in each slice. Conditions drift, and scatter from slice to
// slice.
type slicesOf struct {
	SliceTest
	rng   *rand.Rand
	at    int64
	drift float64 // of ln(time)
	least float64 // share of slices held out if nothing speaks against what is used
}

// slice adds one slice in which treated connections take longer by slower, in natural log, and all of
// them by worse.
func (p *slicesOf) slice(slower, worse float64) {
	p.at += 16 * second
	p.drift = 0.95*p.drift + 0.1*p.rng.NormFloat64()
	share := min(0.5, p.least*p.More())
	heldOut := p.rng.Float64() < share
	log := p.drift + worse + 0.1*p.rng.NormFloat64()
	if !heldOut {
		log += slower
	}
	for range 20 {
		p.Add(Outcome{Weight: 1, Slice: p.at, Reward: -log - 0.3*p.rng.NormFloat64()}, heldOut, share)
	}
}

// untilWorse adds slices until treated ones are shown to be slower, most at most.
func (p *slicesOf) untilWorse(most int, slower float64) (n int) {
	for ; n < most && !p.Worse(); n++ {
		p.slice(slower, 0)
	}
	return n
}

// If the treatment makes no difference, at most one path of 20 is ever found to be worse, whatever share is
// held out, and although that share follows what was seen. Paths that become slower for all connections,
// again and again, are no exception, and neither are treated connections that are faster.
func TestSliceTestSeldomErrs(t *testing.T) {
	const paths, slices, most = 200, 4000, 17 // 17 and more are possible by chance in 3 of 100 runs if the true rate is 5 %
	for _, c := range []struct {
		name          string
		least, slower float64
		every         int // slices after which conditions change by a factor of 2
	}{
		{"2 % held out", 0.02, 0, 0}, {"20 %", 0.2, 0, 0}, {"90 %", 0.9, 0, 0},
		{"conditions change", 0.02, 0, 50}, {"faster", 0.02, -0.02, 0},
	} {
		wrong := 0
		for seed := range uint64(paths) {
			p := slicesOf{rng: rand.New(rand.NewPCG(seed, 5)), least: c.least}
			for i := range slices {
				worse := 0.0
				if c.every != 0 && i/c.every%2 == 1 {
					worse = math.Ln2
				}
				if p.slice(c.slower, worse); p.Worse() {
					wrong++
					break
				}
			}
		}
		if wrong > most {
			t.Errorf("%s: %d of %d paths are found to be worse", c.name, wrong, paths)
		}
		t.Log(c.name, wrong)
	}
}

// A treatment that is slower is found, from the beginning or after a long time in which it was not.
func TestSliceTestFinds(t *testing.T) {
	for _, c := range []struct {
		slower        float64
		before, limit int // slices
	}{
		{0.26, 0, 180}, {0.26, 2000, 180}, {0.14, 0, 350}, {0.14, 2000, 400}, {math.Ln2, 2000, 90},
	} {
		sum := 0
		const paths = 50
		for seed := range uint64(paths) {
			p := slicesOf{rng: rand.New(rand.NewPCG(seed, 7)), least: 0.02}
			if p.untilWorse(c.before, 0) < c.before {
				p = slicesOf{rng: p.rng, least: p.least}
			}
			sum += p.untilWorse(10*c.limit, c.slower)
			if r := p.Ratio(); p.Worse() && (r >= 1 || r < math.Exp(-3*c.slower)) {
				t.Errorf("slower by %g: %.2f times as fast", c.slower, r)
			}
		}
		if sum > c.limit*paths {
			t.Errorf("slower by %g after %d slices: found in %d slices, want %d", c.slower, c.before, sum/paths, c.limit)
		}
		t.Log(c, sum/paths)
	}
}

// The last connections of a slice end in the next one, and count for their own. Of an older slice, or of
// one whose draw changed in the middle, they do not count.
func TestSliceTestLateConnections(t *testing.T) {
	var c SliceTest
	add := func(at int64, heldOut bool) { c.Add(Outcome{Weight: 1, Slice: at}, heldOut, 0.1) }
	add(10, false)
	add(20, true)
	add(10, false)
	add(20, false)
	if c.Open[0].N != 1 || c.Open[1].N != 2 || c.Slices != 0 {
		t.Errorf("%+v", c)
	}
	add(30, false)
	add(10, false)
	if c.Open[0].N != 1 || c.Open[1].N != 1 || c.Slices != 1 {
		t.Errorf("%+v", c)
	}
	c.Add(Outcome{Weight: 1, Slice: 40}, false, 0) // nothing is held out: nothing to compare with
	c.Add(Outcome{Weight: 1}, false, 0.1)
	if c.Open[0].At != 30 {
		t.Errorf("%+v", c)
	}
	var kept SliceTest
	if text, err := json.Marshal(c); err != nil || json.Unmarshal(text, &kept) != nil || kept != c {
		t.Errorf("%v, %+v, want %+v", err, kept, c)
	}
}

// If the clock was set forward and back, the test goes on with the slices of now.
func TestSliceTestOfAClockSetBack(t *testing.T) {
	var c SliceTest
	for _, at := range []int64{1000, 5000, 1010, 1020} {
		c.Add(Outcome{Weight: 1, Slice: at * second}, false, 0.1)
	}
	if c.Open[0].At != 1020*second || c.Open[1].At != 1010*second {
		t.Errorf("%+v", c.Open)
	}
	const shift = 33 // 8.6 s
	if !c.Follows(1100*second, shift) || c.Follows(1200*second, shift) || (&SliceTest{}).Follows(1020*second, shift) {
		t.Error("a slice long ago counts as one of late")
	}
}

// A slow slice that counts for little does not count in full when it is left out.
func TestComparisonWithoutASlowOversampledSlice(t *testing.T) {
	var c Comparison
	for i := range int64(400) {
		o := Outcome{Weight: 1, Slice: (i + 1) * second, Oversampled: 1}
		if i == 200 {
			o.Reward, o.Oversampled = -math.Ln2, 25
		}
		by := Treated
		if i%40 == 0 {
			by = HoldOutSlice
		}
		c.Add(o, by)
	}
	if g := c.Gain(); !(g.Low > 0.6 && g.High > 1) { // not NaN
		t.Errorf("%+v", g)
	}
}

// While more slices than usual are held out, each counts for less: the two groups of a comparison
// would cover different times otherwise.
func TestComparisonOfOversampledSlices(t *testing.T) {
	var c Comparison
	for i := range int64(2000) {
		held, o := i%100 == 0, Outcome{Weight: 1, Slice: (i + 1) * second, Oversampled: 0.5}
		if i >= 1000 { // twice as slow for all, and ten times as many held out
			held, o.Reward, o.Oversampled = i%10 == 0, -math.Ln2, 10
		}
		if held {
			c.Add(o, HoldOutSlice)
		} else {
			c.Add(o, Treated)
		}
	}
	if g := c.Gain(); math.Abs(math.Log(g.Ratio)) > 0.1 || math.Abs(g.HeldOut-20) > 1 {
		t.Errorf("%+v", g)
	}
}
