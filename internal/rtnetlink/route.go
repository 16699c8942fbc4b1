package rtnetlink

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Route is the way of packets to an address.
type Route struct {
	MTU          uint32 // of the route, in bytes; 0 if it has none of its own
	Device       int    // index of the device by which they leave; 0 if there is no route
	Encapsulates bool   // the route adds headers (lwtunnel)
	Router       bool   // they go to a router first: the address is not on the device's own link
	Local        bool   // the address is this host's own, also as one of several routers (anycast)
}

// RouteTo looks up the route to an address in the calling thread's network namespace, as for a packet that the host
// itself sends.
func RouteTo(a netip.Addr) (r Route, err error) {
	header := make([]byte, unix.SizeofRtMsg)
	header[0], header[1] = unix.AF_INET6, uint8(a.BitLen())
	if a.Is4() {
		header[0] = unix.AF_INET
	}
	answer, err := get(unix.RTM_GETROUTE, append(header, Attribute(unix.RTA_DST, a.AsSlice())...))
	if _, refused := err.(unix.Errno); refused && err != unix.ENOMEM && err != unix.ENOBUFS {
		return r, nil // unreachable, prohibited, ...: no packet leaves
	}
	if err != nil {
		return r, err
	}
	if len(answer) < unix.SizeofRtMsg {
		return r, errShort
	}
	kind := answer[7] // rtm_type
	r.Local = kind == unix.RTN_LOCAL || kind == unix.RTN_ANYCAST
	return r, EachAttribute(answer[unix.SizeofRtMsg:], func(kind uint16, value []byte) error {
		switch {
		case kind == unix.RTA_GATEWAY, kind == unix.RTA_VIA:
			r.Router = true
		case kind == unix.RTA_OIF && len(value) == 4:
			r.Device = int(binary.NativeEndian.Uint32(value))
		case kind == unix.RTA_ENCAP_TYPE:
			r.Encapsulates = true
		case kind == unix.RTA_METRICS:
			return EachAttribute(value, func(kind uint16, value []byte) error {
				if kind == unix.RTAX_MTU && len(value) == 4 {
					r.MTU = binary.NativeEndian.Uint32(value)
				}
				return nil
			})
		}
		return nil
	})
}

// include/uapi/linux/xfrm.h
const (
	xfrmMsgGetSPDInfo = 0x25
	xfrmaSPDInfo      = 1
)

// HasIPsec reports whether the calling thread's network namespace has policies of IPsec for packets that it sends
// or forwards.
func HasIPsec() (bool, error) {
	const flags = 4 // bytes: the message is one word that is not used
	answered, answer, err := exchange(unix.NETLINK_XFRM, xfrmMsgGetSPDInfo, 0, make([]byte, flags))
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return false, nil // the kernel has no IPsec
	}
	if err == nil && answered == unix.NLMSG_ERROR {
		err = errorOf(answer)
	}
	if err != nil {
		return false, err
	}
	if len(answer) < flags {
		return false, errShort
	}
	has := false
	return has, EachAttribute(answer[flags:], func(kind uint16, value []byte) error {
		if kind == xfrmaSPDInfo && len(value) >= 12 { // struct xfrmu_spdinfo: incoming, outgoing, forwarded, ...
			has = binary.NativeEndian.Uint32(value[4:])+binary.NativeEndian.Uint32(value[8:]) > 0
		}
		return nil
	})
}
