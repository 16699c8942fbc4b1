package link

import (
	"math"
	"math/big"
	"testing"
)

// What the bottleneck could have sent is rate times time, for any length of time.
func TestEpochServed(t *testing.T) {
	const second = 1_000_000_000
	for _, rate := range []uint64{minRate, 1e6, 123_456_789, 10e9, MaxRate} {
		for _, seconds := range []int64{0, 1, 300, 30 * 24 * 3600} {
			e := epoch{cost: cost(rate), since: 5 * second, served: 7}
			got := new(big.Int).SetUint64(e.next(1, (5+seconds)*second).served - 7)
			want := new(big.Int).Mul(new(big.Int).SetUint64(rate), big.NewInt(seconds))
			f, _ := new(big.Float).SetInt(want).Float64()
			g, _ := new(big.Float).SetInt(got).Float64()
			if math.Abs(g-f) > 1+1e-5*f {
				t.Errorf("%d bit/s served %s bits in %d s, want %s", rate, got, seconds, want)
			}
		}
	}
	if e := (epoch{generation: 3, served: 7}).next(cost(1e6), 9); e != (epoch{4, cost(1e6), 9, 7 + backlog}) {
		t.Errorf("after no limit comes %+v", e)
	}
}

// A packet that waits when the rate changes is served at the new rate for the rest.
func TestEpochDeparture(t *testing.T) {
	all := epochs{
		{},
		{1, cost(20e6), 1000, 0},
		{2, cost(2e6), 2000, 0},
		{3, 0, 5000, 0},
		{4, cost(1e6), 6000, 0},
	}
	for _, c := range []struct{ index, leaves, want int64 }{
		{0, 900, 900},   // no limit: leaves at once
		{0, 1100, 1100}, // no limit in its epoch: unchanged in the next
		{1, 1999, 1999}, // left before the rate changes
		{1, 2100, 3000}, // 100 ns become 1000 ns at a tenth of the rate
		{1, 2500, 5000}, // 500 ns would become 5000 ns, but the limit is removed at 5000
		{2, 4000, 4000},
		{2, 7000, 5000},
		{4, 9000, 9000},
	} {
		if got := all.departure(int(c.index), c.leaves); got != c.want {
			t.Errorf("leaving at %d in epoch %d becomes %d, want %d", c.leaves, c.index, got, c.want)
		}
	}
	slow, fast := epoch{1, cost(minRate), 1000, 0}, epoch{0, cost(MaxRate), 0, 0}
	if got := slow.departure(fast, int64(maxHold)); got != 1000+longest {
		t.Errorf("the longest wait is until %d", got)
	}
}

func TestEpochsLatest(t *testing.T) {
	var all epochs
	for n := range uint32(30) {
		all = append(all, epoch{generation: n})
		for back := range min(n, 7) + 1 {
			if got := all.latest((n - back) & 7); got != int(n-back) {
				t.Errorf("%d epochs ago of %d is number %d", back, n, got)
			}
		}
	}
	if got := all[:2].latest(5); got != 0 {
		t.Errorf("an epoch that does not exist is number %d", got)
	}
}

// A change of the departure times keeps delays and order.
func TestFifoChange(t *testing.T) {
	var l fifo
	l.put(delayed{id: 1, leaves: 50, delay: 1})
	l.put(delayed{id: 2, leaves: 100, delay: 3}) // packets behind it are not due before it
	l.put(delayed{id: 3, leaves: 200, delay: 2})
	l.take(2000)
	l.change(func(leaves int64) int64 { return leaves * 10 })
	for _, want := range []delayed{{2, 3, 1000, 1000 + 3<<10}, {3, 2, 2000, 1000 + 3<<10}} {
		if got, ok := l.take(forever); !ok || got != want {
			t.Errorf("took %+v, want %+v", got, want)
		}
	}
	l.put(delayed{id: 4, leaves: 10})
	if got := l.first(); got != 1000+3<<10 {
		t.Errorf("one that comes later is due at %d", got)
	}
}
