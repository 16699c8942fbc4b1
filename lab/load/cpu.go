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

// Sub returns the time used since before.
func (c CPU) Sub(before CPU) CPU { return CPU{c.User - before.User, c.System - before.System} }

// ownCPU is the processor time of this process. The call cannot fail for the own process.
func ownCPU() CPU {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u)
	return CPU{User: time.Duration(u.Utime.Nano()), System: time.Duration(u.Stime.Nano())}
}
