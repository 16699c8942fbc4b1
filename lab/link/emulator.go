package link

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tcpilot/tcpilot/lab/topology"
	"golang.org/x/sys/unix"
)

// emulator holds packets that arrive at a device until the time that the model wrote into
// their marks and priorities. They wait in an NFQUEUE of the kernel. This process gets only
// their ids, marks and priorities, and releases them in batches.
type emulator struct {
	end   *topology.End
	queue *nfqueue
	wake  int // eventfd: makes the worker read epochsNow and stop

	unreserve func() // undoes Reserve for the worker's thread

	epochsNow atomic.Pointer[epochs] // set adds to them
	reorders  atomic.Bool            // packets may arrive that leave before earlier ones
	early     atomic.Int64           // ns: how much before its time a packet may leave with another
	late      atomic.Uint64
	stop      atomic.Bool
	done      sync.WaitGroup
}

// newEmulator holds IPv4 and IPv6 packets that arrive at end.
func newEmulator(end *topology.End) (*emulator, error) {
	if end.Index > math.MaxUint16 {
		return nil, fmt.Errorf("number queue: device index %d is too high", end.Index)
	}
	e := &emulator{end: end}
	e.epochsNow.Store(&epochs{{}})
	var err error
	// A host has a queue for each device, by its index.
	if e.queue, err = openQueue(end.Host, uint16(end.Index)); err != nil {
		return nil, err
	}
	if e.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("open eventfd: %w", err), e.queue.close())
	}
	e.unreserve = Reserve(1)
	e.done.Go(func() { newWorker(e).run() })
	if err := e.rules("-A"); err != nil {
		return nil, errors.Join(err, e.rules("-D"), e.shut())
	}
	return e, nil
}

// rules adds (-A) or deletes (-D) the rules that bring packets into the queue.
func (e *emulator) rules(verb string) error {
	var errs []error
	for _, tables := range []string{"iptables-legacy", "ip6tables-legacy"} {
		_, err := e.end.Host.Run(tables, "-w", "-t", "raw", verb, "PREROUTING", "-i", e.end.Device,
			"-j", "NFQUEUE", "--queue-num", fmt.Sprint(e.queue.number))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// shut ends the worker, which first releases all packets that wait.
func (e *emulator) shut() error {
	e.stop.Store(true)
	e.wakeUp()
	e.done.Wait()
	e.unreserve()
	return errors.Join(e.queue.close(), unix.Close(e.wake))
}

func (e *emulator) wakeUp() { unix.Write(e.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// set prepares for packets of this Spec; packets that wait for the rate then leave at
// the new one.
func (e *emulator) set(s Spec) (modelLinkConfig, error) {
	e.reorders.Store(s.Reorder > 0)
	e.early.Store(int64(early(s)))
	all := *e.epochsNow.Load()
	now := all[len(all)-1]
	if c := cost(s.Rate); c != now.cost {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			return modelLinkConfig{}, fmt.Errorf("read clock: %w", err)
		}
		now = now.next(c, ts.Nano())
		all = append(slices.Clip(all), now) // copied: the worker reads the old slice
		e.epochsNow.Store(&all)
		e.wakeUp()
	}
	return s.delaying(now), nil
}

// count adds the packets that the emulation dropped or released late.
func (e *emulator) count(c *Counters) error {
	drops, err := e.queue.drops()
	c.Failed += drops
	c.Late += e.late.Load()
	return err
}

// close deletes the rules; packets that wait are released at once.
func (e *emulator) close() error { return errors.Join(e.rules("-D"), e.shut()) }
