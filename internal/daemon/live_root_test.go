package daemon

import (
	"context"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// lowatOf is TCP_NOTSENT_LOWAT of a connection.
func lowatOf(t *testing.T, c net.Conn) (lowat int) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) { lowat, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT) }))
	must(t, err)
	return lowat
}

// dialWithLowat makes a connection of an application that chooses its TCP_NOTSENT_LOWAT.
func dialWithLowat(t *testing.T, lowat int) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		must(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, lowat) }))
		return err
	}}
	c, err := d.Dial("tcp", l.Addr().String())
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// Running connections follow a reload that changes what their rule, or its objective, says of notsent_lowat, or that removes
// the rule. In the end they have what they had before.
func TestRootReloadsChangeNotsentLowat(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			rules := func(rules string) {
				t.Helper()
				p.rules(t, "interval: 1s\nrules: ["+rules+"]")
			}
			const learn = "{name: all, match: {remote: [127.0.0.0/8]}, learn: {arms: [cubic], hold_out: 0%, objective: "
			rules(learn + "throughput}}")
			d := p.start(t, func(o *Options) { o.KeepAttached = end.keep })
			plain, _ := pair(t)
			own := dialWithLowat(t, 5000)
			reloads := []struct {
				rules string
				want  int
			}{
				{learn + "realtime}}", 16 << 10},
				{learn + "latency}}", 64 << 10},
				{learn + "latency}, set: {notsent_lowat: 1MiB}}", 1 << 20},
				{"", 0},
				{learn + "latency}, set: {notsent_lowat: 2MiB}}", 2 << 20},
			}
			if end.keep { // the other test has shown the others
				reloads = reloads[len(reloads)-1:]
			}
			for _, x := range reloads {
				rules(x.rules)
				if _, err := d.Reload(context.Background()); err != nil {
					t.Fatal(err)
				}
				await(t, x.rules, func() bool { return lowatOf(t, plain) == x.want })
				if got := lowatOf(t, own); got != 5000 {
					t.Errorf("%s: the application's own value, 5000, became %d", x.rules, got)
				}
			}
			replaced := dialWithLowat(t, 5000)
			if got := lowatOf(t, replaced); got != 2<<20 {
				t.Errorf("the rule's value replaces an application's: got %d", got)
			}
			end.undo(t, p, d)
			if a, b, c := lowatOf(t, plain), lowatOf(t, own), lowatOf(t, replaced); a != 0 || b != 5000 || c != 5000 {
				t.Errorf("at the end: %d, %d and %d", a, b, c)
			}
			p.nothing(t)
		})
	}
}
