package datapath

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// liveIterator walks the TCP sockets of the network namespace of the thread that
// opens it.
type liveIterator struct {
	prog *ebpf.Program
	iter *link.Iter
	join *link.Iter // counts connections that no hook counted; only used during Walk
	// lowat gives connections the TCP_NOTSENT_LOWAT of their rules (followLowat).
	lowat *link.Iter
	objs  iterObjects
}

// loadLive loads the iterator with the maps of the hooks. Without it, connections are sampled only
// at their end.
func (d *Datapath) loadLive() {
	it, err := newLiveIterator(d.maps, d.cgroupID)
	if err != nil {
		d.liveErr = err
		d.log.Warn("long-lived connections are sampled at their end only", "error", err)
		return
	}
	d.live = it
}

// newLiveIterator returns an iterator that adopts only connections below the cgroup of the
// given id; 0 is any.
func newLiveIterator(m *sockopsMaps, cgroup uint64) (*liveIterator, error) {
	spec, err := loadIter()
	if err != nil {
		return nil, fmt.Errorf("read embedded object iter: %w", err)
	}
	if err := spec.Variables[iterVarJiffyUs].Set(jiffyMicros()); err != nil {
		return nil, fmt.Errorf("set jiffy: %w", err)
	}
	if err := spec.Variables[iterVarAttachedCgroup].Set(cgroup); err != nil {
		return nil, fmt.Errorf("set cgroup: %w", err)
	}
	spec.Maps["flows_found"].MaxEntries = m.FlowCounts.MaxEntries()
	it := &liveIterator{}
	if err = spec.LoadAndAssign(&it.objs, withMaps(spec, m.replacements(spec))); err != nil {
		return nil, explainLoad("iter", err)
	}
	it.prog = it.objs.TcpilotLive
	if it.iter, err = link.AttachIter(link.IterOptions{Program: it.prog}); err != nil {
		return nil, errors.Join(fmt.Errorf("attach TCP iterator: %w", err), it.objs.Close())
	}
	if it.join, err = link.AttachIter(link.IterOptions{Program: it.objs.TcpilotJoin}); err != nil {
		return nil, errors.Join(fmt.Errorf("attach TCP iterator: %w", err), it.iter.Close(), it.objs.Close())
	}
	if it.lowat, err = link.AttachIter(link.IterOptions{Program: it.objs.TcpilotLowat}); err != nil {
		return nil, errors.Join(fmt.Errorf("attach TCP iterator: %w", err), it.join.Close(), it.iter.Close(), it.objs.Close())
	}
	return it, nil
}

// adoption tells in which walks connections without state are adopted. As long as all connections are followed,
// in all; on a busy host, where most have no state for good (bpf/sockops/follow.bpf.h), in one complete walk after
// there may be some that the programs should have followed.
type adoption struct {
	wanted atomic.Uint64 // how often there may have been some, beside those for which there was no room
	served atomic.Uint64 // wanted, before the latest complete walk
	noRoom uint64        // COUNT_UNTRACKED, before that walk; only the caller of Walk uses it
	// leftOut: some connections were not followed before the latest walk began.
	leftOut atomic.Bool
}

// beginAdoption tells the iterator whether the walk that follows adopts connections. done is to be called if it
// was complete.
func (d *Datapath) beginAdoption() (done func(), err error) {
	n, err := d.counterSums()
	if err != nil {
		return nil, err
	}
	wanted, noRoom, adopts := d.adoption.wanted.Load(), n[abiCounterCOUNT_UNTRACKED], uint32(0)
	d.adoption.leftOut.Store(n[abiCounterCOUNT_NOT_FOLLOWED] != 0)
	if wanted != d.adoption.served.Load() || noRoom != d.adoption.noRoom || !d.adoption.leftOut.Load() {
		adopts = 1
	}
	if err := d.live.objs.Adopts.Set(adopts); err != nil {
		return nil, fmt.Errorf("set whether connections are adopted: %w", err)
	}
	return func() {
		d.adoption.served.Store(wanted)
		d.adoption.noRoom = noRoom
	}, nil
}

// lowatPause: of the walks without a reason, one in so many looks at TCP_NOTSENT_LOWAT, because a program of its own reads
// all sockets for that, as slowly as the walk itself. What it finds are paths whose connections were all held out, or
// are not any more.
const lowatPause = 12

// lowats tells which walks look at the TCP_NOTSENT_LOWAT of running connections: one complete walk after rules or settings
// have changed, or after the start, because an earlier daemon may have had a rule that sets it; and one in lowatPause as long as some rule sets it.
type lowats struct {
	sets           atomic.Bool
	wanted, served atomic.Uint64 // wanted: changes; served: wanted, before the latest complete walk that looked
	looks          atomic.Bool   // the present walk does
	walks          uint64        // only the caller of Walk uses it
}

// changed notes that rules or settings were written.
func (l *lowats) changed() {
	if l.sets.Load() {
		l.wanted.Add(1)
	}
}

// begin decides whether the walk that follows looks. done is to be called if it was complete.
func (l *lowats) begin() (done func()) {
	wanted := l.wanted.Load()
	l.walks++
	l.looks.Store(wanted != l.served.Load() || l.sets.Load() && l.walks%lowatPause == 0)
	return func() { l.served.Store(wanted) }
}

// followLowat lets walks give running connections the TCP_NOTSENT_LOWAT of their rules, or, if none sets one, what
// they had before.
func (d *Datapath) followLowat(sets bool) error {
	if d.live == nil || d.lowats.wanted.Load() != 0 && d.lowats.sets.Load() == sets {
		d.lowats.changed()
		return nil
	}
	var value uint32
	if sets {
		value = 1
	}
	if err := d.live.objs.SetsLowat.Set(value); err != nil {
		return fmt.Errorf("set whether rules set TCP_NOTSENT_LOWAT: %w", err)
	}
	d.lowats.sets.Store(sets)
	d.lowats.wanted.Add(1)
	return nil
}

// replacements are the maps that spec shares with the hooks, by their names in C.
func (m *sockopsMaps) replacements(spec *ebpf.CollectionSpec) map[string]*ebpf.Map {
	shared := map[string]*ebpf.Map{}
	for field, value := range reflect.ValueOf(m).Elem().Fields() {
		if name := field.Tag.Get("ebpf"); spec.Maps[name] != nil {
			shared[name] = value.Interface().(*ebpf.Map)
		}
	}
	return shared
}

// withMaps are options with which spec is loaded with maps that exist already. It gives the maps of spec their
// sizes, some of which depend on the host or on the configuration.
func withMaps(spec *ebpf.CollectionSpec, existing map[string]*ebpf.Map) *ebpf.CollectionOptions {
	for name, m := range existing {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	return &ebpf.CollectionOptions{MapReplacements: existing}
}

func (it *liveIterator) Close() error {
	it.objs.iterVariables = iterVariables{} // mapped memory holds a map
	return errors.Join(it.lowat.Close(), it.join.Close(), it.iter.Close(), it.objs.Close())
}

// SampleLive samples the long-lived connections of the calling thread's network
// namespace; during join (see Walk) it only counts them. It does nothing if the kernel has
// no TCP iterator.
func (d *Datapath) SampleLive() error {
	if d.live == nil {
		return nil
	}
	if d.flows.joining {
		return walkSockets(d.live.join)
	}
	d.walking.begin()
	defer d.walking.end()
	if err := walkSockets(d.live.iter); err != nil || !d.lowats.looks.Load() {
		return err
	}
	return walkSockets(d.live.lowat)
}

// walkSockets runs the program of a TCP iterator for the sockets of the calling thread's network namespace.
func walkSockets(it *link.Iter) error {
	r, err := it.Open()
	if err != nil {
		return fmt.Errorf("open TCP iterator: %w", err)
	}
	defer r.Close()
	if _, err := io.Copy(io.Discard, r); err != nil {
		return fmt.Errorf("walk TCP sockets: %w", err)
	}
	return nil
}
