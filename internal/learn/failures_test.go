package learn

import (
	"math/rand/v2"
	"testing"
)

// failing runs slices of time, of which a share is held out, and reports after which slice the
// treated connections were found to fail more often; -1: they were not. fails says whether a
// connection of a slice fails. One in fifty is held out by itself.
func failing(rng *rand.Rand, slices int, share float64, size func() int, fails func(slice int64, treated bool) bool) int {
	const single = 0.02
	var f Failures
	for i := range slices {
		slice := int64(i + 1)
		held := rng.Float64() < share
		for range size() {
			switch by, p := Treated, (1-share)*(1-single); {
			case held:
				f.Add(fails(slice, false), HoldOutSlice, 1/share, slice*second, slice*second, 1)
			case rng.Float64() < single:
				f.Add(fails(slice, false), HoldOutConnection, 1/((1-share)*single), slice*second, slice*second, 1)
			default:
				f.Add(fails(slice, true), by, 1/p, slice*second, slice*second, 1)
			}
		}
		if _, worse := f.Harm(); worse {
			return i
		}
	}
	return -1
}

// Failures that are not tcpilot's must not be found to be, however often it is checked: single
// ones, a peer that is down for a time, and one that refuses all connections of an instant.
func TestFailuresOfThePeerAreNotTcpilots(t *testing.T) {
	const paths, slices, most = 100, 3000, 8 // 8 of 100 are possible by chance at a true rate of 5 %
	for _, c := range []struct {
		name  string
		size  func(*rand.Rand) int
		fails func(*rand.Rand) func(int64) float64 // the share that fails in a slice
	}{
		{"one in a hundred", alone, constant(0.01)},
		{"one in three", alone, constant(0.33)},
		{"ten at a time, one in three", ten, constant(0.33)},
		{"down for minutes", alone, outages(100, 0.02)},
		{"ten at a time, down for an instant", ten, outages(1, 0.01)},
		{"down with a storm of connections", func(r *rand.Rand) int { return 1 + r.IntN(100)/99*50 }, outages(20, 0.05)},
	} {
		for _, share := range []float64{0.01, 0.1, 0.5, 0.95} {
			wrong := 0
			for seed := range uint64(paths) {
				rng := rand.New(rand.NewPCG(seed, 5))
				at, size := c.fails(rng), c.size
				if failing(rng, slices, share, func() int { return size(rng) }, func(i int64, _ bool) bool { return rng.Float64() < at(i) }) >= 0 {
					wrong++
				}
			}
			if wrong > most {
				t.Errorf("%s, %g held out: on %d of %d paths tcpilot is blamed", c.name, share, wrong, paths)
			}
			t.Logf("%s, %g held out: %d", c.name, share, wrong)
		}
	}
}

func alone(*rand.Rand) int { return 1 }
func ten(*rand.Rand) int   { return 10 }

func constant(p float64) func(*rand.Rand) func(int64) float64 {
	return func(*rand.Rand) func(int64) float64 { return func(int64) float64 { return p } }
}

// outages begin by chance, so that a share of all slices is within one, and last length slices.
func outages(length int64, share float64) func(*rand.Rand) func(int64) float64 {
	return func(r *rand.Rand) func(int64) float64 {
		until, last, now := int64(0), int64(0), 0.0
		return func(i int64) float64 {
			if i == last {
				return now
			}
			last = i
			if i > until && r.Float64() < share/float64(length) {
				until = i + length - 1
			}
			now = 0
			if i <= until {
				now = 1
			}
			return now
		}
	}
}

// The hold-out of a new path is larger. If connections begin to fail later, more of the treated
// ones are from that time.
func TestFailuresWithAHoldOutThatBecomesSmaller(t *testing.T) {
	wrong := 0
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 6))
		var f Failures
		worse := false
		for i := range int64(4000) {
			share, p := max(0.02, 0.1*25/(25+float64(i))), 0.
			if i >= int64(seed) {
				p = 0.4
			}
			if rng.Float64() < share {
				f.Add(rng.Float64() < p, HoldOutSlice, 1/share, (i+1)*second, (i+1)*second, 1)
			} else {
				f.Add(rng.Float64() < p, Treated, 1/(1-share), (i+1)*second, (i+1)*second, 1)
			}
			_, now := f.Harm()
			worse = worse || now
		}
		if worse {
			wrong++
		}
	}
	if wrong > 8 {
		t.Errorf("on %d of 100 paths tcpilot is blamed", wrong)
	}
	t.Log(wrong)
}

// A treatment that makes connections fail is found.
func TestFailuresAreFound(t *testing.T) {
	for _, c := range []struct {
		treated, heldOut, share float64
		size, within            int // slices, in the mean
	}{
		{1, 0, 0.02, 1, 300}, {1, 0, 0.1, 1, 80}, {1, 0, 0.75, 1, 30}, {1, 0, 0.02, 10, 50}, {1, 0.01, 0.99, 1, 700},
		{0.3, 0.01, 0.1, 1, 450}, {0.1, 0.01, 0.5, 10, 80}, {0.03, 0.01, 0.5, 10, 500},
	} {
		sum := 0
		const paths = 30
		for seed := range uint64(paths) {
			rng := rand.New(rand.NewPCG(seed, 5))
			at := failing(rng, 10*c.within, c.share, func() int { return c.size }, func(_ int64, treated bool) bool {
				if treated {
					return rng.Float64() < c.treated
				}
				return rng.Float64() < c.heldOut
			})
			if at < 0 {
				at = 10 * c.within
			}
			sum += at
		}
		if sum > c.within*paths {
			t.Errorf("%g and %g fail, %g held out, %d at a time: found after %d slices, want %d", c.treated, c.heldOut, c.share, c.size, sum/paths, c.within)
		}
		t.Logf("%+v: %d", c, sum/paths)
	}
}

// While single connections of the hold-out share the path with treated ones, they only count if
// the difference is plain.
func TestFailuresAmongOverlappingConnections(t *testing.T) {
	for _, c := range []struct {
		one    int // of so many treated connections fails
		atOnce float64
		want   bool
	}{{1, 20, true}, {4, 20, false}, {4, 1, true}} {
		var f Failures
		for i := range int64(2000) {
			if i%10 == 0 {
				f.Add(false, HoldOutConnection, 10, (i+1)*second, (i+1)*second, c.atOnce)
			} else {
				f.Add(i%int64(c.one) == 0, Treated, 10./9, (i+1)*second, (i+1)*second, c.atOnce)
			}
		}
		if s, worse := f.Harm(); worse != c.want {
			t.Errorf("one of %d fails, %g at a time: harm %t, %+v", c.one, c.atOnce, worse, s)
		}
	}
}
