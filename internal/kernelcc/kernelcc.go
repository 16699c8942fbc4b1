package kernelcc

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/sysctl"
)

// DefaultKey is the sysctl with the congestion control of new sockets, of one network namespace.
const DefaultKey = "net.ipv4.tcp_congestion_control"

// Available lists the congestion controls that the kernel has without loading a module.
func Available() ([]string, error) {
	names, err := sysctl.Read("net.ipv4.tcp_available_congestion_control")
	if err != nil {
		return nil, fmt.Errorf("list congestion controls: %w", err)
	}
	return strings.Fields(names), nil
}

// Default is the congestion control of new sockets in the calling thread's network namespace.
func Default() (string, error) {
	name, err := sysctl.Read(DefaultKey)
	if err != nil {
		return "", fmt.Errorf("read default congestion control: %w", err)
	}
	return name, nil
}

// maxName is TCP_CA_NAME_MAX (include/net/tcp.h) without its closing NUL: the
// kernel would cut a longer name and might find another control.
const maxName = 15

// Try sets a congestion control on a socket that is never connected. The
// kernel then loads the module, if the process has CAP_NET_ADMIN. The error is
// fs.ErrNotExist if the kernel does not have the control, and fs.ErrPermission if the
// process lacks a privilege for it.
func Try(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("try congestion control %q: a name has 1 to %d bytes", name, maxName)
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
