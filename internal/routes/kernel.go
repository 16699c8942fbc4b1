package routes

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/rtnetlink"
)

// attempts is how often a list is asked for that changes while the kernel writes it.
const attempts = 3

// maxListed bounds a list: routers can have a million routes.
const maxListed = 1 << 16

// List lists the routes to other hosts in the calling thread's network namespace whose destinations are wanted: all of
// them, or none if that fails.
func List(wanted func(destination netip.Prefix) bool) ([]Found, error) {
	list, err := listAll(func(r Route) bool { return wanted(r.Destination()) })
	if err != nil {
		return nil, err
	}
	markShared(list)
	return slices.DeleteFunc(list, func(r Found) bool { return r.Fixed == notToHosts }), nil
}

// listAll lists the wanted routes, those that are not to other hosts too.
func listAll(wanted func(Route) bool) (list []Found, err error) {
	for range attempts {
		list = nil
		if err = each(unix.AF_INET, wanted, &list); err == nil {
			err = each(unix.AF_INET6, wanted, &list)
		}
		if !errors.Is(err, nl.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	if len(list) > maxListed {
		return nil, fmt.Errorf("list routes: there are more than %d", maxListed)
	}
	return list, nil
}

func each(family uint8, wanted func(Route) bool, list *[]Found) error {
	request := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
	message := nl.NewRtMsg()
	message.Family = family
	request.AddData(message)
	var malformed error
	err := request.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE, func(message []byte) bool {
		switch {
		case len(message) < unix.SizeofRtMsg:
			malformed = errMalformed
			return false
		case message[offFamily] != family: // a kernel without IPv6 lists IPv4 again
			return true
		case !isEntry(message), !wanted(Route(message)):
			return true
		}
		r, err := fromKernel(message)
		if err != nil {
			malformed = err
			return false
		}
		*list = append(*list, r)
		return len(*list) <= maxListed
	})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // no IPv6
	}
	return cmp.Or(malformed, err)
}

// markShared says of routes with the same key that they cannot be changed: the kernel would replace the first of them.
func markShared(list []Found) {
	count := map[string]int{}
	for _, r := range list {
		count[r.Key()]++
	}
	for i := range list {
		if r := &list[i]; r.Fixed == "" && count[r.Key()] > 1 {
			r.Fixed = "another route has the same destination, table and metric"
		}
	}
}

// Replace replaces the route of the calling thread's network namespace that has the same key. It fails with
// unix.ENOENT if there is none.
func Replace(r Route) error {
	message := slices.Clone(r)
	if r.attribute(unix.RTA_METRICS) == nil {
		// Without metrics, a route by a next hop object would get those of the one that it replaces (fib_create_info
		// of net/ipv4/fib_semantics.c).
		message = append(message, rtnetlink.Attribute(unix.RTA_METRICS, nil)...)
	}
	if err := rtnetlink.Set(unix.RTM_NEWROUTE, unix.NLM_F_REPLACE, message); err != nil {
		return fmt.Errorf("replace route to %v: %w", r, err)
	}
	return nil
}

// SupportsUsecTS finds out whether the kernel takes routes with timestamps in microseconds, by adding one in the calling
// thread's network namespace: a blackhole route, because that needs no link.
func SupportsUsecTS() error {
	r := make(Route, unix.SizeofRtMsg)
	copy(r, []byte{unix.AF_INET, 32, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, unix.RTN_BLACKHOLE})
	r = append(r, rtnetlink.Attribute(unix.RTA_DST, []byte{192, 0, 2, 1})...)
	return rtnetlink.Set(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, r.WithUsecTS())
}
