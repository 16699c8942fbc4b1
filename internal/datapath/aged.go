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

// Aged reports whether a connection that has no socket storage yet is older than
// age, so that a walk would have something to take over.
func (d *Datapath) Aged(age time.Duration) (bool, error) {
	for _, err := range d.agedSlots(age) {
		return err == nil, err
	}
	return false, nil
}

// FreeLost frees the slots of connections that are older than age, after walks of all
// network namespaces have taken over those that live: the ends of the others were missed.
// It returns how many there were.
func (d *Datapath) FreeLost(age time.Duration) (n int, err error) {
	if d.live == nil { // nobody takes them over
		return 0, nil
	}
	mem, err := d.maps.Slots.Memory()
	if err != nil {
		return 0, fmt.Errorf("map slots: %w", err)
	}
	const cookie = unsafe.Sizeof(abiTrack{}.Cookie) // which comes first
	var zero [trackSize]byte
	for at, err := range d.agedSlots(age) {
		if err == nil { // as slot_free of bpf/sockops/slots.bpf.h does it: the cookie last
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

// agedSlots are the offsets of the slots in use that are older than age. It reads them in
// their memory: to have the kernel copy them takes a hundred times as long.
func (d *Datapath) agedSlots(age time.Duration) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		oldest := uint64(max(0, monotonic()-int64(age)))
		mem, err := d.maps.Slots.Memory()
		if err != nil {
			yield(0, fmt.Errorf("map slots: %w", err))
			return
		}
		var slots [slotsARead]abiTrack
		raw := unsafe.Slice((*byte)(unsafe.Pointer(&slots)), unsafe.Sizeof(slots))
		for at := int64(0); at < int64(mem.Size()); at += int64(len(raw)) {
			n, err := mem.ReadAt(raw, at)
			if err != nil && !errors.Is(err, io.EOF) {
				yield(0, fmt.Errorf("read slots: %w", err))
				return
			}
			for i, s := range slots[:int64(n)/trackSize] {
				if s.Cookie != 0 && s.StartNs < oldest && !yield(at+int64(i)*trackSize, nil) {
					return
				}
			}
		}
	}
}
