package link

import (
	"fmt"
	"unsafe"

	"github.com/tcpilot/tcpilot/internal/lab/topology"
	"golang.org/x/sys/unix"
)

// ethtool commands (include/uapi/linux/ethtool.h).
const (
	ethtoolSTSO = 0x1f
	ethtoolSGSO = 0x24
	ethtoolSGRO = 0x2c
	ethtoolGTSO = 0x1e
	ethtoolGGSO = 0x23
	ethtoolGGRO = 0x2b
)

// ethtoolValue is struct ethtool_value.
type ethtoolValue struct {
	cmd  uint32
	data uint32
}

// ifreqData is struct ifreq with its ifr_data member.
type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [40 - unix.IFNAMSIZ - unsafe.Sizeof(uintptr(0))]byte // sizeof(struct ifreq) is 40
}

// OffloadsOff turns segmentation and receive offloads of these ends off, so
// that one packet on the wire is one segment.
func OffloadsOff(ends ...*topology.End) error {
	for _, e := range ends {
		for _, cmd := range []uint32{ethtoolSTSO, ethtoolSGSO, ethtoolSGRO} {
			if _, err := ethtool(e, cmd, 0); err != nil {
				return fmt.Errorf("turn offloads of %s of %s off: %w", e.Device, e.Host.Name, err)
			}
		}
	}
	return nil
}

// Offloads reports the state of TSO, GSO and GRO.
func Offloads(e *topology.End) (tso, gso, gro bool, err error) {
	for cmd, on := range map[uint32]*bool{ethtoolGTSO: &tso, ethtoolGGSO: &gso, ethtoolGGRO: &gro} {
		v, err := ethtool(e, cmd, 0)
		if err != nil {
			return false, false, false, fmt.Errorf("read offloads of %s of %s: %w", e.Device, e.Host.Name, err)
		}
		*on = v != 0
	}
	return tso, gso, gro, nil
}

func ethtool(e *topology.End, cmd, data uint32) (uint32, error) {
	v := ethtoolValue{cmd: cmd, data: data}
	err := e.Host.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open socket: %w", err)
		}
		defer unix.Close(fd)
		req := ifreqData{data: unsafe.Pointer(&v)}
		copy(req.name[:unix.IFNAMSIZ-1], e.Device)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
		if errno != 0 {
			return errno
		}
		return nil
	})
	return v.data, err
}
