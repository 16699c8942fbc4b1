package datapath

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"time"
	"unsafe"
)

const (
	trackSize  = int64(unsafe.Sizeof(abiTrack{}))
	slotsARead = 1024
)

// HasAged reports whether a connection that has no socket storage yet is older than age, so
// that a walk has something to do. One that is older than lost does not count: earlier walks did
// not find it.
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
// must be called after walks of all network namespaces: those moved live connections to
// socket storage, so the kernel did not report the ends of the ones that are left. A connection
// that lives in a namespace without a walk is not reported at its end any more.
func (d *Datapath) FreeLost(age time.Duration) (n int, err error) {
	if d.live == nil { // without the iterator nothing moves them to socket storage
		return 0, nil
	}
	mem, err := d.maps.Slots.Memory()
	if err != nil {
		return 0, fmt.Errorf("map slots: %w", err)
	}
	const cookie = unsafe.Sizeof(abiTrack{}.Cookie) // the first member
	var zero [trackSize]byte
	now := monotonic()
	for s, err := range d.usedSlots() {
		if err == nil && !s.olderThan(age, now) {
			continue
		}
		at := int64(s.index) * trackSize
		if err == nil { // the cookie last, as slot_free of bpf/sockops/slots.bpf.h
			_, err = mem.WriteAt(zero[cookie:], at+int64(cookie))
		}
		if err == nil {
			_, err = mem.WriteAt(zero[:cookie], at)
		}
		if err != nil {
			return n, fmt.Errorf("free a slot: %w", err)
		}
		n++
	}
	return n, nil
}

// usedSlot is a copy of a slot that was used when it was read.
type usedSlot struct {
	index int
	abiTrack
}

func (s *usedSlot) olderThan(age time.Duration, now int64) bool {
	return s.StartNs < uint64(max(0, now-int64(age)))
}

// usedSlots are the slots in use. It reads the mapped memory: copying the slots by system calls
// takes a hundred times as long.
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
