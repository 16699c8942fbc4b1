package podrecord

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/sysctl"
)

// SetAdded notes that a pod is added now: by the clock, which may be set later, and by the time since the host's boot.
func SetAdded(p *pod.Pod) error {
	p.Added = time.Now().UTC()
	var err error
	p.Boot, p.Uptime, err = boot()
	return err
}

// Age is how long ago a pod was added. Of a record without the time since the boot, which a clock that was set back can have left in
// the future, it is the distance: such a pod then counts as young for at most twice a limit.
func Age(p *pod.Pod) time.Duration {
	id, uptime, err := boot()
	switch {
	case err != nil || p.Boot == "":
		return time.Since(p.Added).Abs()
	case p.Boot != id:
		return max(uptime, time.Since(p.Added))
	}
	return uptime - p.Uptime
}

// boot is the id of the host's boot and the time since then, which includes that of suspend (CLOCK_BOOTTIME).
func boot() (id string, uptime time.Duration, err error) {
	var ts unix.Timespec
	if err = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err == nil {
		id, err = sysctl.Read("kernel.random.boot_id")
	}
	if err != nil {
		return "", 0, fmt.Errorf("read time since boot: %w", err)
	}
	return id, time.Duration(ts.Nano()), nil
}
