package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"
)

const (
	trackSize  = 32 // struct track of bpf/sockops/track.bpf.h: cookie and start_ns come first
	agedAtOnce = 1024
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
	const cookie = 8 // bytes
	var zero [trackSize]byte
	for at, err := range d.agedSlots(age) {
		if err == nil { // as slot_free of bpf/sockops/slots.bpf.h does it: the cookie last
			_, err = mem.WriteAt(zero[cookie:], at+cookie)
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
		var slots [agedAtOnce * trackSize]byte
		for at := int64(0); at < int64(mem.Size()); at += int64(len(slots)) {
			n, err := mem.ReadAt(slots[:], at)
			if err != nil && !errors.Is(err, io.EOF) {
				yield(0, fmt.Errorf("read slots: %w", err))
				return
			}
			for i := 0; i+trackSize <= n; i += trackSize {
				cookie := binary.NativeEndian.Uint64(slots[i:])
				start := binary.NativeEndian.Uint64(slots[i+8:])
				if cookie != 0 && start < oldest && !yield(at+int64(i), nil) {
					return
				}
			}
		}
	}
}
