package podlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
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
	return readLink(0, attribute(unix.IFLA_IFNAME, append([]byte(name), 0)))
}

func readLink(index int, attributes []byte) (d linkInfo, err error) {
	header := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(header[4:], uint32(index))
	answer, err := ask(unix.RTM_GETLINK, append(header, attributes...))
	if err != nil {
		return d, err
	}
	if len(answer) < unix.SizeofIfInfomsg {
		return d, errShort
	}
	d = linkInfo{hardware: binary.NativeEndian.Uint16(answer[2:]), index: int(binary.NativeEndian.Uint32(answer[4:])), peerNS: sameNS}
	return d, eachAttribute(answer[unix.SizeofIfInfomsg:], func(kind uint16, value []byte) error {
		switch {
		case kind == unix.IFLA_ADDRESS && len(value) == len(d.mac):
			d.mac = [6]byte(value)
		case kind == unix.IFLA_LINK && len(value) == 4:
			d.peer = int(binary.NativeEndian.Uint32(value))
		case kind == unix.IFLA_LINK_NETNSID && len(value) == 4:
			d.peerNS = int32(binary.NativeEndian.Uint32(value))
		case kind == unix.IFLA_LINKINFO:
			return eachAttribute(value, func(kind uint16, value []byte) error {
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
	answer, err := ask(unix.RTM_GETNSID, append(make([]byte, family), attribute(unix.NETNSA_FD, fd)...))
	if err != nil {
		return 0, err
	}
	if len(answer) < family {
		return 0, errShort
	}
	id = sameNS
	return id, eachAttribute(answer[family:], func(kind uint16, value []byte) error {
		if kind == unix.NETNSA_NSID && len(value) == 4 {
			id = int32(binary.NativeEndian.Uint32(value))
		}
		return nil
	})
}

// typeMask leaves out the flags of an attribute's type (NLA_TYPE_MASK).
const typeMask = 1<<14 - 1

var errShort = errors.New("rtnetlink: an answer that is too short")

// ask makes a request that has one answer, and returns that without its header.
func ask(kind uint16, body []byte) ([]byte, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("rtnetlink: %w", os.NewSyscallError("socket", err))
	}
	defer unix.Close(fd)
	request := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	request = binary.NativeEndian.AppendUint16(request, kind)
	request = binary.NativeEndian.AppendUint16(request, unix.NLM_F_REQUEST)
	request = append(append(request, make([]byte, 8)...), body...) // sequence and port: one request a socket
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("rtnetlink: %w", os.NewSyscallError("sendto", err))
	}
	// A device with many virtual functions has the longest answer, of which only the beginning counts.
	answer := make([]byte, 64<<10)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return nil, fmt.Errorf("rtnetlink: %w", os.NewSyscallError("recvfrom", err))
	}
	if n < unix.SizeofNlMsghdr {
		return nil, errShort
	}
	length := int(binary.NativeEndian.Uint32(answer))
	if length < unix.SizeofNlMsghdr || length > n {
		return nil, errShort
	}
	body = answer[unix.SizeofNlMsghdr:length]
	if binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return body, nil
	}
	if len(body) < 4 {
		return nil, errShort
	}
	return nil, unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
}

func attribute(kind uint16, value []byte) []byte {
	a := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofRtAttr+len(value)))
	a = append(binary.NativeEndian.AppendUint16(a, kind), value...)
	return append(a, make([]byte, -len(a)&3)...)
}

// eachAttribute calls f for each attribute of a message, without the flags of its type.
func eachAttribute(b []byte, f func(kind uint16, value []byte) error) error {
	for len(b) >= unix.SizeofRtAttr {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofRtAttr || n > len(b) {
			return errShort
		}
		if err := f(binary.NativeEndian.Uint16(b[2:])&typeMask, b[unix.SizeofRtAttr:n]); err != nil {
			return err
		}
		b = b[min(len(b), (n+3)&^3):]
	}
	return nil
}
