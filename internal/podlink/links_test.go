package podlink

import (
	"net/netip"
	"testing"
)

func TestNetworkOf(t *testing.T) {
	for prefix, want := range map[string]abiNetwork{
		"10.1.0.0/16": {Prefixlen: 112, Addr: [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 1}},
		"fd01::/48":   {Prefixlen: 48, Addr: [16]byte{0: 0xfd, 1: 1}},
		"0.0.0.0/0":   {Prefixlen: 96, Addr: [16]byte{10: 0xff, 11: 0xff}},
	} {
		if got := networkOf(netip.MustParsePrefix(prefix)); got != want {
			t.Errorf("%s: %+v, want %+v", prefix, got, want)
		}
	}
}

func TestEveryCountHasAName(t *testing.T) {
	seen := map[string]bool{"": true}
	for i, name := range countNames {
		if seen[name] {
			t.Errorf("count %d: the name %q is missing or used twice", i, name)
		}
		seen[name] = true
	}
}
