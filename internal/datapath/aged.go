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
// that a walk has something to do.
func (d *Datapath) HasAged(age time.Duration) (bool, error) {
	for _, err := range d.agedSlots(age) {
		return err == nil, err
	}
	return false, nil
}

// FreeLost frees the slots of connections that are older than age, and returns how many. It
// must be called after walks of all network namespaces: those moved live connections to
// socket storage, so the kernel did not report the ends of the ones that are left.
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
	for at, err := range d.agedSlots(age) {
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

// agedSlots are the offsets of the used slots that are older than age. It reads the mapped
// memory: copying the slots by system calls takes a hundred times as long.
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
