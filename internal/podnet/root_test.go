package podnet

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// The other end of a pair counts only if it is in the host's namespace, and the device under a
// macvlan is not another end.
func TestRootFind(t *testing.T) {
	host, inside, third := testenv.NetNS(t), testenv.NetNS(t), testenv.NetNS(t)
	host.Enter(t)
	if _, err := testenv.PodLink(inside.Path(), "eth0", "outer", netip.MustParsePrefix("10.9.0.5/24")); err != nil {
		t.Fatal(err)
	}
	third.Do(t, func() {
		if _, err := testenv.PodLink(inside.Path(), "net1", "outer", netip.MustParsePrefix("10.9.1.5/24")); err != nil {
			t.Error(err)
		}
	})
	inside.Run(t, "ip", "link", "add", "both0", "type", "veth", "peer", "name", "both1")
	outer, err := net.InterfaceByName("outer")
	if err != nil {
		t.Fatal(err)
	}
	macvlan := &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "mac0", ParentIndex: outer.Index, Namespace: netlink.NsFd(inside.FD())}, Mode: netlink.MACVLAN_MODE_BRIDGE}
	if err := netlink.LinkAdd(macvlan); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]pod.Link{
		"eth0":  {Device: pod.Veth, HostIndex: outer.Index},
		"net1":  {Device: pod.Veth},
		"both0": {Device: pod.Veth},
		"mac0":  {},
		"lo":    {},
		"eth1":  {},
	} {
		inside.Do(t, func() {
			if i, err := net.InterfaceByName(name); err == nil {
				want.Index = i.Index
			}
		})
		got, err := Find(inside.Path(), name)
		if err != nil || got.Device != want.Device || got.Index != want.Index || got.HostIndex != want.HostIndex {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
	if _, err := Find("/run/netns/none", "eth0"); err == nil {
		t.Error("no namespace: no error")
	}
}
