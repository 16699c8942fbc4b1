package daemon

import (
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// manager is the service manager's end of sd_notify(3).
func manager(t *testing.T, path string) func(wait time.Duration) string {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return func(wait time.Duration) string {
		b := make([]byte, 4096)
		_ = c.SetReadDeadline(time.Now().Add(wait))
		n, err := c.Read(b)
		if err != nil {
			return ""
		}
		return string(b[:n])
	}
}

// The service manager is told when the daemon is ready, at each renewal of the lease (as
// often as the watchdog needs), and when it stops.
func TestRootServiceManager(t *testing.T) {
	p := newPlace(t)
	socket := p.path("notify")
	next := manager(t, socket)
	d := p.spawn(t, nil, "NOTIFY_SOCKET="+socket, "WATCHDOG_USEC=300000")
	if got := next(10 * time.Second); got != "READY=1" {
		t.Fatalf("first message %q, want READY=1", got)
	}
	begun := time.Now()
	for i := range 10 {
		if got := next(5 * time.Second); got != "WATCHDOG=1" {
			t.Fatalf("message %d: %q, want WATCHDOG=1", i, got)
		}
	}
	// The tenth comes after nine intervals of a third of the 0.3 s; the lease alone
	// would need one every 0.5 s.
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("10 messages took %v", took)
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-d.ended
	var rest []string
	for m := next(time.Second); m != ""; m = next(100 * time.Millisecond) {
		rest = append(rest, m)
	}
	if n := len(rest); n == 0 || rest[n-1] != "STOPPING=1" || slices.Contains(rest[:n-1], "READY=1") {
		t.Errorf("at the end: %q", strings.Join(rest, " "))
	}
	p.nothing(t)
}
