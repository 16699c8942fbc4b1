package link

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// forever is a time at which no packet is due.
const forever = math.MaxInt64

// delayed is a packet in the kernel's queue, with its times on the worker's clock.
type delayed struct {
	id     uint32
	delay  uint32 // after the bottleneck, in units of 1024 ns
	leaves int64  // when it leaves the bottleneck
	due    int64
}

// fifo is a queue of packets in the order in which they leave, kept in a ring buffer that
// grows.
type fifo struct {
	ring       []delayed // its length is a power of two, or 0
	head, tail uint
	last       int64 // when the last is due
}

// put appends a packet. It is not due before its predecessor.
func (l *fifo) put(h delayed) {
	if l.tail-l.head == uint(len(l.ring)) {
		l.grow()
	}
	l.last = max(l.last, h.leaves+int64(h.delay)<<10)
	h.due = l.last
	l.ring[l.tail%uint(len(l.ring))] = h
	l.tail++
}

// change computes anew when the packets that wait leave the bottleneck.
func (l *fifo) change(departure func(leaves int64) int64) {
	l.last = 0
	for i := l.head; i != l.tail; i++ {
		h := &l.ring[i%uint(len(l.ring))]
		h.leaves = departure(h.leaves)
		l.last = max(l.last, h.leaves+int64(h.delay)<<10)
		h.due = l.last
	}
}

func (l *fifo) grow() {
	bigger := make([]delayed, max(1024, 2*len(l.ring)))
	n := uint(0)
	for ; l.head != l.tail; l.head++ {
		bigger[n] = l.ring[l.head%uint(len(l.ring))]
		n++
	}
	l.ring, l.head, l.tail = bigger, 0, n
}

// first is when the first packet is due; forever if none waits.
func (l *fifo) first() int64 {
	if l.head == l.tail {
		return forever
	}
	return l.ring[l.head%uint(len(l.ring))].due
}

// take removes the first packet if it is due.
func (l *fifo) take(now int64) (h delayed, ok bool) {
	if l.first() > now || l.head == l.tail {
		return h, false
	}
	h = l.ring[l.head%uint(len(l.ring))]
	l.head++
	return h, true
}

// clock is CLOCK_MONOTONIC in nanoseconds, the clock of the model's marks. It is read
// through Go's time, which needs no system call (vDSO).
type clock struct {
	began time.Time
	at    int64
}

// newClock reads both clocks, and repeats that if the readings are too far apart:
// an error here would persist as long as the clock is used.
func newClock() clock {
	const apart = 10 * time.Microsecond
	var ts unix.Timespec
	for tries := 0; ; tries++ {
		began := time.Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			panic(err) // cannot fail for CLOCK_MONOTONIC
		}
		if took := time.Since(began); took < apart || tries == 1000 {
			return clock{began, ts.Nano()}
		}
	}
}

func (c clock) now() int64 { return c.at + int64(time.Since(c.began)) }

// readMark reads a mark (mark in bpf/model.bpf.c): the lower 31 bits of a time in
// units of 1024 ns, and a bit for packets that overtake. Of the times with these
// bits it returns the one nearest to now. 0 is no mark: the packet leaves at once.
func readMark(mark uint32, now int64) (leaves int64, overtakes bool) {
	if mark == 0 {
		return now, false
	}
	ahead := int32(mark-uint32(now>>10)) << 1 >> 1 // sign of 31 bits
	return (now>>10 + int64(ahead)) << 10, mark>>31 != 0
}
