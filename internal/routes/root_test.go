package routes

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func everything(netip.Prefix) bool { return true }

// node has routes of many kinds.
func node(t *testing.T) *testenv.NS {
	t.Helper()
	ns := testenv.NetNS(t)
	ns.Do(t, func() {
		for _, command := range strings.Split(`ip link add d0 type veth peer name p0
ip link add d1 type veth peer name p1
ip link set p0 up
ip link set p1 up
ip addr add 10.1.0.1/24 dev d0
ip addr add 10.2.0.1/24 dev d1
ip -6 addr add fd01::1/64 dev d0 nodad
ip link set d0 up
ip link set d1 up
ip route add default via 10.1.0.9
ip route add 10.9.0.0/16 via 10.1.0.9 src 10.1.0.1 mtu lock 1400 rto_min 30ms initcwnd 20 congctl cubic features ecn
ip route add 10.9.0.0/16 via 10.1.0.8 metric 50
ip route add 10.9.0.0/16 via 10.1.0.7 tos 0x10
ip route add 10.10.0.0/16 nexthop via 10.1.0.9 weight 2 nexthop via 10.2.0.9 weight 5
ip route add 10.11.0.0/16 via 192.168.7.7 dev d0 onlink table 77 proto 99 scope site
ip nexthop add id 5 via 10.1.0.9 dev d0
ip nexthop add id 6 via 10.2.0.9 dev d1
ip nexthop add id 7 group 5/6
ip route add 10.12.0.0/16 nhid 7
ip route add 10.13.0.0/16 via inet6 fd01::9 dev d0
ip -6 route add fd09::/32 via fd01::9 metric 40 initrwnd 30
ip -6 route add fd10::/32 dev d1 pref high table 88`, "\n") {
			if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
				t.Errorf("%s: %s%v", command, out, err)
			}
		}
	})
	return ns
}

// shown is what ip(8) shows. It may not know the feature's name.
func shown(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, family := range []string{"-4", "-6"} {
		out, err := exec.Command("ip", "-d", family, "route", "show", "table", "all").CombinedOutput()
		if err != nil {
			t.Errorf("%s%v", out, err)
		}
		all.Write(out)
	}
	return all.String()
}

// Each route that can be changed gets the feature, nothing else of it changes, and it is restored.
func TestRootReplace(t *testing.T) {
	testenv.Root(t)
	if err := netns.InNew(SupportsUsecTS); err != nil {
		testenv.Missing(t, "the kernel has no timestamps in microseconds: "+err.Error())
	}
	node(t).Do(t, func() {
		before := shown(t)
		list, err := List(everything)
		if err != nil {
			t.Fatal(err)
		}
		var changed []Found
		for _, r := range list {
			if r.Fixed != "" {
				continue
			}
			changed = append(changed, r)
			if err := Replace(r.WithUsecTS()); err != nil {
				t.Error(err)
			}
		}
		if len(changed) != 12 {
			t.Errorf("only %v can be changed of %v", changed, list)
		}
		during, err := List(everything)
		if err != nil || len(during) != len(list) {
			t.Errorf("%d routes during the change, %d before, %v", len(during), len(list), err)
		}
		for _, r := range changed {
			if !slices.ContainsFunc(during, func(now Found) bool { return now.Equal(r.WithUsecTS()) }) {
				t.Errorf("%v was not changed to what was asked for", r)
			}
		}
		for _, r := range changed {
			if err := Replace(r.Route); err != nil {
				t.Error(err)
			}
		}
		if after := shown(t); after != before {
			t.Errorf("routes afterwards:\n%sbefore:\n%s", after, before)
		}
		after, err := List(everything)
		if err != nil {
			t.Error(err)
		}
		for _, r := range list {
			if !slices.ContainsFunc(after, func(now Found) bool { return now.Equal(r.Route) }) {
				t.Errorf("%v was not restored", r)
			}
		}
	})
}
