package link

import (
	"math"
	"math/big"
	"testing"
)

// The costs of a second's packets add up to a second.
func TestCost(t *testing.T) {
	for _, rate := range []uint64{minRate, 1e6, 20e6, 123_456_789, 1e9, 10e9, MaxRate} {
		bytes := new(big.Int).SetUint64(rate / 8)
		ns := new(big.Int).Rsh(bytes.Mul(bytes, new(big.Int).SetUint64(cost(rate))), 20)
		if got := float64(ns.Uint64()); math.Abs(got-1e9) > 1e4 {
			t.Errorf("at %d bit/s a second takes %.0f ns", rate, got)
		}
	}
	// The largest aggregate at the least rate must not overflow the model's product.
	if c := cost(minRate); c > math.MaxUint64/(1<<20) {
		t.Errorf("a byte at %d bit/s costs %d", minRate, c)
	}
}

func TestChance(t *testing.T) {
	for share, want := range map[float64]uint64{0: 0, 1: 1 << 32, 0.5: 1 << 31, 1.0 / (1 << 32): 1} {
		if got := chance(share); got != want {
			t.Errorf("chance(%v) = %d, want %d", share, got, want)
		}
	}
}

func TestInstantPartDelaysNothing(t *testing.T) {
	s := Spec{Delay: 10 * ms, Jitter: ms, Reorder: 0.1, Loss: 0.5, Rate: 1e6, ECN: 1000, Policer: Policer{8e6, 10_000}}
	c := s.instant()
	if c.Delay|c.Jitter|c.Reorder|c.Cost|c.QueueBytes|c.Ecn|uint64(c.Hold) != 0 {
		t.Errorf("instant part is %+v", c)
	}
	if c.Loss != 1<<31 || c.PoliceCost != 1000<<20 || c.PoliceBurst != 10e6 {
		t.Errorf("instant part is %+v", c)
	}
	h := s.delaying(epoch{generation: 2, cost: cost(s.Rate), since: 5, served: 6})
	if h.Delay != 10e6 || h.Jitter != 1e6 || h.Hold != 1 || h.Cost != 8000<<20 || h.Since != 5 || h.Served != 6 || h.Generation != 2 || h.QueueBytes != 65_536 || h.Ecn != 1000 {
		t.Errorf("all is %+v", h)
	}
}
