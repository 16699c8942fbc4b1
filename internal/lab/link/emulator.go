package link

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/tcpilot/tcpilot/internal/lab/topology"
	"golang.org/x/sys/unix"
)

// emulator holds packets that arrive at a device until the time that the model
// wrote on them. They wait in an NFQUEUE of the kernel; only their numbers and
// marks come up to this process, which lets them go in batches.
type emulator struct {
	end   *topology.End
	queue *nfqueue
	wake  int // eventfd: the worker shall look at stop

	unreserve func() // the worker's place among those that run

	reorders atomic.Bool // packets may come that leave before others
	late     atomic.Uint64
	stop     atomic.Bool
	done     sync.WaitGroup
}

// newEmulator holds IPv4 and IPv6 packets that arrive at end.
func newEmulator(end *topology.End) (*emulator, error) {
	if end.Index > math.MaxUint16 {
		return nil, fmt.Errorf("number queue: device index %d is too high", end.Index)
	}
	e := &emulator{end: end}
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

// rules adds or deletes what brings packets into the queue.
func (e *emulator) rules(verb string) error {
	var errs []error
	for _, tables := range []string{"iptables-legacy", "ip6tables-legacy"} {
		_, err := e.end.Host.Run(tables, "-w", "-t", "raw", verb, "PREROUTING", "-i", e.end.Device,
			"-j", "NFQUEUE", "--queue-num", fmt.Sprint(e.queue.number))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// shut ends the worker, which lets go what waits.
func (e *emulator) shut() error {
	e.stop.Store(true)
	unix.Write(e.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	e.done.Wait()
	e.unreserve()
	return errors.Join(e.queue.close(), unix.Close(e.wake))
}

// set prepares for packets of this Spec.
func (e *emulator) set(s Spec) error {
	e.reorders.Store(s.Reorder > 0)
	return nil
}

// count adds what went wrong.
func (e *emulator) count(c *Counters) error {
	drops, err := e.queue.drops()
	c.Failed += drops
	c.Late += e.late.Load()
	return err
}

// close takes the rules away; what waits is let go at once.
func (e *emulator) close() error { return errors.Join(e.rules("-D"), e.shut()) }
