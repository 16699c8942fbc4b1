package datapath

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// The first ACK of an outgoing connection announces the adapted window, and the kernel goes on
// tuning the buffer. An application keeps the buffer, and the low-water mark, that it chose.
func TestRootAdaptedInitRwnd(t *testing.T) {
	const packets = 400
	r := newRig(t)
	l := listen(t, r.ns, "127.0.0.1:0", nil)
	connect := func(f control) (window uint32, buffer, locked, mark int) {
		c := dial(t, r.ns, l.Addr().String(), f)
		defer closeAll(t, c, accept(t, l))
		const soBufLock = 72 // SO_BUF_LOCK
		return tcpInfo(t, c).Rcv_ssthresh, sockopt(t, c, unix.SOL_SOCKET, unix.SO_RCVBUF),
			sockopt(t, c, unix.SOL_SOCKET, soBufLock), sockopt(t, c, unix.SOL_SOCKET, unix.SO_RCVLOWAT)
	}
	r.policy(t, nil)
	usual, buffer, _, _ := connect(nil)
	r.policy(t, func(p *path.Policy) {
		p.Params.Set(tcp.InitRwnd, packets)
		p.Adapted = 1 << tcp.InitRwnd
	})
	window, larger, locked, mark := connect(nil)
	if window <= 65536 && larger > buffer {
		testenv.Missing(t, "initial receive windows above 64 KB (Linux 6.10)")
	}
	if window < packets*1200 || window < 2*usual || locked != 0 || mark != 1 {
		t.Errorf("window %d (usually %d), locks %d, low-water mark %d", window, usual, locked, mark)
	}
	own := func(name, value int) control {
		return func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, name, value) }
	}
	if window, got, locked, _ := connect(own(unix.SO_RCVBUF, 50_000)); got != 100_000 || locked == 0 || window > usual {
		t.Errorf("with a receive buffer of 100000, it is %d, locks %d, window %d", got, locked, window)
	}
	if window, _, _, mark := connect(own(unix.SO_RCVLOWAT, 3000)); mark != 3000 || window < packets*1200 {
		t.Errorf("with a low-water mark of 3000, it is %d, window %d", mark, window)
	}
	r.policy(t, func(p *path.Policy) {
		p.Params.Set(tcp.InitRwnd, 20)
		p.Adapted = 1 << tcp.InitRwnd
	})
	if window, got, _, _ := connect(nil); window != usual || got != buffer {
		t.Errorf("a window smaller than usual: %d, buffer %d; want %d and %d", window, got, usual, buffer)
	}
}
