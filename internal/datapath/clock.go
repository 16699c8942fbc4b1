package datapath

import (
	"math"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/jiffies"
)

// monotonic is what the programs call bpf_ktime_get_ns: CLOCK_MONOTONIC.
func monotonic() int64 {
	var ts unix.Timespec
	// Cannot fail with a valid clock and pointer (clock_gettime(2)).
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

// wallOffset is what to add to CLOCK_MONOTONIC to get Unix nanoseconds. The wall clock is
// read between two reads of the monotonic one, and again if these are far apart.
func wallOffset() (offset int64) {
	least := int64(math.MaxInt64)
	for range 5 {
		before := monotonic()
		wall := time.Now().UnixNano()
		took := monotonic() - before
		if took < least {
			least, offset = took, wall-before-took/2
		}
		if took < int64(10*time.Microsecond) {
			break
		}
	}
	return offset
}

// jiffyMicros is the length of a jiffy in microseconds, as the programs need it.
func jiffyMicros() uint32 { return jiffies.Micros() }

// jiffiesOf rounds milliseconds up to jiffies, as ms_to_jiffies in bpf/include/compat.bpf.h.
func jiffiesOf(ms uint64) uint32 {
	us := uint64(jiffyMicros())
	return uint32((ms*1000 + us - 1) / us)
}
