package link

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// worker releases an emulator's packets when they are due. It runs on a thread of its own,
// and allocates memory only to let its queues grow.
type worker struct {
	*emulator
	clock clock
	inbox inbox
	// Packets wait in two queues: those that keep the order, and those that overtake them.
	ordered, overtaking fifo
	batch, single       verdict
	epochs              epochs // those that the times of waiting packets are computed with
}

const (
	// lateness is the delay beyond its time from which Counters.Late counts a packet.
	lateness = time.Millisecond
	// longestSleep is how long the worker leaves its socket unread while packets
	// wait: at a million packets a second it then holds 5,000 messages.
	longestSleep = 5 * time.Millisecond
	// oversleep is how much longer than asked a sleep lasts (measured: 23 to 62 µs
	// in 9 of 10 cases); packets count as due this much before their time.
	oversleep = 30 * time.Microsecond
	// A wake-up of the worker costs more than a packet does. So each wake-up also
	// releases packets that are due soon, similar to interrupt moderation of a network
	// device: within this part of the link's delay, at most longestEarly.
	earlyShare   = 20
	longestEarly = 250 * time.Microsecond
)

// early is how much before its time a packet may leave together with another.
func early(s Spec) time.Duration { return min(s.Delay/earlyShare, longestEarly) }

func newWorker(e *emulator) *worker {
	return &worker{
		emulator: e,
		clock:    newClock(),
		epochs:   *e.epochsNow.Load(),
		batch:    newVerdict(nfqVerdictBatch, e.queue.number),
		single:   newVerdict(nfqVerdict, e.queue.number),
	}
}

// workerPriority is a SCHED_FIFO priority below that of the kernel's own threads
// (50), and of the watch that looks for stalls.
const workerPriority = 5

// run works until the emulator stops, and then releases all packets that wait.
func (w *worker) run() {
	runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	// Run before all ordinary threads, so that load does not make packets late. The
	// error is ignored: without the privilege, late packets are only counted.
	unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: workerPriority, Flags: unix.SCHED_FLAG_RESET_ON_FORK}, 0)
	for all := true; !w.stop.Load(); {
		now := w.clock.now()
		w.release(now, w.until(now))
		if all {
			w.sleep()
		}
		all = w.receive()
	}
	for !w.receive() {
	}
	w.release(w.clock.now(), forever)
}

// until is the time up to which packets are released now.
func (w *worker) until(now int64) int64 {
	due := now + int64(oversleep)
	if min(w.ordered.first(), w.overtaking.first()) <= due {
		due += w.early.Load()
	}
	return due
}

// release releases all packets that are due until then. One batch verdict releases all
// ordered ones. It also accepts overtaking packets with lower ids, but those were due long
// ago.
func (w *worker) release(now, until int64) {
	for {
		h, ok := w.overtaking.take(until)
		if !ok {
			break
		}
		w.single.send(w.queue.fd, h.id)
	}
	var last delayed
	n, late := 0, uint64(0)
	for {
		h, ok := w.ordered.take(until)
		if !ok {
			break
		}
		last = h
		n++
		if now-h.due > int64(lateness) {
			late++
		}
	}
	if n > 0 {
		w.batch.send(w.queue.fd, last.id)
		w.late.Add(late)
	}
}

// sleep waits until a packet is due or, if none waits, until one arrives. While
// packets wait, an arriving packet cannot be due before them, unless it may overtake.
func (w *worker) sleep() {
	fds := [...]unix.PollFd{{Fd: int32(w.wake), Events: unix.POLLIN}, {Fd: int32(w.queue.fd), Events: unix.POLLIN}}
	due := min(w.ordered.first(), w.overtaking.first())
	if due == forever {
		unix.Ppoll(fds[:], nil, nil)
	} else if left := time.Duration(due-w.clock.now()) - oversleep; left > 0 {
		timeout := unix.NsecToTimespec(min(left, longestSleep).Nanoseconds())
		if w.reorders.Load() {
			unix.Ppoll(fds[:], &timeout, nil)
		} else {
			unix.Ppoll(fds[:1], &timeout, nil)
		}
	}
	if fds[0].Revents != 0 { // clear the wake-up
		var count [8]byte
		unix.Read(w.wake, count[:])
	}
}

// receive reads packets that have arrived, and reports whether it read all: the number
// is bounded, so that releases stay in time.
func (w *worker) receive() (all bool) {
	for range 8 {
		n := w.inbox.receive(w.queue.fd)
		now := w.clock.now()
		w.adopt() // after the read: so every packet's epoch is known
		for i := range n {
			if p, ok := parsePacket(w.inbox.message(i)); ok {
				w.enter(p, now)
			}
		}
		if n < len(w.inbox.data) {
			return true
		}
	}
	return false
}

// adopt takes over new epochs: packets that wait then leave at the current rate.
func (w *worker) adopt() {
	last, current := len(w.epochs)-1, *w.epochsNow.Load()
	if last == len(current)-1 {
		return
	}
	w.epochs = current
	departure := func(leaves int64) int64 { return current.departure(last, leaves) }
	w.ordered.change(departure)
	w.overtaking.change(departure)
}

func (w *worker) enter(p packetMessage, now int64) {
	leaves, overtakes := readMark(p.mark, now)
	h := delayed{
		id:     p.id,
		delay:  p.priority & (1<<29 - 1),
		leaves: w.epochs.departure(w.epochs.latest(p.priority>>29), leaves),
	}
	if overtakes {
		w.overtaking.put(h)
	} else {
		w.ordered.put(h)
	}
}
