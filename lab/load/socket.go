package load

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// control runs f on a connection's descriptor.
func control(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := raw.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}

// congestion reads the congestion control that a connection uses.
func congestion(c syscall.Conn) (name string, err error) {
	err = control(c, func(fd int) (err error) {
		name, err = unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		return err
	})
	if i := bytes.IndexByte([]byte(name), 0); i >= 0 {
		name = name[:i]
	}
	return name, err
}

// tcpInfo reads the kernel's tcp_info of a connection.
func tcpInfo(c syscall.Conn) (info *unix.TCPInfo, err error) {
	err = control(c, func(fd int) (err error) {
		info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err
	})
	return info, err
}

// cookie reads the socket's cookie, which is unique until reboot.
func cookie(c syscall.Conn) (n uint64, err error) {
	err = control(c, func(fd int) (err error) {
		n, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
		return err
	})
	return n, err
}

// setCongestion is for net.Dialer.Control and net.ListenConfig.Control: it sets the
// congestion control as an application does, before the connection starts.
func setCongestion(cc string) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		if cc == "" {
			return nil
		}
		var err error
		cerr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, cc)
		})
		if cerr != nil {
			return cerr
		}
		if err != nil {
			return fmt.Errorf("set congestion control %s: %w", cc, err)
		}
		return nil
	}
}

// setCongestionOf does the same for an accepted connection.
func setCongestionOf(c syscall.Conn, cc string) error {
	if cc == "" {
		return nil
	}
	return control(c, func(fd int) error {
		return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, cc)
	})
}

// abort closes a connection with a RST and discards unsent data.
func abort(c net.Conn) {
	if tc, ok := c.(*net.TCPConn); ok {
		tc.SetLinger(0)
	}
	c.Close()
}

// dial connects to a literal address; the agent is in the right namespace.
func dial(ctx context.Context, to, cc string, timeout time.Duration) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: timeout, Control: setCongestion(cc), KeepAlive: -1}
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

func toName(s string) (n ccName) {
	copy(n[:len(n)-1], s)
	return n
}

func (n ccName) String() string {
	if i := bytes.IndexByte(n[:], 0); i >= 0 {
		return string(n[:i])
	}
	return string(n[:])
}
