// Package tcpinfo finds out which fields struct tcp_info of the running kernel has. It refuses to read the values
// of any connection.
package tcpinfo

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// CountsTimeouts reports whether the kernel counts all retransmission timeouts of a connection (Linux 6.7 and
// later), and not only those in succession. The length of tcp_info shows it.
func CountsTimeouts() (bool, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	var info unix.TCPInfo
	n := uint32(unsafe.Sizeof(info))
	if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_INFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&n)), 0); errno != 0 {
		return false, errno
	}
	return uintptr(n) >= unsafe.Offsetof(info.Total_rto)+unsafe.Sizeof(info.Total_rto), nil
}
