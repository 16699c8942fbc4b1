package load

import (
	"time"

	"golang.org/x/sys/unix"
)

// CPU is CPU time of a process.
type CPU struct {
	User, System time.Duration
}

// Sum is user and system time together.
func (c CPU) Sum() time.Duration { return c.User + c.System }

// Sub is what was spent since before.
func (c CPU) Sub(before CPU) CPU { return CPU{c.User - before.User, c.System - before.System} }

// ownCPU is what this process has spent. The call cannot fail for oneself.
func ownCPU() CPU {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u)
	return CPU{User: time.Duration(u.Utime.Nano()), System: time.Duration(u.Stime.Nano())}
}
