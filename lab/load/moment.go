package load

import (
	"time"

	"golang.org/x/sys/unix"
)

// Moment is a time of the machine's monotonic clock (CLOCK_MONOTONIC), which all
// agents and their parent process share.
type Moment time.Duration

// Now returns the current time. The call cannot fail for this clock.
func Now() Moment {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return Moment(t.Nano())
}

// Sub is the time from before to m.
func (m Moment) Sub(before Moment) time.Duration { return time.Duration(m - before) }

// Add is the moment d after m.
func (m Moment) Add(d time.Duration) Moment { return m + Moment(d) }

// since is the time from m to now.
func since(m Moment) time.Duration { return Now().Sub(m) }
