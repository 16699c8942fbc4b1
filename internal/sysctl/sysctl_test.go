package sysctl

import "testing"

func TestPath(t *testing.T) {
	for name, want := range map[string]string{
		"net.ipv4.tcp_rmem":                 "/proc/sys/net/ipv4/tcp_rmem",
		"net.ipv4.conf.eth0/1.rp_filter":    "/proc/sys/net/ipv4/conf/eth0.1/rp_filter",
		"net.ipv4.tcp_congestion_control":   "/proc/sys/net/ipv4/tcp_congestion_control",
		"net.ipv6.conf.all.disable_ipv6":    "/proc/sys/net/ipv6/conf/all/disable_ipv6",
		"kernel.random.boot_id":             "/proc/sys/kernel/random/boot_id",
		"net.core.default_qdisc":            "/proc/sys/net/core/default_qdisc",
		"net.ipv4.neigh.default.gc_thresh1": "/proc/sys/net/ipv4/neigh/default/gc_thresh1",
	} {
		if got := Path(name); got != want {
			t.Errorf("Path(%q) is %q, want %q", name, got, want)
		}
	}
}

func TestPart(t *testing.T) {
	if got, want := Path("net.ipv4.conf."+Part("eth0.1")+".rp_filter"), "/proc/sys/net/ipv4/conf/eth0.1/rp_filter"; got != want {
		t.Errorf("the sysctl of a device is %q, want %q", got, want)
	}
}

func TestRead(t *testing.T) {
	if got, err := Read("kernel.ostype"); got != "Linux" || err != nil {
		t.Errorf("kernel.ostype is %q, %v", got, err)
	}
	if _, err := Read("kernel.no_such_name"); err == nil {
		t.Error("read a sysctl that does not exist")
	}
}
