package load

import (
	"time"

	"golang.org/x/sys/unix"
)

// Time is a time of the machine's monotonic clock (CLOCK_MONOTONIC), which all
// agents and their parent process share.
type Time time.Duration

// Now returns the current time. The call cannot fail for this clock.
func Now() Time {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return Time(now.Nano())
}

// Sub is the time from before to t.
func (t Time) Sub(before Time) time.Duration { return time.Duration(t - before) }

// Add is the time d after t.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// since is the time from t to now.
func since(t Time) time.Duration { return Now().Sub(t) }
