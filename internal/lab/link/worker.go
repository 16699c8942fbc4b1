package link

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// worker lets an emulator's packets go when they are due. It runs on a thread of
// its own and allocates next to nothing while it does.
type worker struct {
	*emulator
	clock clock
	inbox inbox
	// Packets wait in two lines: those that keep the order, and those that overtake
	// them.
	ordered, overtaking line
	batch, single       verdict
}

const (
	// lateness is what Counters.Late counts from.
	lateness = time.Millisecond
	// longestSleep is how long the worker leaves its socket unread while packets
	// wait: at a million packets a second it then holds 5,000 messages.
	longestSleep = 5 * time.Millisecond
	// oversleep is how much longer than asked a sleep lasts (measured: 23 to 62 µs
	// in 9 of 10 cases); packets count as due by as much before their time.
	oversleep = 30 * time.Microsecond
)

func newWorker(e *emulator) *worker {
	return &worker{
		emulator: e,
		clock:    newClock(),
		batch:    newVerdict(nfqVerdictBatch, e.queue.number),
		single:   newVerdict(nfqVerdict, e.queue.number),
	}
}

// workerPriority is a SCHED_FIFO priority below that of the kernel's own threads
// (50), and of the watch that looks for stalls.
const workerPriority = 5

// run works until the emulator stops, and then lets go what waits.
func (w *worker) run() {
	runtime.LockOSThread() // for what follows; the thread ends with this goroutine
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	// Before all ordinary threads: the load must not make the link late. Without the
	// right to it the packets that were late are counted, as ever.
	unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: workerPriority, Flags: unix.SCHED_FLAG_RESET_ON_FORK}, 0)
	for !w.stop.Load() {
		w.release(w.clock.now() + int64(oversleep))
		w.sleep()
		w.receive()
	}
	w.receive()
	w.release(forever)
}

// release lets all go that are due. One verdict does for those in order. It is on
// those before it too that overtake, but they were due long ago.
func (w *worker) release(now int64) {
	for {
		h, ok := w.overtaking.take(now)
		if !ok {
			break
		}
		w.single.send(w.queue.fd, h.id)
	}
	var last held
	n, late := 0, uint64(0)
	for {
		h, ok := w.ordered.take(now)
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

// sleep lasts until a packet is due or, if none waits, until one comes. While
// packets wait none that comes can be due before them, unless it may overtake.
func (w *worker) sleep() {
	fds := [...]unix.PollFd{{Fd: int32(w.wake), Events: unix.POLLIN}, {Fd: int32(w.queue.fd), Events: unix.POLLIN}}
	due := min(w.ordered.first(), w.overtaking.first())
	if due == forever {
		unix.Ppoll(fds[:], nil, nil)
		return
	}
	left := time.Duration(due-w.clock.now()) - oversleep
	if left <= 0 {
		return
	}
	timeout := unix.NsecToTimespec(min(left, longestSleep).Nanoseconds())
	if w.reorders.Load() {
		unix.Ppoll(fds[:], &timeout, nil)
	} else {
		unix.Ppoll(fds[:1], &timeout, nil)
	}
}

// receive takes in what has come: a bounded number, so that releases stay in time.
func (w *worker) receive() {
	for range 8 {
		n := w.inbox.receive(w.queue.fd)
		now := w.clock.now()
		for i := range n {
			if p, ok := parsePacket(w.inbox.message(i)); ok {
				w.enter(p, now)
			}
		}
		if n < len(w.inbox.data) {
			return
		}
	}
}

func (w *worker) enter(p packetMessage, now int64) {
	due, overtakes := dueBy(p.mark, now)
	if overtakes {
		w.overtaking.put(p.id, due)
	} else {
		w.ordered.put(p.id, due)
	}
}
