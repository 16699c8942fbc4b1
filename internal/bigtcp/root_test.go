package bigtcp

import (
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/rtnetlink"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// need skips the test on a kernel that has no BIG TCP for both families.
func need(t *testing.T) {
	t.Helper()
	testenv.Root(t)
	_ = exec.Command("modprobe", "tun").Run() // it may be built in
	if err := Try(); errors.Is(err, ErrIgnored) {
		testenv.Missing(t, err.Error())
	} else if err != nil {
		t.Fatal(err)
	}
}

// device is a device of the calling thread's namespace.
func device(t *testing.T, name string) rtnetlink.Link {
	t.Helper()
	d, err := rtnetlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Each value becomes what is asked for, also if the kernel couples two of them, and all are restored.
func TestRootSizes(t *testing.T) {
	need(t)
	a, b := testenv.NetNS(t), testenv.NetNS(t)
	end, _ := testenv.Veth(t, a, b)
	a.Enter(t)
	read := func() Values {
		t.Helper()
		_, v, err := Read(end.Index)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	before := read()
	if before.GSO == 0 || before.GRO == 0 || before.GSO4 == 0 || before.GRO4 == 0 || before.MTU6 != 1500 {
		t.Fatalf("%+v", before)
	}
	for _, v := range []Values{
		Goal{Size: Size, MTU6: 1492}.Of(before),
		{rtnetlink.Sizes{GSO: 60000, GRO: 61000, GSO4: 190000, GRO4: 180000}, 1400},
		{rtnetlink.Sizes{GSO: 190000, GRO: 180000, GSO4: 60000, GRO4: 61000}, 1500},
		before,
	} {
		if err := Set(end.Index, v); err != nil {
			t.Errorf("%+v: %v", v, err)
		}
		if now := read(); now != v {
			t.Errorf("asked for %+v, got %+v", v, now)
		}
	}
	if err := Set(end.Index, Goal{Size: 1 << 24}.Of(before)); err == nil {
		t.Error("more than the device can have was accepted")
	}
	if now := read(); now != before {
		t.Errorf("a refused change left %+v", now)
	}
	testenv.Sysctl(t, a, "net.ipv6.conf."+end.Name+".disable_ipv6", "1")
	if err := Set(end.Index, Values{Sizes: before.Sizes}); err != nil {
		t.Errorf("without IPv6: %v", err)
	}
}

// A device that cannot carry packets above 64 KB is named in the error, wherever on the path it is.
func TestRootPath(t *testing.T) {
	need(t)
	a, b := testenv.NetNS(t), testenv.NetNS(t)
	end, far := testenv.Veth(t, a, b)
	a.Enter(t)
	find := func(what, refused string, names []string, networks ...netip.Prefix) {
		t.Helper()
		p, err := FindPath(names, networks)
		switch {
		case refused == "" && (err != nil || len(p.Devices) == 0 || p.Size != Size):
			t.Errorf("%s: %+v, %v", what, p, err)
		case refused != "" && (err == nil || !strings.Contains(err.Error(), refused)):
			t.Errorf("%s: %v, want %q", what, err, refused)
		}
	}
	net := netip.PrefixFrom(far.V4, 24)
	find("a pair of devices", "", []string{end.Name, "not-yet"})
	find("a route to it", "", nil, net)
	testenv.Sysctl(t, a, "net.ipv6.conf.all.forwarding", "1") // then a network's first address is the host's own, as an anycast address
	find("a route to a network of this host", "", nil, netip.PrefixFrom(far.V6, 64).Masked())
	if p, err := FindPath(nil, nil); err != nil || p.Size != Size || len(p.Devices) != 0 {
		t.Errorf("nothing: %+v, %v", p, err)
	}
	a.IP(t, "link add mac0 link "+end.Name+" type macvlan")
	find("a device above another one", "", []string{"mac0"})
	a.IP(t, "link add tunnel0 type vxlan id 5 dstport 4789 remote "+far.V4.String()+" dev "+end.Name)
	find("a tunnel", "device tunnel0: it is a tunnel (vxlan)", []string{"tunnel0"})
	a.IP(t, "tuntap add small0 mode tap\nlink set small0 up")
	find("a driver without support", "device small0: its driver does not support packets above 64 KB (tso_max_size is 65536)", []string{end.Name, "small0"})
	a.IP(t, "link add mac1 link small0 type macvlan")
	find("a device above one without support", "device mac1: ", []string{"mac1"})
	a.IP(t, "route add 203.0.113.0/24 dev small0")
	find("a network behind it", "device small0 of the route to 203.0.113.0", nil, netip.MustParsePrefix("203.0.113.0/24"))
	a.IP(t, "route add unreachable 198.51.100.0/24")
	find("no route", "", []string{end.Name}, netip.MustParsePrefix("198.51.100.0/24"))
	a.IP(t, "link add br0 type bridge")
	find("a bridge", "device br0: it is of the kind bridge", []string{"br0"})
	a.IP(t, "route add default dev small0")
	find("the default route", "device small0 of the route to 192.0.2.1", []string{end.Name})
	a.IP(t, "route del default\nroute add default dev lo")
	find("the host itself", "", []string{end.Name})
	if out := a.Run(t, "sh", "-c", "ip xfrm policy add src 10.0.0.0/8 dst 11.0.0.0/8 dir out tmpl src 10.0.0.1 dst 11.0.0.1 proto esp mode tunnel || echo none"); strings.Contains(out, "none") {
		t.Logf("the kernel has no IPsec: %s", out)
		return
	}
	find("IPsec", "policies of IPsec", []string{end.Name})
}

// The namespace's own devices decide, not those of the host.
func TestRootPair(t *testing.T) {
	need(t)
	a, b := testenv.NetNS(t), testenv.NetNS(t)
	end, far := testenv.Veth(t, a, b)
	var inside rtnetlink.Link
	b.Do(t, func() { inside = device(t, far.Name) })
	a.Enter(t)
	if err := (&Path{Size: Size}).CheckPair(device(t, end.Name), inside); err != nil {
		t.Error(err)
	}
	if err := (&Path{Size: inside.MaxSize + 1}).CheckPair(device(t, end.Name), inside); err == nil {
		t.Error("a pair that cannot have it was accepted")
	}
	if err := (&Path{Size: Size, MTU: 1280}).CheckPair(device(t, end.Name), inside); err == nil || !strings.Contains(err.Error(), "too small for IPv6") {
		t.Errorf("with the least MTU of IPv6: %v", err)
	}
	if out := a.Run(t, "sh", "-c", "ip link add vrf0 type vrf table 10 || echo none"); !strings.Contains(out, "none") {
		a.IP(t, "link set "+end.Name+" master vrf0")
		if err := (&Path{Size: Size}).CheckPair(device(t, end.Name), inside); err != nil {
			t.Errorf("of a VRF: %v", err)
		}
	}
	a.IP(t, "link add br0 type bridge\nlink set "+end.Name+" master br0")
	if err := (&Path{Size: Size}).CheckPair(device(t, end.Name), inside); err == nil || !strings.Contains(err.Error(), "bridge") {
		t.Errorf("of a bridge: %v", err)
	}
}
