package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

const (
	trackSize  = 32 // struct track of bpf/track.bpf.h: cookie and start_ns come first
	agedAtOnce = 1024
)

// Aged reports whether a connection that has no socket storage yet is older than
// age, so that a walk would have something to take over.
func (d *Datapath) Aged(age time.Duration) (bool, error) {
	oldest := uint64(max(0, monotonic()-int64(age)))
	keys := make([]uint32, agedAtOnce)
	slots := make([][trackSize]byte, agedAtOnce)
	var at ebpf.MapBatchCursor
	for {
		n, err := d.maps.Slots.BatchLookup(&at, keys, slots, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return false, fmt.Errorf("read slots: %w", err)
		}
		for i := range slots[:n] {
			cookie := binary.NativeEndian.Uint64(slots[i][0:])
			start := binary.NativeEndian.Uint64(slots[i][8:])
			if cookie != 0 && start < oldest {
				return true, nil
			}
		}
		if err != nil {
			return false, nil // that was the last batch
		}
	}
}
