package topology

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// runLock is held by the run that has the machine to itself.
const runLock = "/run/tcpilot-lab-run.lock"

// Exclusive takes the machine for one run, since two at the same time disturb
// each other's figures. If another has it, the error names its process. The
// kernel takes the lock back when the process ends, however it ends.
//
// release lets the next run begin. The file stays: removing it would let two
// runs lock two files of the same name.
func Exclusive() (release func(), err error) { return exclusive(runLock) }

func exclusive(path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the machine: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(path)
		f.Close()
		if err == unix.EWOULDBLOCK {
			return nil, fmt.Errorf("lock the machine: process %s runs experiments, and two runs would disturb each other's figures; wait for it, or end it",
				strings.TrimSpace(string(holder)))
		}
		return nil, fmt.Errorf("lock the machine: %w", err)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the machine: %w", err)
	}
	return func() { f.Close() }, nil
}
