package host

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/sysctl"
)

// CongestionControls lists the congestion controls that the kernel offers
// without loading a module, and the default of new sockets.
func CongestionControls() (available []string, def string, err error) {
	return congestionControls(sysctl.Root)
}

func congestionControls(root string) (available []string, def string, err error) {
	names, err := readSysctl(root, "net.ipv4.tcp_available_congestion_control")
	if err != nil {
		return nil, "", fmt.Errorf("list congestion controls: %w", err)
	}
	def, err = readSysctl(root, "net.ipv4.tcp_congestion_control")
	if err != nil {
		return nil, "", fmt.Errorf("read default congestion control: %w", err)
	}
	return strings.Fields(names), def, nil
}

// maxCCName is TCP_CA_NAME_MAX (include/net/tcp.h) without its closing NUL: the
// kernel would cut a longer name and might find another control.
const maxCCName = 15

// TryCongestionControl sets a congestion control on a socket that is never connected. The
// kernel then loads the module, if the process has CAP_NET_ADMIN. The error is
// fs.ErrNotExist if the kernel does not have the control, and fs.ErrPermission if the
// process lacks a privilege for it.
func TryCongestionControl(name string) error {
	if name == "" || len(name) > maxCCName {
		return fmt.Errorf("try congestion control %q: a name has 1 to %d bytes", name, maxCCName)
	}
	fd, err := tcpSocket()
	if err != nil {
		return fmt.Errorf("try congestion control %q: %w", name, err)
	}
	defer unix.Close(fd)
	err = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("try congestion control %q: the kernel has neither it nor a module for it: %w", name, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("try congestion control %q: not allowed without CAP_NET_ADMIN: %w", name, err)
	case err != nil:
		return fmt.Errorf("try congestion control %q: %w", name, err)
	}
	return nil
}

// tcpSocket falls back to IPv6 on a kernel or in a sandbox without IPv4.
func tcpSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	}
	return fd, err
}
