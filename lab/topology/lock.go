package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/tcpilot/tcpilot/internal/filelock"
	"golang.org/x/sys/unix"
)

// runLock is locked by the run that has exclusive use of the machine.
const runLock = "/run/tcpilot-lab-run.lock"

// Exclusive locks the machine for one run, because two runs at the same time disturb
// each other's figures. If another run has the lock, the error names its process. The
// kernel releases the lock when the process ends, for any reason. release lets the
// next run begin.
func Exclusive() (release func(), err error) { return exclusive(runLock) }

func exclusive(path string) (release func(), err error) {
	unlock, err := filelock.Lock(path)
	if held := (*filelock.HeldError)(nil); errors.As(err, &held) {
		return nil, fmt.Errorf("lock the machine: %s runs experiments, and two runs would disturb each other's figures; wait for it, or end it", held.Holder)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the machine: %w", err)
	}
	return func() { _ = unlock() }, nil // a file that stays is reused by the next run
}

// sweepLock removes the lock file that a killed run left at path, and reports whether
// there was one. A file that another process has locked stays.
func sweepLock(path string) (removed bool, err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	release, err := filelock.Lock(path)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, release()
}
