package calibrate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// segment is a part of a stream: packets at an even rate.
type segment struct {
	duration time.Duration
	pps      float64
}

// stream is the packets sent in one direction.
type stream struct {
	number   uint32
	payload  int // bytes
	segments []segment
	// burst is the maximum number of packets sent at once. If the sender is late by more,
	// the rest is left out, so that a late wake-up does not overflow a queue.
	burst int
	// group is how many packets are sent as one aggregate, for links that carry
	// aggregates.
	group int
	// restarts is how often at most the stream begins again when the sender is late by more than a burst.
	restarts int
}

// tick is the interval at which a stream sends the packets that are due.
const tick = 250 * time.Microsecond

// due is how many packets should have been sent by then; more is false at the end.
func (s stream) due(elapsed time.Duration) (packets int, more bool) {
	sum := 0.0
	for _, l := range s.segments {
		sum += l.pps * min(elapsed, l.duration).Seconds()
		if elapsed -= l.duration; elapsed < 0 {
			return int(sum), true
		}
	}
	return int(sum), false
}

// departed is what was sent of a stream.
type departed struct {
	began   time.Duration // for the last time
	sent    int           // since then
	earlier int           // before
}

// send sends the stream from a thread of its own, whose timers are exact.
func (s stream) send(ctx context.Context, from, to *socket) (d departed, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
		// If other threads get the processor first, a short queue runs empty. The error is
		// ignored: without the privilege that may happen, and the measurement shows it.
		unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20)
		d, err = s.pace(ctx, from, to)
	}()
	<-done
	return d, err
}

func (s stream) pace(ctx context.Context, from, to *socket) (d departed, err error) {
	buf := make([]byte, s.payload*s.group)
	var oob []byte
	if s.group > 1 {
		oob = segmentation(s.payload)
	}
	skipped := 0
	sleep := unix.NsecToTimespec(tick.Nanoseconds())
	for d.began = now(); ; unix.Nanosleep(&sleep, nil) {
		due, more := s.due(now() - d.began)
		most := max(s.burst, s.group)
		behind := due - skipped - d.sent
		if behind > most && s.restarts > 0 {
			s.restarts--
			d, skipped = departed{began: now(), earlier: d.earlier + d.sent}, 0
			continue
		}
		if err := ctx.Err(); err != nil || !more {
			return d, err
		}
		if behind > most {
			skipped += behind - most
			behind = most
		}
		for ; behind >= s.group; behind -= s.group {
			for i := range s.group {
				head{s.number, uint32(d.earlier + d.sent + i), now()}.put(buf[i*s.payload:])
			}
			if err := from.write(buf, oob, to); err != nil {
				return d, err
			}
			d.sent += s.group
		}
	}
}

func (s *socket) write(payload, oob []byte, to *socket) error {
	_, _, err := s.WriteMsgUDPAddrPort(payload, oob, to.addr)
	// A qdisc that drops reports it to the sender: it counts as loss.
	if err != nil && !errors.Is(err, unix.ENOBUFS) {
		return fmt.Errorf("send probes: %w", err)
	}
	return nil
}

// collect passes on packets of a stream that arrive, from a goroutine of its own. It ends
// when stop has been called and either all packets have arrived or linger has passed, or
// when ctx ends.
func (s *socket) collect(number uint32, each func(a arrival, payload []byte)) (stop func(ctx context.Context, sent int, linger time.Duration) error) {
	s.SetReadDeadline(time.Time{})
	var came, expected atomic.Int64
	expected.Store(math.MaxInt64)
	done := make(chan error, 1)
	go func() {
		done <- s.receive(func(a arrival, payload []byte) {
			if a.stream != number {
				return
			}
			each(a, payload)
			if came.Add(1) >= expected.Load() {
				s.SetReadDeadline(time.Now())
			}
		})
	}()
	return func(ctx context.Context, sent int, linger time.Duration) error {
		s.SetReadDeadline(time.Now().Add(linger))
		defer context.AfterFunc(ctx, func() { s.SetReadDeadline(time.Now()) })()
		if expected.Store(int64(sent)); came.Load() >= int64(sent) {
			s.SetReadDeadline(time.Now())
		}
		return <-done
	}
}

// direction is one direction of a path.
type direction struct {
	from, to *socket
	asked    Asked
	overhead int     // bytes of a frame around a payload
	easy     float64 // rate that the machine carries easily, packets/s
}

// received is the received part of a stream, since it began for the last time.
type received struct {
	began, ended time.Duration // sending
	sent         int
	arrivals     []arrival
}

// run sends a stream and collects the packets that arrive.
func (w *direction) run(ctx context.Context, s stream) (c received, err error) {
	stop := w.to.collect(s.number, func(a arrival, _ []byte) { c.arrivals = append(c.arrivals, a) })
	d, err := s.send(ctx, w.from, w.to)
	c.began, c.ended, c.sent = d.began, now(), d.sent
	linger := w.asked.worst()
	if err != nil {
		linger = 0
	}
	err = errors.Join(err, stop(ctx, d.earlier+d.sent, linger))
	if err == nil {
		err = ctx.Err() // ctx ended the wait early
	}
	c.arrivals = slices.DeleteFunc(c.arrivals, func(a arrival) bool { return a.sent < d.began })
	return c, err
}
