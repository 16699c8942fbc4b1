package estimate

import (
	"math/rand/v2"
	"testing"
	"time"
)

// At any time, a window's extreme is that of some part of the past that is at least half as
// long as the window, and at most as long.
func TestWindowCoversHalfToAllOfItsLength(t *testing.T) {
	const length = time.Minute
	type sample struct {
		at int64
		v  uint64
	}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var (
			greatest, lowest Window
			past             []sample
			now              = int64(1e18)
		)
		for range 300 {
			now += r.Int64N(int64(length) / 4)
			v := 1 + r.Uint64N(1000)
			greatest.Max(now, v, length)
			lowest.Min(now, v, length)
			past = append(past, sample{now, v})

			recentMax, recentMin := uint64(0), uint64(1<<60) // of the latest half
			wholeMax, wholeMin := uint64(0), uint64(1<<60)   // of the whole window
			for _, s := range past {
				if now-s.at < int64(length)/2 {
					recentMax, recentMin = max(recentMax, s.v), min(recentMin, s.v)
				}
				if now-s.at <= int64(length) {
					wholeMax, wholeMin = max(wholeMax, s.v), min(wholeMin, s.v)
				}
			}
			if got := greatest.Greatest(); got < recentMax || got > wholeMax {
				t.Fatalf("seed %d: maximum %d, want %d to %d", seed, got, recentMax, wholeMax)
			}
			if got := lowest.Least(); got > recentMin || got < wholeMin {
				t.Fatalf("seed %d: minimum %d, want %d to %d", seed, got, wholeMin, recentMin)
			}
		}
	}
}

func TestWindowKeepsWhatItKnowsWhileIdle(t *testing.T) {
	var w Window
	w.Max(1e18, 7, time.Second)
	w.Max(1e18+3600e9, 0, time.Second) // unknown
	if got := w.Greatest(); got != 7 {
		t.Errorf("after an hour without a value: %d", got)
	}
	w.Max(1e18+3600e9, 3, time.Second)
	if got := w.Greatest(); got != 3 {
		t.Errorf("a new value after an hour: %d, want it alone", got)
	}
}

func TestWindowOfNothing(t *testing.T) {
	var w Window
	w.Min(1e18, 0, time.Second)
	if w != (Window{}) || w.Least() != 0 || w.Greatest() != 0 {
		t.Errorf("%+v", w)
	}
	w.Min(1e18, 9, time.Second)
	w.Min(1e18+6e8, 12, time.Second) // the next half
	if got := w.Least(); got != 9 {
		t.Errorf("least %d, want 9", got)
	}
}
