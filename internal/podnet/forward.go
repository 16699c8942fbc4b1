package podnet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/sysctl"
)

const (
	forward4 = "net.ipv4.ip_forward"
	forward6 = "net.ipv6.conf.all.forwarding"
	devices6 = "net.ipv6.conf"
)

// Forward makes the host forward packets of the families, if it does not yet, and returns what it
// changed, such as "net.ipv4.ip_forward=1". The change is never undone, because other programs may
// rely on forwarding by then.
//
// When a host begins to forward IPv6, it forgets the routers that it knows from advertisements (kernel:
// rt6_purge_dflt_routers), unless accept_ra is 2. So accept_ra 1 becomes 2 before: on a host that
// forwards, 2 has the meaning that 1 has on a host that does not.
func Forward(v4, v6 bool) (changed []string, err error) {
	set := func(name, value string) error {
		if err := sysctl.Write(name, value); err != nil {
			return fmt.Errorf("set %s to %s: %w", name, value, err)
		}
		changed = append(changed, name+"="+value)
		return nil
	}
	if v4 {
		if on, err := sysctl.Read(forward4); err != nil {
			return changed, fmt.Errorf("read %s: %w", forward4, err)
		} else if on == "0" {
			if err := set(forward4, "1"); err != nil {
				return changed, err
			}
		}
	}
	if !v6 {
		return changed, nil
	}
	if on, err := sysctl.Read(forward6); err != nil {
		return changed, fmt.Errorf("read %s: %w", forward6, err)
	} else if on != "0" {
		return changed, nil
	}
	devices, err := os.ReadDir(sysctl.Path(devices6))
	if err != nil {
		return changed, fmt.Errorf("list devices with IPv6: %w", err)
	}
	for _, d := range devices {
		name := devices6 + "." + sysctl.Part(d.Name()) + ".accept_ra"
		if d.Name() == "all" || d.Name() == "default" {
			continue
		}
		if accept, err := sysctl.Read(name); err == nil && accept == "1" { // it may be gone
			if err := set(name, "2"); err != nil {
				return changed, err
			}
		}
	}
	return changed, set(forward6, "1")
}

// Addresses in the networks for documentation (RFC 5737, RFC 3849): only the default route leads to
// them.
var (
	outside4 = netip.MustParseAddr("192.0.2.1")
	outside6 = netip.MustParseAddr("2001:db8::1")
)

// defaultMTU is the MTU, in bytes, for a host without a default route (Ethernet).
const defaultMTU = 1500

// loopback is the index of lo in each network namespace (kernel: LOOPBACK_IFINDEX).
const loopback = 1

// MTU is the least MTU, in bytes, of the devices of the default routes of the families.
func MTU(v4, v6 bool) (int, error) {
	host, err := open(netns.Own)
	if err != nil {
		return 0, err
	}
	defer host.Close()
	return leastMTU(v4, v6, func(a netip.Addr) (int, error) { return outgoing(host, a) }, host.LinkByIndex)
}

func leastMTU(v4, v6 bool, outgoing func(netip.Addr) (int, error), device func(index int) (netlink.Link, error)) (mtu int, err error) {
	last := 0
	for outside, wanted := range map[netip.Addr]bool{outside4: v4, outside6: v6} {
		if !wanted {
			continue
		}
		index, err := outgoing(outside)
		if isNoRoute(err) || err == nil && (index == 0 || index == loopback || index == last) {
			continue // the address is the host's own, or the device is that of the other family's route, too
		}
		if err != nil { // with a guess, packets longer than the device's MTU would be lost or fragmented
			return 0, fmt.Errorf("find the default route, for the MTU of its device: %w", err)
		}
		last = index
		l, err := device(index)
		if err != nil {
			return 0, fmt.Errorf("find the device of the default route: %w", err)
		}
		if m := l.Attrs().MTU; mtu == 0 || m < mtu {
			mtu = m
		}
	}
	if mtu == 0 {
		mtu = defaultMTU
	}
	return mtu, nil
}

// isNoRoute reports whether the kernel answers that no route leads to an address: there is none, or one of the types unreachable, prohibit and
// blackhole (fib_props in net/ipv4/fib_semantics.c), or the family is disabled.
func isNoRoute(err error) bool {
	return slices.ContainsFunc([]error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EAFNOSUPPORT, unix.EOPNOTSUPP}, func(no error) bool { return errors.Is(err, no) })
}
