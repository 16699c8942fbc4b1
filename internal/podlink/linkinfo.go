package podlink

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/rtnetlink"
)

// linkInfo is what the kernel says of a network device.
type linkInfo struct {
	index    int
	hardware uint16 // ARPHRD_ETHER, ...
	mac      [6]byte
	kind     string // veth, netkit, ...; empty for a physical device
	peer     int    // index of the other end; 0 if it has none
	peerNS   int32  // id of the other end's network namespace, as this one numbers them
}

// sameNS is the id of the network namespace itself: IFLA_LINK_NETNSID is missing then.
const sameNS = -1

// linkByIndex reads a device of the calling thread's network namespace.
func linkByIndex(index int) (linkInfo, error) {
	return readLink(index, nil)
}

// linkByName is linkByIndex by the device's name.
func linkByName(name string) (linkInfo, error) {
	return readLink(0, rtnetlink.Attribute(unix.IFLA_IFNAME, append([]byte(name), 0)))
}

func readLink(index int, attributes []byte) (d linkInfo, err error) {
	header := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(header[4:], uint32(index))
	answer, err := rtnetlink.Get(unix.RTM_GETLINK, append(header, attributes...))
	if err != nil {
		return d, err
	}
	if len(answer) < unix.SizeofIfInfomsg {
		return d, rtnetlink.ErrShort
	}
	d = linkInfo{hardware: binary.NativeEndian.Uint16(answer[2:]), index: int(binary.NativeEndian.Uint32(answer[4:])), peerNS: sameNS}
	return d, rtnetlink.EachAttribute(answer[unix.SizeofIfInfomsg:], func(kind uint16, value []byte) error {
		switch {
		case kind == unix.IFLA_ADDRESS && len(value) == len(d.mac):
			d.mac = [6]byte(value)
		case kind == unix.IFLA_LINK && len(value) == 4:
			d.peer = int(binary.NativeEndian.Uint32(value))
		case kind == unix.IFLA_LINK_NETNSID && len(value) == 4:
			d.peerNS = int32(binary.NativeEndian.Uint32(value))
		case kind == unix.IFLA_LINKINFO:
			return rtnetlink.EachAttribute(value, func(kind uint16, value []byte) error {
				if kind == unix.IFLA_INFO_KIND {
					d.kind = unix.ByteSliceToString(value)
				}
				return nil
			})
		}
		return nil
	})
}

// netnsID is the number that the calling thread's network namespace has for another one, given by a
// descriptor; negative if it has none.
func netnsID(ns int) (id int32, err error) {
	const family = 4 // struct rtgenmsg, padded
	fd := binary.NativeEndian.AppendUint32(nil, uint32(ns))
	answer, err := rtnetlink.Get(unix.RTM_GETNSID, append(make([]byte, family), rtnetlink.Attribute(unix.NETNSA_FD, fd)...))
	if err != nil {
		return 0, err
	}
	if len(answer) < family {
		return 0, rtnetlink.ErrShort
	}
	id = sameNS
	return id, rtnetlink.EachAttribute(answer[family:], func(kind uint16, value []byte) error {
		if kind == unix.NETNSA_NSID && len(value) == 4 {
			id = int32(binary.NativeEndian.Uint32(value))
		}
		return nil
	})
}
