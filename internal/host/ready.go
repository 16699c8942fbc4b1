package host

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/routes"
	"github.com/tcpilot/tcpilot/internal/sysctl"
)

// Ready says whether this host is ready for a feature that tcpilot does not turn on, because that takes the
// application, routes or the network card.
type Ready struct {
	What  string // the feature
	Ready bool
	Why   string // what was found, and what has to be done
}

// CheckReady finds out which of these features the kernel and the network cards of this network namespace are
// ready for.
func CheckReady() []Ready {
	list := []Ready{sackCompression(), zeroCopyReceive(), usecTimestamps()}
	devices, err := net.Interfaces()
	if err != nil {
		return list
	}
	return append(list, cards(classNet, devices)...)
}

// sackCompression: Linux 4.18 has it (tcp_comp_sack_nr).
func sackCompression() Ready {
	r := Ready{What: "compression of SACKs"}
	var parts []string
	for _, name := range []string{"delay_ns", "slack_ns", "nr"} {
		value, err := sysctl.Read("net.ipv4.tcp_comp_sack_" + name)
		if err != nil {
			r.Why = err.Error()
			return r
		}
		parts = append(parts, "tcp_comp_sack_"+name+" "+value)
		if name == "nr" {
			r.Ready = value != "0"
		}
	}
	r.Why = strings.Join(parts, ", ")
	return r
}

// zeroCopyReceive tries what a receiver does first: it maps the socket (tcp_mmap).
func zeroCopyReceive() Ready {
	r := Ready{What: "TCP_ZEROCOPY_RECEIVE"}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		var pages []byte
		if pages, err = unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED); err == nil {
			err = unix.Munmap(pages)
		}
	}
	if r.Ready = err == nil; err != nil {
		r.Why = fmt.Sprintf("map a socket: %v", err)
		return r
	}
	r.Why = fmt.Sprintf("sockets can be mapped; an application has to, and data is received in pages of %d bytes", os.Getpagesize())
	return r
}

// usecTimestamps tries to add a route with the feature tcp_usec_ts, in a network namespace that is gone afterwards.
func usecTimestamps() Ready {
	r := Ready{What: "timestamps in microseconds"}
	err := netns.InNew(routes.SupportsUsecTS)
	if r.Ready = err == nil; err != nil {
		r.Why = fmt.Sprintf("add a route with features tcp_usec_ts: %v", err)
		return r
	}
	r.Why = "routes take them: host.usec_timestamps; both ends need Linux 6.7"
	return r
}

// classNet has a directory for each network device.
const classNet = "/sys/class/net"

// pageMTU is the least MTU, in bytes, for 4096 bytes of payload in a packet: headers of IPv6 (40) and TCP (20), and
// timestamps (12). A packet that carries SACK blocks as well holds less.
const pageMTU = 4096 + 40 + 20 + 12

// cards looks at the network cards: those of the devices with hardware behind them, as dir shows.
func cards(dir string, devices []net.Interface) (list []Ready) {
	for _, d := range devices {
		name, mtu := d.Name, d.MTU
		if _, err := os.Stat(filepath.Join(dir, name, "device")); err != nil || !isSame(filepath.Join(dir, name), &d) {
			continue
		}
		r := Ready{What: name + ": payload of a page in each packet", Ready: mtu >= pageMTU, Why: fmt.Sprintf("MTU %d, at least %d is needed; so are a card that splits headers off (ethtool -g: TCP data split) and max_seg: 4108B", mtu, pageMTU)}
		gro := Ready{What: name + ": GRO"}
		if on, err := groEnabled(name); err != nil {
			gro.Why = err.Error()
		} else if gro.Ready = on; on {
			gro.Why = "on: packets of a connection are merged, so that there are fewer ACKs"
		} else {
			gro.Why = "off: ethtool -K " + name + " gro on"
		}
		list = append(list, r, gro)
	}
	return slices.Clip(list)
}

// isSame reports whether a directory of sysfs is that of a device. It may be that of a device with the same name,
// because sysfs shows the network namespace in which it was mounted.
func isSame(dir string, d *net.Interface) bool {
	index, _ := os.ReadFile(filepath.Join(dir, "ifindex"))
	address, _ := os.ReadFile(filepath.Join(dir, "address"))
	return strings.TrimSpace(string(index)) == strconv.Itoa(d.Index) && strings.TrimSpace(string(address)) == d.HardwareAddr.String()
}

// groEnabled asks a device whether it merges packets (ETHTOOL_GGRO in include/uapi/linux/ethtool.h).
func groEnabled(device string) (bool, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	value := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_GGRO}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], device)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return false, errno
	}
	return value.data != 0, nil
}
