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
	epochs              epochs // as the lines know them
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
	// Each time that the worker wakes up costs more than a packet does. So it lets
	// those go too that are due soon, as a device that moderates its interrupts:
	// within this part of the link's delay, and no more than longestEarly.
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

// run works until the emulator stops, and then lets go what waits.
func (w *worker) run() {
	runtime.LockOSThread() // for what follows; the thread ends with this goroutine
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	// Before all ordinary threads: the load must not make the link late. Without the
	// right to it the packets that were late are counted, as ever.
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

// until is the time that packets are due at which leave now.
func (w *worker) until(now int64) int64 {
	due := now + int64(oversleep)
	if min(w.ordered.first(), w.overtaking.first()) <= due {
		due += w.early.Load()
	}
	return due
}

// release lets all go that are due until then. One verdict does for those in order.
// It is on those before it too that overtake, but they were due long ago.
func (w *worker) release(now, until int64) {
	for {
		h, ok := w.overtaking.take(until)
		if !ok {
			break
		}
		w.single.send(w.queue.fd, h.id)
	}
	var last held
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

// sleep lasts until a packet is due or, if none waits, until one comes. While
// packets wait none that comes can be due before them, unless it may overtake.
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
	if fds[0].Revents != 0 { // heard
		var count [8]byte
		unix.Read(w.wake, count[:])
	}
}

// receive takes in what has come, and says whether that is all: the number is
// bounded, so that releases stay in time.
func (w *worker) receive() (all bool) {
	for range 8 {
		n := w.inbox.receive(w.queue.fd)
		now := w.clock.now()
		w.adopt() // no packet is of an epoch that is not told yet
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

// adopt lets those that wait leave at the rate as it is now.
func (w *worker) adopt() {
	was, told := len(w.epochs)-1, *w.epochsNow.Load()
	if was == len(told)-1 {
		return
	}
	w.epochs = told
	departure := func(leaves int64) int64 { return told.departure(was, leaves) }
	w.ordered.change(departure)
	w.overtaking.change(departure)
}

func (w *worker) enter(p packetMessage, now int64) {
	leaves, overtakes := readMark(p.mark, now)
	h := held{
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
