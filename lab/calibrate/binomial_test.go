package calibrate

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tcpilot/tcpilot/lab/link"
)

func TestIntervalLeavesATenthOfAPercentOutside(t *testing.T) {
	for _, tc := range []struct{ n, p float64 }{{10_000, 0.02}, {100_000, 0.5}, {1000, 0.001}, {20, 0.3}, {40_000, 0.999}} {
		low, high := interval(tc.n, tc.p)
		var below, above, atLow, atHigh float64
		for k := range int(tc.n) + 1 {
			c := chance(tc.n, float64(k), tc.p)
			switch share := float64(k) / tc.n; {
			case share < low:
				below += c
			case share > high:
				above += c
			case share == low:
				atLow = c
			case share == high:
				atHigh = c
			}
		}
		if below > tail || above > tail || below+atLow <= tail || above+atHigh <= tail {
			t.Errorf("%g of %g: %g to %g leaves %g below and %g above, want %g", tc.p, tc.n, low, high, below, above, tail)
		}
	}
	for _, p := range []float64{0, 1} {
		if low, high := interval(1000, p); low != p || high != p {
			t.Errorf("of probability %g: %g to %g", p, low, high)
		}
	}
	if low, high := interval(0, 0.1); low != 0 || high != 1 {
		t.Errorf("of no trials: %g to %g", low, high)
	}
}

// TestInflationIsThatOfAChannel compares with simulated channels.
func TestInflationIsThatOfAChannel(t *testing.T) {
	for _, s := range []link.Spec{
		{Loss: 0.02},
		{Bursts: link.Bursts{ToBad: 0.01, ToGood: 0.1, LossBad: 0.5}},
		{Loss: 0.05, Bursts: link.Bursts{ToBad: 0.02, ToGood: 0.3, LossBad: 1, LossGood: 0.01}},
	} {
		const runs, packets = 2000, 2000
		r := rand.New(rand.NewPCG(1, 2))
		var sum, squares float64
		for range runs {
			lost, bad := 0, r.Float64() < s.Bursts.ToBad/max(1e-9, s.Bursts.ToBad+s.Bursts.ToGood)
			for range packets {
				change, loss := s.Bursts.ToBad, s.Bursts.LossGood
				if bad {
					change, loss = s.Bursts.ToGood, s.Bursts.LossBad
				}
				if r.Float64() < loss || r.Float64() < s.Loss {
					lost++
				}
				if r.Float64() < change {
					bad = !bad
				}
			}
			share := float64(lost) / packets
			sum += share
			squares += share * share
		}
		mean := sum / runs
		variance := squares/runs - mean*mean
		p := s.LossShare()
		if math.Abs(mean-p) > 0.05*p {
			t.Errorf("%s: lost %g, want %g", s, mean, p)
		}
		if got, want := inflation(s), variance/(p*(1-p)/packets); math.Abs(got-want) > 0.15*want {
			t.Errorf("%s: varies %g times as much as single losses, want %g", s, got, want)
		}
	}
}

func TestOvertakers(t *testing.T) {
	for _, tc := range []struct {
		seqs []uint32
		want int
	}{
		{nil, 0},
		{[]uint32{0, 1, 5, 9}, 0},          // losses do not count
		{[]uint32{4, 0, 1, 2, 3, 5, 6}, 1}, // one went ahead of four
		{[]uint32{3, 5, 0, 1, 2, 4, 6}, 2},
		{[]uint32{2, 1, 0}, 2},
	} {
		if got := overtakers(tc.seqs); got != tc.want {
			t.Errorf("overtakers(%v) = %d, want %d", tc.seqs, got, tc.want)
		}
	}
}
