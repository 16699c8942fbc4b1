package rtnetlink

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Link is what the kernel says of a network device.
type Link struct {
	Index    int
	Name     string
	Hardware uint16 // ARPHRD_ETHER, ...
	MAC      [6]byte
	Kind     string // veth, netkit, ...; empty for a physical device
	Below    int    // IFLA_LINK: index of the other end of a pair, or of the device that this one sends by; 0: none
	BelowNS  int32  // IFLA_LINK_NETNSID: id of the network namespace of Below, valid in the calling thread's; SameNS
	Master   int    // index of the bridge, bond, ... that it belongs to; 0 if to none
	MTU      uint32 // bytes
	Sizes
	MaxSize uint32 // the most that GSO sizes can be (tso_max_size), bytes; 0 before Linux 5.19
}

// Sizes are the largest packets of a device, in bytes: those that are segmented when they leave (GSO), and
// those that are made of segments that arrived (GRO). A kernel without the value has 0.
type Sizes struct {
	GSO  uint32 `json:"gso_max_size"` // of IPv6, and before Linux 6.3 of IPv4
	GRO  uint32 `json:"gro_max_size"`
	GSO4 uint32 `json:"gso_ipv4_max_size"` // of IPv4 (Linux 6.3)
	GRO4 uint32 `json:"gro_ipv4_max_size"`
}

// SameNS stands for the id of the same network namespace: IFLA_LINK_NETNSID is missing then.
const SameNS = -1

// LinkByIndex reads a device of the calling thread's network namespace.
func LinkByIndex(index int) (Link, error) {
	return readLink(index, nil)
}

// LinkByName is LinkByIndex for a device's name.
func LinkByName(name string) (Link, error) {
	return readLink(0, nameAttribute(name))
}

func nameAttribute(name string) []byte {
	return Attribute(unix.IFLA_IFNAME, append([]byte(name), 0))
}

func linkHeader(index int) []byte {
	header := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(header[4:], uint32(index))
	return header
}

func readLink(index int, attributes []byte) (d Link, err error) {
	answer, err := get(unix.RTM_GETLINK, append(linkHeader(index), attributes...))
	if err != nil {
		return d, err
	}
	if len(answer) < unix.SizeofIfInfomsg {
		return d, errShort
	}
	d = Link{Hardware: binary.NativeEndian.Uint16(answer[2:]), Index: int(binary.NativeEndian.Uint32(answer[4:])), BelowNS: SameNS}
	return d, EachAttribute(answer[unix.SizeofIfInfomsg:], d.attribute)
}

func (d *Link) attribute(kind uint16, value []byte) error {
	switch {
	case kind == unix.IFLA_IFNAME:
		d.Name = unix.ByteSliceToString(value)
	case kind == unix.IFLA_ADDRESS && len(value) == len(d.MAC):
		d.MAC = [6]byte(value)
	case kind == unix.IFLA_LINKINFO:
		return EachAttribute(value, func(kind uint16, value []byte) error {
			if kind == unix.IFLA_INFO_KIND {
				d.Kind = unix.ByteSliceToString(value)
			}
			return nil
		})
	case len(value) == 4:
		d.number(kind, binary.NativeEndian.Uint32(value))
	}
	return nil
}

func (d *Link) number(kind uint16, n uint32) {
	switch kind {
	case unix.IFLA_LINK:
		d.Below = int(n)
	case unix.IFLA_LINK_NETNSID:
		d.BelowNS = int32(n)
	case unix.IFLA_MASTER:
		d.Master = int(n)
	case unix.IFLA_MTU:
		d.MTU = n
	case unix.IFLA_TSO_MAX_SIZE:
		d.MaxSize = n
	case unix.IFLA_GSO_MAX_SIZE:
		d.GSO = n
	case unix.IFLA_GRO_MAX_SIZE:
		d.GRO = n
	case unix.IFLA_GSO_IPV4_MAX_SIZE:
		d.GSO4 = n
	case unix.IFLA_GRO_IPV4_MAX_SIZE:
		d.GRO4 = n
	}
}

// SetSizes sets the largest packets of a device by one request. Sizes of 0 stay as they are. The kernel sets the sizes
// of IPv6 first, whatever their order in the message, and with them those of IPv4 if they are at most 64 KB
// (netif_set_gso_max_size); then it sets the sizes of IPv4 that were asked for. A kernel that does not know a value
// ignores it: read it back.
func SetSizes(index int, s Sizes) error {
	body := linkHeader(index)
	for _, a := range []struct {
		kind uint16
		size uint32
	}{{unix.IFLA_GSO_MAX_SIZE, s.GSO}, {unix.IFLA_GRO_MAX_SIZE, s.GRO}, {unix.IFLA_GSO_IPV4_MAX_SIZE, s.GSO4}, {unix.IFLA_GRO_IPV4_MAX_SIZE, s.GRO4}} {
		if a.size != 0 {
			body = append(body, Attribute(a.kind, binary.NativeEndian.AppendUint32(nil, a.size))...)
		}
	}
	return Set(unix.RTM_SETLINK, 0, body)
}

// SetUp brings a device of the calling thread's network namespace up.
func SetUp(name string) error {
	header := linkHeader(0)
	binary.NativeEndian.PutUint32(header[8:], unix.IFF_UP)  // flags
	binary.NativeEndian.PutUint32(header[12:], unix.IFF_UP) // which of them change
	if err := Set(unix.RTM_SETLINK, 0, append(header, nameAttribute(name)...)); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// NetNSID is the id that the calling thread's network namespace has for another one, given by a
// descriptor; negative if it has none (RTM_GETNSID).
func NetNSID(ns int) (id int32, err error) {
	const family = 4 // struct rtgenmsg, padded
	fd := binary.NativeEndian.AppendUint32(nil, uint32(ns))
	answer, err := get(unix.RTM_GETNSID, append(make([]byte, family), Attribute(unix.NETNSA_FD, fd)...))
	if err != nil {
		return 0, err
	}
	if len(answer) < family {
		return 0, errShort
	}
	id = SameNS
	return id, EachAttribute(answer[family:], func(kind uint16, value []byte) error {
		if kind == unix.NETNSA_NSID && len(value) == 4 {
			id = int32(binary.NativeEndian.Uint32(value))
		}
		return nil
	})
}
