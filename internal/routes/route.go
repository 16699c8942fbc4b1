package routes

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/rtnetlink"
)

// Route is a route as a message of the kernel (struct rtmsg and attributes), in a form that can be compared and that
// the kernel takes back: attributes are sorted, and what it only tells is left out. It can be stored for as long as the
// host runs.
type Route []byte

// Attributes that a route which is changed may have. One with another attribute stays as it is, because whether the kernel
// takes it back unchanged is not known.
var known = []uint16{unix.RTA_DST, unix.RTA_OIF, unix.RTA_GATEWAY, unix.RTA_PRIORITY, unix.RTA_PREFSRC, unix.RTA_METRICS,
	unix.RTA_MULTIPATH, unix.RTA_FLOW, unix.RTA_TABLE, unix.RTA_VIA, unix.RTA_PREF, rtaNHID}

// ofNextHop are attributes that the kernel tells of a route by a next hop object, and refuses beside it.
var ofNextHop = []uint16{unix.RTA_OIF, unix.RTA_GATEWAY, unix.RTA_MULTIPATH, unix.RTA_FLOW, unix.RTA_VIA}

// From include/uapi/linux/rtnetlink.h.
const (
	rtaNHID           = 30     // RTA_NH_ID
	rtaxFeatures      = 12     // RTAX_FEATURES
	rtaxFeatureUsecTS = 1 << 4 // RTAX_FEATURE_TCP_USEC_TS
	keptFlags         = unix.RTNH_F_PERVASIVE | unix.RTNH_F_ONLINK
)

// Offsets in struct rtmsg.
const (
	offFamily, offDstLen, offSrcLen, offTOS, offTable, offProtocol, offType, offFlags = 0, 1, 2, 3, 4, 5, 7, 8
)

type attribute struct {
	kind  uint16
	value []byte
}

var errMalformed = errors.New("a route of the kernel that is malformed")

// parse splits a list of attributes. Flags of their types are left out.
func parse(b []byte) (list []attribute, err error) {
	err = rtnetlink.EachAttribute(b, func(kind uint16, value []byte) error {
		list = append(list, attribute{kind, value})
		return nil
	})
	return list, err
}

// join is the opposite of parse, sorted by type.
func join(list []attribute) (b []byte) {
	for _, a := range slices.SortedFunc(slices.Values(list), func(a, b attribute) int { return cmp.Compare(a.kind, b.kind) }) {
		b = append(b, rtnetlink.Attribute(a.kind, a.value)...)
	}
	return b
}

// Found is a route that was found, and why it has to stay as it is; empty if it can be changed.
type Found struct {
	Route
	Fixed string
}

// notToHosts are routes that List leaves out, such as blackholes.
const notToHosts = "not a route to other hosts"

// isEntry reports whether a message is of a routing table that leads to other hosts: not of the addresses of this host, and
// not an exception that the kernel has made for one address (a path MTU that it has learned).
func isEntry(header []byte) bool {
	return binary.NativeEndian.Uint32(header[offFlags:])&unix.RTM_F_CLONED == 0 && header[offTable] != unix.RT_TABLE_LOCAL
}

// fromKernel reads a route from a message of the kernel.
func fromKernel(message []byte) (r Found, err error) {
	if len(message) < unix.SizeofRtMsg {
		return r, errMalformed
	}
	header := slices.Clone(message[:unix.SizeofRtMsg])
	attributes, err := parse(message[unix.SizeofRtMsg:])
	if err != nil {
		return r, err
	}
	r.Fixed = fixed(header, attributes)
	flags := binary.NativeEndian.Uint32(header[offFlags:])
	binary.NativeEndian.PutUint32(header[offFlags:], flags&keptFlags)
	byNumber := has(attributes, rtaNHID)
	var kept []attribute
	for _, a := range attributes {
		switch {
		case a.kind == unix.RTA_CACHEINFO && !expires(a.value), byNumber && slices.Contains(ofNextHop, a.kind):
			continue
		case a.kind == unix.RTA_MULTIPATH:
			if a.value, err = withoutState(a.value); err != nil {
				return r, err
			}
		case a.kind == unix.RTA_METRICS:
			metrics, err := parse(a.value)
			if err != nil {
				return r, err
			}
			a.value = join(metrics)
		}
		kept = append(kept, a)
	}
	r.Route = append(header, join(kept)...)
	return r, nil
}

func has(attributes []attribute, kind uint16) bool {
	return slices.ContainsFunc(attributes, func(a attribute) bool { return a.kind == kind })
}

// fixed says why a route has to stay as it is; empty if it can be changed.
func fixed(header []byte, attributes []attribute) string {
	flags, v6 := binary.NativeEndian.Uint32(header[offFlags:]), header[offFamily] == unix.AF_INET6
	switch {
	case header[offType] != unix.RTN_UNICAST:
		return notToHosts
	case header[offProtocol] == unix.RTPROT_RA:
		return "from a router's advertisement"
	case v6 && header[offProtocol] == unix.RTPROT_KERNEL:
		return "IPv6, and made by the kernel: it may follow routers' advertisements"
	case flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) != 0:
		return "its device is down"
	case v6 && has(attributes, unix.RTA_MULTIPATH) && !has(attributes, rtaNHID):
		return "IPv6 with several next hops: the kernel does not replace those at once"
	}
	for _, a := range attributes {
		unknown := !slices.Contains(known, a.kind) && a.kind != unix.RTA_CACHEINFO
		if a.kind == unix.RTA_MULTIPATH {
			unknown = !eachHop(a.value, func(hop []byte) bool {
				list, err := parse(hop[unix.SizeofRtNexthop:])
				return err == nil && !slices.ContainsFunc(list, func(a attribute) bool { return !slices.Contains(ofNextHop, a.kind) })
			})
		}
		switch {
		case unknown:
			return "it has attributes that are not known to be kept"
		case a.kind == unix.RTA_CACHEINFO && expires(a.value):
			return "it expires"
		}
	}
	return ""
}

// expires reports whether a route has a lifetime (struct rta_cacheinfo).
func expires(info []byte) bool {
	return len(info) >= 12 && binary.NativeEndian.Uint32(info[8:]) != 0
}

// withoutState leaves only those flags of next hops that a request may have.
func withoutState(hops []byte) ([]byte, error) {
	hops = slices.Clone(hops)
	if !eachHop(hops, func(hop []byte) bool { hop[2] &= keptFlags; return true }) {
		return nil, errMalformed
	}
	return hops, nil
}

// eachHop calls f for each next hop (struct rtnexthop and attributes) until it returns false, and reports whether it never did
// and the list is whole.
func eachHop(hops []byte, f func(hop []byte) bool) bool {
	for len(hops) >= unix.SizeofRtNexthop {
		n := int(binary.NativeEndian.Uint16(hops))
		if n < unix.SizeofRtNexthop || n > len(hops) || !f(hops[:n]) {
			return false
		}
		hops = hops[min(len(hops), (n+3)&^3):]
	}
	return true
}

// attributes are those of a route that fromKernel has made.
func (r Route) attributes() []attribute {
	list, _ := parse(r[unix.SizeofRtMsg:])
	return list
}

func (r Route) attribute(kind uint16) []byte {
	for _, a := range r.attributes() {
		if a.kind == kind {
			return a.value
		}
	}
	return nil
}

// number is an attribute with a number; 0 if the route has none.
func (r Route) number(kind uint16) uint32 {
	if value := r.attribute(kind); len(value) == 4 {
		return binary.NativeEndian.Uint32(value)
	}
	return 0
}

// Destination is the prefix of the addresses to which a route leads.
func (r Route) Destination() netip.Prefix {
	size := 4
	if r[offFamily] == unix.AF_INET6 {
		size = 16
	}
	address := make([]byte, size)
	copy(address, r.attribute(unix.RTA_DST))
	a, _ := netip.AddrFromSlice(address)
	return netip.PrefixFrom(a, int(r[offDstLen]))
}

// Key identifies a route in its network namespace, as the kernel does when one is replaced.
func (r Route) Key() string {
	return fmt.Sprintf("%d/%v/%d/%d/%d", r[offSrcLen], r.Destination(), r.number(unix.RTA_TABLE), r[offTOS], r.number(unix.RTA_PRIORITY))
}

// String is the destination, and the table and the metric if they are not those of most routes.
func (r Route) String() string {
	text := r.Destination().String()
	if table := r.number(unix.RTA_TABLE); table != unix.RT_TABLE_MAIN {
		text += fmt.Sprintf(" table %d", table)
	}
	if metric := r.number(unix.RTA_PRIORITY); metric != 0 && r[offFamily] == unix.AF_INET {
		text += fmt.Sprintf(" metric %d", metric)
	}
	return text
}

// IsValid reports whether a route that was stored is whole.
func (r Route) IsValid() bool {
	if len(r) < unix.SizeofRtMsg {
		return false
	}
	_, err := parse(r[unix.SizeofRtMsg:])
	return err == nil
}

// Equal reports whether two routes are the same in everything.
func (r Route) Equal(o Route) bool { return bytes.Equal(r, o) }

// UsecTS reports whether connections by a route use timestamps in microseconds.
func (r Route) UsecTS() bool { return r.features()&rtaxFeatureUsecTS != 0 }

func (r Route) features() (features uint32) {
	metrics, _ := parse(r.attribute(unix.RTA_METRICS))
	for _, m := range metrics {
		if m.kind == rtaxFeatures && len(m.value) == 4 {
			features = binary.NativeEndian.Uint32(m.value)
		}
	}
	return features
}

// WithUsecTS is a route by which connections use timestamps in microseconds, and that is else the same.
func (r Route) WithUsecTS() Route {
	features := r.features() | rtaxFeatureUsecTS
	metrics, _ := parse(r.attribute(unix.RTA_METRICS))
	metrics = slices.DeleteFunc(metrics, func(m attribute) bool { return m.kind == rtaxFeatures })
	metrics = append(metrics, attribute{rtaxFeatures, binary.NativeEndian.AppendUint32(nil, features)})
	others := slices.DeleteFunc(r.attributes(), func(a attribute) bool { return a.kind == unix.RTA_METRICS })
	return append(slices.Clone(r[:unix.SizeofRtMsg]), join(append(others, attribute{unix.RTA_METRICS, join(metrics)}))...)
}
