package path

import (
	"net/netip"
	"testing"
)

func TestOfMasksAndUnmaps(t *testing.T) {
	for _, c := range []struct {
		addr string
		bits int
		want string
	}{
		{"192.0.2.77", 24, "192.0.2.0/24"},
		{"::ffff:192.0.2.77", 24, "192.0.2.0/24"},
		{"192.0.2.77", 99, "192.0.2.77/32"},
		{"2001:db8:1:2::3", 48, "2001:db8:1::/48"},
		{"fe80::1%eth0", 64, "fe80::/64"},
		{"192.0.2.77", 0, "::/0"},
		{"2001:db8::1", -1, "::/0"},
	} {
		k := Of(3, 4, netip.MustParseAddr(c.addr), c.bits)
		if k.Prefix.String() != c.want || k.Class != 3 || k.Scope != 4 {
			t.Errorf("%s/%d: %+v, want %s", c.addr, c.bits, k, c.want)
		}
	}
}

func TestOneRootForBothFamilies(t *testing.T) {
	root := Root(1, 0)
	if !root.IsRoot() || Of(1, 0, netip.MustParseAddr("10.0.0.1"), 0) != root {
		t.Errorf("root %+v", root)
	}
	if k := (Key{Class: 1, Prefix: netip.MustParsePrefix("0.0.0.0/0")}); k.IsRoot() {
		t.Error("0.0.0.0/0 is a prefix of IPv4, not the root")
	}
}

func TestKeyReadsWell(t *testing.T) {
	k := Of(3, 0, netip.MustParseAddr("192.0.2.7"), 24)
	if got := k.String(); got != "class 3 192.0.2.0/24" {
		t.Errorf("%q", got)
	}
	k.Scope = 9
	if got := k.String(); got != "class 3 scope 9 192.0.2.0/24" {
		t.Errorf("%q", got)
	}
}
