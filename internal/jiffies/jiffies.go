// Package jiffies knows the length of a jiffy, the unit of many of the kernel's timers. It
// refuses to read the kernel's configuration file, which many hosts do not have.
package jiffies

import "golang.org/x/sys/unix"

// Micros is the length of a jiffy in microseconds. The coarse clock advances once a tick
// (TICK_NSEC), and clock_getres reports that as its resolution.
func Micros() uint32 {
	var ts unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &ts); err != nil || ts.Nano() < 1000 {
		return 4000 // CONFIG_HZ=250
	}
	return uint32((ts.Nano() + 500) / 1000)
}
