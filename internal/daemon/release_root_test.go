package daemon

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// ends are the two ways in which what a daemon did is undone.
var ends = map[string]struct {
	keep bool // attached at the end of the daemon
	undo func(*testing.T, *place, *running)
}{
	"stop": {false, func(t *testing.T, _ *place, d *running) { d.stop(t) }},
	"detach without a daemon": {true, func(t *testing.T, p *place, d *running) {
		d.stop(t)
		_, err := Detach(p.config)
		must(t, err)
	}},
}

// pacingOf is the limit of a connection's pacing rate in bytes per second.
func pacingOf(t *testing.T, c net.Conn) uint32 {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	must(t, err)
	var rate int
	must(t, raw.Control(func(fd uintptr) { rate, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE) }))
	must(t, err)
	return uint32(rate)
}

// Running connections have no limit of their rate any more after the daemon, also idle ones.
func TestRootRunningConnectionsAreReleased(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.rules(t, `rules: [{name: all, match: {remote: [127.0.0.0/8]}, rate_limit: {connection: 80Mbit/s}}]`)
			d := p.start(t, func(o *Options) { o.KeepAttached = end.keep })
			client, server := pair(t)
			if a, b := pacingOf(t, client), pacingOf(t, server); a != 10e6 || b != 10e6 {
				t.Errorf("pacing rates %d and %d", a, b)
			}
			end.undo(t, p, d)
			if a, b := pacingOf(t, client), pacingOf(t, server); a != 1<<32-1 || b != 1<<32-1 {
				t.Errorf("pacing rates %d and %d after the end", a, b)
			}
			p.nothing(t)
		})
	}
}
