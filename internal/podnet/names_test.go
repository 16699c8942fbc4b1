package podnet

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tcpilot/tcpilot/internal/pod"
)

// Every attachment has its own device name and MAC addresses, which the kernel accepts.
func TestNames(t *testing.T) {
	seen := map[string]pod.Key{}
	for i := range 20000 {
		k := pod.Key{Container: fmt.Sprintf("%064x", i/2), Interface: fmt.Sprint("eth", i%2)}
		name := HostName(k)
		if pod.CheckInterface(name) != nil || len(name) != 15 {
			t.Fatalf("%q", name)
		}
		inner, outer := addressesOf(name)
		for _, s := range []string{name, inner.String(), outer.String()} {
			if had, twice := seen[s]; twice {
				t.Errorf("%s is of %v and %v", s, had, k)
			}
			seen[s] = k
		}
		for _, a := range [][]byte{inner, outer} {
			if len(a) != 6 || a[0]&3 != 2 {
				t.Fatalf("%x is not a local unicast address", a)
			}
		}
	}
	// The name must not change between versions, because another version has to find the device.
	if got, want := HostName(pod.Key{Container: "c1", Interface: "eth0"}), "tcpb3e6dbbf0bbd"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestContains(t *testing.T) {
	all4, all6 := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")
	some := netip.MustParsePrefix("10.9.0.0/16")
	list := []netlink.Route{{Gw: gateway4.AsSlice()}, {Dst: ipNet(all6), Gw: gateway6.AsSlice()}, {Dst: ipNet(some), Gw: netip.MustParseAddr("10.1.0.1").AsSlice()}}
	for want, has := range map[netip.Prefix]bool{all4: true, all6: true, some: false, netip.MustParsePrefix("10.0.0.0/8"): false} {
		if contains(list, want) != has {
			t.Errorf("%v contains %s: %v", list, want, !has)
		}
	}
	if list = slices.Delete(list, 0, 1); contains(list, all4) {
		t.Error("a route of IPv6 was taken for one of IPv4")
	}
}
