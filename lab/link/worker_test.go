package link

import (
	"testing"
	"time"
)

// A packet leaves early by at most a twentieth of the delay, and never more than a quarter of a
// millisecond.
func TestEarly(t *testing.T) {
	for delay, want := range map[time.Duration]time.Duration{
		0: 0, 50 * time.Microsecond: 2500 * time.Nanosecond, ms: 50 * time.Microsecond,
		5 * ms: 250 * time.Microsecond, 300 * ms: 250 * time.Microsecond,
	} {
		if got := early(Spec{Delay: delay}); got != want {
			t.Errorf("%v: %v early, want %v", delay, got, want)
		}
	}
}

// When a packet is due, packets that are due soon leave with it; a packet never leaves
// early by itself.
func TestPacketsLeaveTogether(t *testing.T) {
	e := &emulator{}
	e.epochsNow.Store(&epochs{{}})
	e.early.Store(int64(100 * time.Microsecond))
	w := &worker{emulator: e}
	w.ordered.put(delayed{id: 1, leaves: int64(10 * ms)})
	w.ordered.put(delayed{id: 2, leaves: int64(10*ms + 80*time.Microsecond)})
	w.ordered.put(delayed{id: 3, leaves: int64(10*ms + 300*time.Microsecond)})
	leaving := func(now int64) (n int) {
		until := w.until(now)
		for _, ok := w.ordered.take(until); ok; _, ok = w.ordered.take(until) {
			n++
		}
		return n
	}
	if n := leaving(int64(10*ms - 60*time.Microsecond)); n != 0 {
		t.Errorf("%d left before the first was due", n)
	}
	if n := leaving(int64(10 * ms)); n != 2 {
		t.Errorf("%d left with the first, want 2", n)
	}
	if n := leaving(int64(10*ms + 100*time.Microsecond)); n != 0 {
		t.Errorf("%d left alone before they were due", n)
	}
}
