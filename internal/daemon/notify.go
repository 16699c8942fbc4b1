package daemon

import (
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
)

// notify sends a state to the service manager, if it asked for that (sd_notify(3)). A
// failure is only logged.
func (d *Daemon) notify(state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		d.log.Debug("service manager not notified", "error", err)
	}
}

// watchdogShare: the service manager's watchdog is notified after 1/watchdogShare of its timeout,
// so that two messages may be late.
const watchdogShare = 3

// leaseInterval is the time between two renewals of the lease. Each one also notifies the
// watchdog, so that a daemon that cannot renew is restarted.
func leaseInterval(lease time.Duration) time.Duration {
	interval := min(tickInterval, lease/4)
	if limit, err := systemd.SdWatchdogEnabled(false); err == nil && limit > 0 {
		interval = min(interval, limit/watchdogShare)
	}
	return interval
}
