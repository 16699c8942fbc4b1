package link

import (
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFifoKeepsOrder(t *testing.T) {
	var l fifo
	rng := rand.New(rand.NewPCG(1, 2))
	var id, next uint32
	now, last := int64(0), int64(0)
	for range 50_000 {
		now += int64(rng.IntN(10))
		for range rng.IntN(4) {
			l.put(delayed{id: id, leaves: now + int64(rng.IntN(1000))})
			id++
		}
		for {
			h, ok := l.take(now)
			if !ok {
				break
			}
			if h.id != next || h.due > now || h.due < last {
				t.Fatalf("took %+v at %d after %d due at %d", h, now, next, last)
			}
			next, last = h.id+1, h.due
		}
		if first := l.first(); first <= now {
			t.Fatalf("at %d a packet waits that is due at %d", now, first)
		}
	}
	for _, ok := l.take(forever); ok; _, ok = l.take(forever) {
		next++
	}
	if next != id || l.first() != forever {
		t.Errorf("took %d of %d", next, id)
	}
}

func TestReadMark(t *testing.T) {
	const unit = 1024
	for _, now := range []int64{0, 5 * unit, 1<<31*unit - unit, 1<<31*unit + 3*unit, 1 << 50} {
		for _, ahead := range []int64{-1_000_000 * unit, -unit, 0, unit, int64(600*ms) / unit * unit, int64(maxHold) / unit * unit} {
			want := now/unit*unit + ahead
			if want < 0 {
				continue
			}
			mark := uint32(want>>10) & 0x7fffffff
			for _, flag := range []uint32{0, 1 << 31} {
				if mark|flag == 0 {
					continue // 0 is no mark, tested below
				}
				due, overtakes := readMark(mark|flag, now)
				if due != want || overtakes != (flag != 0) {
					t.Errorf("at %d the mark of %d is read as %d, overtakes %v", now, want, due, overtakes)
				}
			}
		}
	}
	if due, overtakes := readMark(0, 12345); due != 12345 || overtakes {
		t.Errorf("without a mark a packet leaves at %d, overtakes %v", due, overtakes)
	}
}

func TestClock(t *testing.T) {
	c := newClock()
	least := time.Hour
	for range 100 { // something may come between the two readings
		var ts unix.Timespec
		now := c.now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			t.Fatal(err)
		}
		least = min(least, time.Duration(ts.Nano()-now).Abs())
	}
	if least > 50*time.Microsecond {
		t.Errorf("the clock is %s off", least)
	}
}
