package routes

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/rtnetlink"
)

// message is a route to 10.7.0.0/16 as the kernel lists it.
func message(attributes ...[]byte) []byte {
	m := make([]byte, unix.SizeofRtMsg)
	copy(m, []byte{unix.AF_INET, 16, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST})
	m = append(m, number(unix.RTA_TABLE, unix.RT_TABLE_MAIN)...)
	m = append(m, rtnetlink.Attribute(unix.RTA_DST, []byte{10, 7, 0, 0})...)
	for _, a := range attributes {
		m = append(m, a...)
	}
	return m
}

func number(kind uint16, n uint32) []byte {
	return rtnetlink.Attribute(kind, binary.NativeEndian.AppendUint32(nil, n))
}

func read(t *testing.T, message []byte) Found {
	t.Helper()
	r, err := fromKernel(message)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRoute(t *testing.T) {
	const rtaxWindow = 3
	metrics := append(number(rtaxFeatures, 1), number(rtaxWindow, 9)...) // 1 is RTAX_FEATURE_ECN
	r := read(t, message(rtnetlink.Attribute(unix.RTA_METRICS, metrics), number(unix.RTA_PRIORITY, 100)))
	if r.String() != "10.7.0.0/16 metric 100" || r.Destination() != netip.MustParsePrefix("10.7.0.0/16") || r.Fixed != "" || r.UsecTS() {
		t.Errorf("%v %v %q %v", r, r.Destination(), r.Fixed, r.UsecTS())
	}
	with := r.WithUsecTS()
	if !with.UsecTS() || with.features() != 1|rtaxFeatureUsecTS || with.Key() != r.Key() || with.Equal(r.Route) || !with.WithUsecTS().Equal(with) {
		t.Errorf("%x with the feature is %x", r.Route, with)
	}
	same := read(t, message(number(unix.RTA_PRIORITY, 100), rtnetlink.Attribute(unix.RTA_METRICS, append(number(rtaxWindow, 9), number(rtaxFeatures, 1)...))))
	if !same.Equal(r.Route) {
		t.Errorf("in another order it is %x instead of %x", same.Route, r.Route)
	}
	if plain := read(t, message()); !plain.WithUsecTS().UsecTS() {
		t.Errorf("without metrics: %x", plain.WithUsecTS())
	}
}

// Routes that the kernel would not take back, or that are not ours to change, stay.
func TestFixed(t *testing.T) {
	lifetime := make([]byte, 32) // struct rta_cacheinfo
	binary.NativeEndian.PutUint32(lifetime[8:], 600)
	ra := message()
	ra[offProtocol] = unix.RTPROT_RA
	blackhole := message()
	blackhole[offType] = unix.RTN_BLACKHOLE
	hop := func(attributes []byte) []byte {
		h := make([]byte, unix.SizeofRtNexthop)
		binary.NativeEndian.PutUint16(h, uint16(len(h)+len(attributes)))
		return rtnetlink.Attribute(unix.RTA_MULTIPATH, append(h, attributes...))
	}
	kernel6 := message()
	kernel6[offFamily], kernel6[offProtocol] = unix.AF_INET6, unix.RTPROT_KERNEL
	if r := read(t, message(hop(number(unix.RTA_GATEWAY, 7)))); r.Fixed != "" {
		t.Errorf("a route by several next hops stays: %s", r.Fixed)
	}
	down := message()
	down[offFlags] = unix.RTNH_F_LINKDOWN
	for name, m := range map[string][]byte{"with a lifetime": message(rtnetlink.Attribute(unix.RTA_CACHEINFO, lifetime)), "advertised": ra, "of another type": blackhole,
		"down": down, "of the kernel for IPv6": kernel6, "encapsulating by one of its next hops": message(hop(rtnetlink.Attribute(unix.RTA_ENCAP_TYPE, []byte{1, 0}))),
		"encapsulating": message(rtnetlink.Attribute(unix.RTA_ENCAP_TYPE, []byte{1, 0}))} {
		if r := read(t, m); r.Fixed == "" {
			t.Errorf("a route %s can be changed", name)
		}
	}
	if r := read(t, message(rtnetlink.Attribute(unix.RTA_CACHEINFO, make([]byte, 32)))); r.Fixed != "" || !r.Equal(read(t, message()).Route) {
		t.Errorf("statistics of a route count: %x, %q", r.Route, r.Fixed)
	}
	learned := message()
	binary.NativeEndian.PutUint32(learned[offFlags:], unix.RTM_F_CLONED)
	if isEntry(learned) || !isEntry(message()) {
		t.Error("what the kernel has learned for an address is taken for a route")
	}
	list := []Found{read(t, message()), read(t, message(number(unix.RTA_OIF, 3))), read(t, message(number(unix.RTA_PRIORITY, 5)))}
	if markShared(list); list[0].Fixed == "" || list[1].Fixed == "" || list[2].Fixed != "" {
		t.Errorf("two with the same key: %+v", list)
	}
}

func FuzzFromKernel(f *testing.F) {
	hop := make([]byte, unix.SizeofRtNexthop)
	binary.NativeEndian.PutUint16(hop, unix.SizeofRtNexthop)
	f.Add(message(rtnetlink.Attribute(unix.RTA_MULTIPATH, hop), number(rtaNHID, 7)))
	f.Add(message(rtnetlink.Attribute(unix.RTA_METRICS, number(rtaxFeatures, 1))))
	f.Fuzz(func(t *testing.T, m []byte) {
		r, err := fromKernel(m)
		if err != nil || len(m) > 1<<12 { // the kernel's are shorter
			return
		}
		if !r.IsValid() {
			t.Fatalf("%x is not valid", r.Route)
		}
		_ = r.Key() + r.String()
		if with := r.WithUsecTS(); !with.IsValid() || !with.UsecTS() {
			t.Errorf("%x does not have the feature", with)
		}
		if again := read(t, r.Route); r.Fixed == "" && !again.Equal(r.Route) {
			t.Errorf("%x is read as %x", r.Route, again.Route)
		}
	})
}
