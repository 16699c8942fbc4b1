package podlink

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"
)

func TestAttributes(t *testing.T) {
	message := append(attribute(1, []byte("abc")), attribute(2|1<<15, nil)...) // 1<<15 is NLA_F_NESTED
	message = append(message, attribute(3, []byte("wire\x00"))...)
	var kinds []uint16
	var values []string
	if err := eachAttribute(message, func(kind uint16, value []byte) error {
		kinds, values = append(kinds, kind), append(values, string(value))
		return nil
	}); err != nil || !slices.Equal(kinds, []uint16{1, 2, 3}) || !slices.Equal(values, []string{"abc", "", "wire\x00"}) {
		t.Errorf("%v %q, %v", kinds, values, err)
	}
	stop := errors.New("stop")
	if err := eachAttribute(message, func(uint16, []byte) error { return stop }); err != stop {
		t.Error(err)
	}
	for _, bad := range [][]byte{{3, 0, 1, 0}, {9, 0, 1, 0, 5, 5, 5, 5}} {
		if err := eachAttribute(bad, func(uint16, []byte) error { return nil }); err == nil {
			t.Errorf("%v was read", bad)
		}
	}
}

func FuzzAttributes(f *testing.F) {
	f.Add(attribute(1, []byte("abc")))
	f.Fuzz(func(t *testing.T, message []byte) {
		_ = eachAttribute(message, func(_ uint16, value []byte) error {
			if len(value) > 0 && !bytes.Contains(message, value) {
				t.Errorf("%v is not in the message", value)
			}
			return nil
		})
	})
}

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
