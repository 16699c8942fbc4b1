package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/filelock"
	"github.com/tcpilot/tcpilot/internal/sysctl"
)

const (
	congestionKey = "net.ipv4.tcp_congestion_control"
	allowedKey    = "net.ipv4.tcp_allowed_congestion_control"
	// allowedLock is held while the machine's list is widened, so that two runs do
	// not undo each other's. Meanwhile it holds the list as it was: whoever takes
	// the lock next and finds one puts it back, since its owner was killed.
	allowedLock = "/run/tcpilot-lab.lock"
)

// SetCongestion sets the namespace's default congestion control.
//
// The kernel takes only an allowed one outside of the machine's own namespace
// (tcp_set_default_congestion_control), so the machine's list is widened for as
// long as it takes to set it, and put back. It is not asked first: Linux 6.18 keeps
// a reference to a control in BPF for ever when it refuses it.
func (h *Host) SetCongestion(cc string) error {
	now, err := sysctl.Read(allowedKey)
	if err != nil {
		return fmt.Errorf("read %s: %w", allowedKey, err)
	}
	if slices.Contains(strings.Fields(now), cc) {
		return h.SetSysctl(congestionKey, cc)
	}
	lock, err := lockAllowed(os.O_CREATE)
	if err != nil {
		return err
	}
	defer lock.Close() // unlocks
	before, err := sysctl.Read(allowedKey)
	if err != nil {
		return fmt.Errorf("read %s: %w", allowedKey, err)
	}
	names := strings.Fields(before)
	if slices.Contains(names, cc) {
		return h.SetSysctl(congestionKey, cc) // widened by another run until now
	}
	if _, err := lock.WriteString(before); err != nil {
		return fmt.Errorf("keep %s: %w", allowedKey, err)
	}
	err = sysctl.Write(allowedKey, strings.Join(append(names, cc), " "))
	if err != nil {
		err = fmt.Errorf("allow %s: %w", cc, err)
	} else {
		err = h.SetSysctl(congestionKey, cc)
	}
	return errors.Join(err, restoreAllowed(lock))
}

// lockAllowed takes the lock of the machine's list and puts back what a killed
// run widened.
func lockAllowed(flag int) (*os.File, error) {
	lock, err := os.OpenFile(allowedLock, flag|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", allowedKey, err)
	}
	if err := filelock.Wait(lock); err != nil {
		lock.Close()
		return nil, fmt.Errorf("lock %s: %w", allowedKey, err)
	}
	if err := restoreAllowed(lock); err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// restoreAllowed puts the list back that the lock holds, if it does.
func restoreAllowed(lock *os.File) error {
	before, err := os.ReadFile(lock.Name())
	if err == nil && len(before) > 0 {
		err = sysctl.Write(allowedKey, string(before))
	}
	if err == nil {
		err = lock.Truncate(0)
	}
	if err != nil {
		return fmt.Errorf("restore %s: %w", allowedKey, err)
	}
	return nil
}

// sweepAllowed puts the list back that a killed run widened.
func sweepAllowed() error {
	lock, err := lockAllowed(0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was never widened
	}
	if err != nil {
		return err
	}
	return lock.Close()
}
