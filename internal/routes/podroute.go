package routes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/rtnetlink"
)

// Protocol is the routing protocol of the routes that this package adds (rtm_protocol; "proto 84" in ip-route(8)). Neither the kernel's
// include/uapi/linux/rtnetlink.h nor rt_protos of iproute2 has that number.
const Protocol = 84

// PodRoute is a route in the main table to the pods of another node on the same link.
type PodRoute struct {
	Destination netip.Prefix
	Gateway     netip.Addr // of the node
	Device      int        // index
}

// message is the route as a request.
func (p PodRoute) message() []byte {
	family := uint8(unix.AF_INET)
	if p.Destination.Addr().Is6() {
		family = unix.AF_INET6
	}
	m := make([]byte, unix.SizeofRtMsg)
	copy(m, []byte{family, uint8(p.Destination.Bits()), 0, 0, unix.RT_TABLE_MAIN, Protocol, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST})
	return append(m, join([]attribute{
		{unix.RTA_DST, p.Destination.Addr().AsSlice()}, {unix.RTA_GATEWAY, p.Gateway.AsSlice()},
		{unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(p.Device))},
	})...)
}

// AddPodRoute adds a route in the calling thread's network namespace. It fails with unix.EEXIST if there is one to the same destination
// and with the same metric.
func AddPodRoute(p PodRoute) error {
	if err := rtnetlink.Set(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, p.message()); err != nil {
		return fmt.Errorf("add route to %v: %w", p.Destination, err)
	}
	return nil
}

// DeletePodRoute deletes exactly this route, which AddPodRoute has added: the kernel compares the protocol as well. It is not an error if it is
// gone.
func DeletePodRoute(p PodRoute) error {
	err := rtnetlink.Set(unix.RTM_DELROUTE, 0, p.message())
	if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete route to %v: %w", p.Destination, err)
	}
	return nil
}

// PodRoutes lists the routes in the main table of the calling thread's network namespace that AddPodRoute has added, and the routing protocols of
// all others whose destination is one of some.
func PodRoutes(of func(netip.Prefix) bool) (own []PodRoute, others map[netip.Prefix]uint8, err error) {
	list, err := listAll(func(r Route) bool { return r[offProtocol] == Protocol || of(r.Destination()) })
	if err != nil {
		return nil, nil, err
	}
	others = make(map[netip.Prefix]uint8)
	for _, r := range list {
		gateway, _ := netip.AddrFromSlice(r.attribute(unix.RTA_GATEWAY))
		switch {
		case r.number(unix.RTA_TABLE) != unix.RT_TABLE_MAIN:
		case r.Route[offProtocol] == Protocol:
			own = append(own, PodRoute{r.Destination(), gateway, int(r.number(unix.RTA_OIF))})
		default:
			others[r.Destination()] = r.Route[offProtocol]
		}
	}
	return own, others, nil
}
