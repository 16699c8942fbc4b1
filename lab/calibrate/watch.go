package calibrate

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/lab/link"
	"golang.org/x/sys/unix"
)

const (
	// watchTick is how long the watch sleeps at a time.
	watchTick = time.Millisecond
	// stallOver is the oversleep that counts as a stall: twice the 10 ms that Go lets
	// a goroutine run before another gets its turn.
	stallOver = 20 * time.Millisecond
	// watchPriority is a SCHED_FIFO priority above all ordinary threads and below
	// the kernel's own.
	watchPriority = 10
)

// Host is the result of a Watch. Shares are of the time of all processors.
type Host struct {
	Elapsed time.Duration `json:"elapsed_ns"`
	Busy    float64       `json:"busy"` // all time that is not idle, including Steal and Softirq
	Steal   float64       `json:"steal"`
	Softirq float64       `json:"softirq"` // including hard interrupts
	Busiest float64       `json:"busiest"` // the busiest processor's own share
	// Spent is the processor time of the whole machine, without Steal. It is counted in ticks.
	Spent time.Duration `json:"spent_ns,omitempty"`
	// Stalls counts how often a thread with priority over all ordinary ones woke more than
	// 20 ms late (stallOver): then the machine itself stalled, not only a thread that waited
	// for a processor.
	Stalls  int           `json:"stalls"`
	Longest time.Duration `json:"longest_ns"` // longest stall
	Stalled time.Duration `json:"stalled_ns"` // sum of all stalls
}

// Watch measures the load of the host while traffic runs.
type Watch struct {
	began  time.Time
	before []processor
	stop   chan struct{}
	stalls chan Host // its Stalls, Longest and Stalled
	undo   func()
}

// StartWatch starts a Watch.
func StartWatch() *Watch {
	w := &Watch{stop: make(chan struct{}), stalls: make(chan Host), undo: link.Reserve(1)}
	w.began, w.before = time.Now(), processors()
	go w.sleep()
	return w
}

// Stop returns the measurements since StartWatch.
func (w *Watch) Stop() Host {
	close(w.stop)
	h := <-w.stalls
	w.undo()
	h.Elapsed = time.Since(w.began)
	h.account(w.before, processors())
	return h
}

// sleep sleeps a tick at a time and records by how much each sleep was too long.
func (w *Watch) sleep() {
	runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
	// The error is ignored: without the privilege the watch also counts delays due to
	// load, which is on the safe side.
	unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_FIFO,
		Priority: watchPriority, Flags: unix.SCHED_FLAG_RESET_ON_FORK}, 0)
	var h Host
	tick := unix.NsecToTimespec(watchTick.Nanoseconds())
	for {
		select {
		case <-w.stop:
			w.stalls <- h
			return
		default:
		}
		before := time.Now()
		if unix.Nanosleep(&tick, nil) == nil { // otherwise a signal interrupted it
			h.slept(time.Since(before))
		}
	}
}

// slept records how long a sleep of one tick took.
func (h *Host) slept(d time.Duration) {
	late := d - watchTick
	if late <= stallOver {
		return
	}
	h.Stalls++
	h.Longest = max(h.Longest, late)
	h.Stalled += late
}

// userTick is the unit of processor times in /proc/stat: 1/USER_HZ (proc_stat(5)).
const userTick = time.Second / 100

// processor is a line of /proc/stat, in ticks.
type processor struct{ all, idle, steal, softirq uint64 }

// processors reads /proc/stat: all processors together, then each. It is empty if the file
// cannot be read.
func processors() []processor {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil
	}
	return parseStat(string(stat))
}

// spent is the time that was neither idle nor taken by another virtual machine (steal).
func (p processor) spent() time.Duration {
	return time.Duration(p.all-p.idle-p.steal) * userTick
}

// parseStat reads the lines of processors; proc_stat(5) has the columns.
func parseStat(stat string) (list []processor) {
	for line := range strings.Lines(stat) {
		f := strings.Fields(line)
		if len(f) < 9 || !strings.HasPrefix(f[0], "cpu") {
			continue
		}
		var column [8]uint64 // user nice system idle iowait irq softirq steal
		var p processor
		for i := range column {
			column[i], _ = strconv.ParseUint(f[i+1], 10, 64)
			p.all += column[i]
		}
		p.idle = column[3] + column[4]
		p.softirq = column[5] + column[6]
		p.steal = column[7]
		list = append(list, p)
	}
	return list
}

// account computes the shares.
func (h *Host) account(before, after []processor) {
	if len(before) == 0 || len(before) != len(after) {
		return // a processor went on- or offline
	}
	for i := range after {
		// Counters of idle time may decrease a little.
		share := func(a, b uint64) float64 {
			return float64(max(a, b)-b) / float64(max(1, max(after[i].all, before[i].all)-before[i].all))
		}
		idle := share(after[i].idle, before[i].idle)
		if i > 0 {
			h.Busiest = max(h.Busiest, 1-idle)
			continue
		}
		h.Busy = max(0, 1-idle)
		h.Spent = max(0, after[i].spent()-before[i].spent())
		h.Steal = share(after[i].steal, before[i].steal)
		h.Softirq = share(after[i].softirq, before[i].softirq)
	}
}

// Limits are the maximum load of a host during an experiment that counts.
type Limits struct {
	Busy    float64       // share; 1 is no limit
	Steal   float64       // share
	Stalled float64       // share of the time in stalls
	Longest time.Duration // one stall
}

// DefaultLimits are for hosts that must not be the bottleneck. Stalls of 40 to 500 ms are
// usual on shared machines; an occasional one does not change a median, stalls for 5 % of
// the time do.
var DefaultLimits = Limits{Busy: 0.9, Steal: 0.05, Stalled: 0.05, Longest: 500 * time.Millisecond}

// Sane returns an error, with what to do, if the load of the host makes figures useless.
func (h Host) Sane(l Limits) error {
	stalled := float64(h.Stalled) / float64(max(1, h.Elapsed))
	switch {
	case h.Steal > l.Steal:
		return fmt.Errorf("other virtual machines took %s of the processors (allowed: %s): run it when the host is quieter",
			console.Percent(h.Steal), console.Percent(l.Steal))
	case h.Longest > l.Longest:
		return fmt.Errorf("the machine stalled for %s (allowed: %s): run it again",
			short(h.Longest), short(l.Longest))
	case stalled > l.Stalled:
		return fmt.Errorf("the machine stalled for %s of %s, in %d stalls (allowed: %s): run it again, or when the host is quieter",
			short(h.Stalled), short(h.Elapsed), h.Stalls, console.Percent(l.Stalled))
	case h.Busy > l.Busy:
		return fmt.Errorf("the processors were %s busy (allowed: %s), so they were the bottleneck: end other programs, or ask for a lower rate",
			console.Percent(h.Busy), console.Percent(l.Busy))
	}
	return nil
}
