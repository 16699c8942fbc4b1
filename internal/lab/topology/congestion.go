package topology

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	congestionKey = "net.ipv4.tcp_congestion_control"
	allowedKey    = "net.ipv4.tcp_allowed_congestion_control"
	// allowedLock is held while the machine's list is widened, so that two runs do
	// not undo each other's.
	allowedLock = "/run/tcpilot-lab.lock"
)

// SetCongestion sets the namespace's default congestion control.
//
// The kernel takes only an allowed one outside of the machine's own namespace
// (tcp_set_default_congestion_control), so the machine's list is widened for as
// long as it takes to set it, and put back.
func (h *Host) SetCongestion(cc string) error {
	err := h.SetSysctl(congestionKey, cc)
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	lock, err := os.OpenFile(allowedLock, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("lock %s: %w", allowedKey, err)
	}
	defer lock.Close() // unlocks
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", allowedKey, err)
	}
	before, err := os.ReadFile(sysctlPath(allowedKey))
	if err != nil {
		return fmt.Errorf("read %s: %w", allowedKey, err)
	}
	names := strings.Fields(string(before))
	if slices.Contains(names, cc) {
		return h.SetSysctl(congestionKey, cc) // widened by another run until now
	}
	if err := os.WriteFile(sysctlPath(allowedKey), []byte(strings.Join(append(names, cc), " ")), 0); err != nil {
		return fmt.Errorf("allow %s: %w", cc, err)
	}
	err = h.SetSysctl(congestionKey, cc)
	if rerr := os.WriteFile(sysctlPath(allowedKey), before, 0); rerr != nil {
		err = errors.Join(err, fmt.Errorf("restore %s: %w", allowedKey, rerr))
	}
	return err
}
