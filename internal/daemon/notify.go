package daemon

import (
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
)

// notify tells the service manager, if one asked for it (sd_notify(3)). A message
// that does not arrive is no reason to stop.
func (d *Daemon) notify(state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		d.log.Debug("service manager not notified", "error", err)
	}
}

// watchdogShare is the part of the service manager's patience after which it is
// reassured: two messages may come late.
const watchdogShare = 3

// leaseInterval is the time between two renewals of the lease, each of which also
// feeds the watchdog: a daemon that cannot renew is better started anew.
func leaseInterval(lease time.Duration) time.Duration {
	interval := min(tickInterval, lease/4)
	if limit, err := systemd.SdWatchdogEnabled(false); err == nil && limit > 0 {
		interval = min(interval, limit/watchdogShare)
	}
	return interval
}
