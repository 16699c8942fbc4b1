package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/filelock"
	"github.com/tcpilot/tcpilot/internal/kernelcc"
	"github.com/tcpilot/tcpilot/internal/sysctl"
)

const (
	allowedKey = "net.ipv4.tcp_allowed_congestion_control"
	// allowedLock is locked while the machine's list is extended, so that two runs do
	// not undo each other's change. Meanwhile the file contains the list as it was. If
	// the next process that locks it finds a list there, the previous owner was
	// killed, and it restores the list.
	allowedLock = "/run/tcpilot-lab.lock"
)

// SetCongestion sets the namespace's default congestion control.
//
// Outside of the machine's own namespace the kernel accepts only congestion controls
// that are allowed (tcp_set_default_congestion_control). So the machine's list is
// extended while the default is set, and then restored. Trying without it first would
// do harm: when Linux 6.18 refuses a congestion control in BPF, it never releases its
// reference to it.
func (h *Host) SetCongestion(cc string) error {
	now, err := sysctl.Read(allowedKey)
	if err != nil {
		return fmt.Errorf("read %s: %w", allowedKey, err)
	}
	if slices.Contains(strings.Fields(now), cc) {
		return h.SetSysctl(kernelcc.DefaultKey, cc)
	}
	lock, err := lockAllowed(os.O_CREATE)
	if err != nil {
		return err
	}
	defer lock.Close() // also unlocks
	before, err := sysctl.Read(allowedKey)
	if err != nil {
		return fmt.Errorf("read %s: %w", allowedKey, err)
	}
	names := strings.Fields(before)
	if slices.Contains(names, cc) {
		return h.SetSysctl(kernelcc.DefaultKey, cc) // another run had extended the list when it was first read
	}
	if _, err := lock.WriteString(before); err != nil {
		return fmt.Errorf("save %s: %w", allowedKey, err)
	}
	err = sysctl.Write(allowedKey, strings.Join(append(names, cc), " "))
	if err != nil {
		err = fmt.Errorf("allow %s: %w", cc, err)
	} else {
		err = h.SetSysctl(kernelcc.DefaultKey, cc)
	}
	return errors.Join(err, restoreAllowed(lock))
}

// lockAllowed takes the lock of the machine's list, and restores the list if a killed
// run left it extended.
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

// restoreAllowed restores the list that the lock file contains, if any.
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

// sweepAllowed restores the list if a killed run left it extended.
func sweepAllowed() error {
	lock, err := lockAllowed(0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was never extended
	}
	if err != nil {
		return err
	}
	return lock.Close()
}
