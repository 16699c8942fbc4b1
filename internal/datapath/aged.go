package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	trackSize  = 32 // struct track of bpf/track.bpf.h: cookie and start_ns come first
	agedAtOnce = 1024
)

// Aged reports whether a connection that has no socket storage yet is older than
// age, so that a walk would have something to take over. It reads the slots in
// their memory: to have the kernel copy them takes a hundred times as long.
func (d *Datapath) Aged(age time.Duration) (bool, error) {
	oldest := uint64(max(0, monotonic()-int64(age)))
	mem, err := d.maps.Slots.Memory()
	if err != nil {
		return false, fmt.Errorf("map slots: %w", err)
	}
	var slots [agedAtOnce * trackSize]byte
	for at := int64(0); at < int64(mem.Size()); at += int64(len(slots)) {
		n, err := mem.ReadAt(slots[:], at)
		if err != nil && !errors.Is(err, io.EOF) {
			return false, fmt.Errorf("read slots: %w", err)
		}
		for slot := slots[:n]; len(slot) >= trackSize; slot = slot[trackSize:] {
			cookie := binary.NativeEndian.Uint64(slot[0:])
			start := binary.NativeEndian.Uint64(slot[8:])
			if cookie != 0 && start < oldest {
				return true, nil
			}
		}
	}
	return false, nil
}
