package topology

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The addresses that Spread gives a host: those of SpreadAddr, and all between them.
var (
	spread4 = netip.MustParsePrefix("10.128.0.0/9")
	spread6 = netip.MustParsePrefix("fd79::/32")
)

// MaxSpread is how many /24 there are in 10.128.0.0/9.
const MaxSpread = 1 << 15

// SpreadAddr is address number i, from 0 to MaxSpread - 1, of a host after Spread: each
// is in an IPv4 /24 or an IPv6 /48 of its own.
func SpreadAddr(i int, ipv6 bool) netip.Addr {
	if ipv6 {
		return netip.AddrFrom16([16]byte{0xfd, 0x79, 4: byte(i >> 8), 5: byte(i), 15: 1})
	}
	return netip.AddrFrom4([4]byte{10, 128 + byte(i>>8), byte(i), 1})
}

// Spread gives a sender or receiver every address of 10.128.0.0/9 and fd79::/32, so that
// one host is the remote end of many paths. Only one host of a layout may be spread. It
// answers from the address that was contacted.
func (l *Layout) Spread(h *Host) error {
	if l.pod(h) != nil {
		return fmt.Errorf("spread %s: it is a pod, to which no link leads", h.Name)
	}
	for _, all := range []netip.Prefix{spread4, spread6} {
		local := &netlink.Route{Dst: ipNet(all), LinkIndex: 1, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}
		if err := h.link.RouteReplace(local); err != nil {
			return fmt.Errorf("spread %s over %s: %w", h.Name, all, err)
		}
		if err := l.routers(h, nil, all); err != nil {
			return fmt.Errorf("spread %s over %s: %w", h.Name, all, err)
		}
	}
	return nil
}
