package datapath

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	trackSize  = int64(unsafe.Sizeof(abiTrack{}))
	slotsARead = 1024
)

// HasAged reports whether a walk has something to do: whether a connection in a slot is older
// than age, so that a walk moves it to socket storage. One that is older than lost is ignored,
// because earlier walks did not find it.
func (d *Datapath) HasAged(age, lost time.Duration) (bool, error) {
	now := monotonic()
	for s, err := range d.usedSlots() {
		if err != nil {
			return false, err
		}
		if s.olderThan(age, now) && !s.olderThan(lost, now) {
			return true, nil
		}
	}
	return false, nil
}

// UsedSlots returns how many slots are used, and how many there are.
func (d *Datapath) UsedSlots() (used, all int, err error) {
	for _, err := range d.usedSlots() {
		if err != nil {
			return 0, 0, err
		}
		used++
	}
	return used, int(d.maps.Slots.MaxEntries()), nil
}

// FreeLost frees the slots of connections that are older than age, and returns how many. It
// must be called after walks of all network namespaces: these moved live connections to
// socket storage, so the connections that are left in slots have ended, and no program saw it.
// A connection that lives in a namespace without a walk has no sample at its end then.
func (d *Datapath) FreeLost(age time.Duration) (n int, err error) {
	if d.live == nil { // without the iterator live connections stay in slots
		return 0, nil
	}
	slots, err := mapMemory[abiTrack](d.maps.Slots, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return 0, fmt.Errorf("map slots: %w", err)
	}
	defer func() { err = errors.Join(err, unmapMemory(slots)) }()
	now := monotonic()
	for s, err := range d.usedSlots() {
		if err != nil {
			return n, fmt.Errorf("free slots: %w", err)
		}
		if s.olderThan(age, now) && freeSlot(&slots[s.index], &s.abiTrack) {
			n++
		}
	}
	return n, nil
}

// freeing is the cookie of a slot while user space frees it: no socket has it, and no program takes
// a slot that has one.
const freeing = ^uint64(0)

// freeSlot frees a slot, unless it belongs to another connection than when it was read. As
// slot_free of bpf/sockops/slots.bpf.h, it sets the cookie to 0 last, so that the next owner finds
// no flags.
func freeSlot(t *abiTrack, read *abiTrack) bool {
	if atomic.LoadUint64(&t.StartNs) != read.StartNs || !atomic.CompareAndSwapUint64(&t.Cookie, read.Cookie, freeing) {
		return false
	}
	*t = abiTrack{Cookie: freeing}
	atomic.StoreUint64(&t.Cookie, 0)
	return true
}

// usedSlot is a copy of a slot that was used when it was read.
type usedSlot struct {
	index int
	abiTrack
}

func (s *usedSlot) olderThan(age time.Duration, now int64) bool {
	return s.StartNs < uint64(max(0, now-int64(age)))
}

// usedSlots iterates over the slots in use. It reads the mapped memory, because reading the slots
// by system calls takes a hundred times as long.
func (d *Datapath) usedSlots() iter.Seq2[usedSlot, error] {
	return func(yield func(usedSlot, error) bool) {
		mem, err := d.maps.Slots.Memory()
		if err != nil {
			yield(usedSlot{}, fmt.Errorf("map slots: %w", err))
			return
		}
		var slots [slotsARead]abiTrack
		raw := unsafe.Slice((*byte)(unsafe.Pointer(&slots)), unsafe.Sizeof(slots))
		for at := int64(0); at < int64(mem.Size()); at += int64(len(raw)) {
			n, err := mem.ReadAt(raw, at)
			if err != nil && !errors.Is(err, io.EOF) {
				yield(usedSlot{}, fmt.Errorf("read slots: %w", err))
				return
			}
			for i, s := range slots[:int64(n)/trackSize] {
				if s.Cookie != 0 && !yield(usedSlot{int(at/trackSize) + i, s}, nil) {
					return
				}
			}
		}
	}
}
