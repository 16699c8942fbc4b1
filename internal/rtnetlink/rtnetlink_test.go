package rtnetlink

import (
	"bytes"
	"errors"
	"slices"
	"testing"
)

func TestAttributes(t *testing.T) {
	message := append(Attribute(1, []byte("abc")), Attribute(2|1<<15, nil)...) // 1<<15 is NLA_F_NESTED
	message = append(message, Attribute(3, []byte("wire\x00"))...)
	var kinds []uint16
	var values []string
	if err := EachAttribute(message, func(kind uint16, value []byte) error {
		kinds, values = append(kinds, kind), append(values, string(value))
		return nil
	}); err != nil || !slices.Equal(kinds, []uint16{1, 2, 3}) || !slices.Equal(values, []string{"abc", "", "wire\x00"}) {
		t.Errorf("%v %q, %v", kinds, values, err)
	}
	stop := errors.New("stop")
	if err := EachAttribute(message, func(uint16, []byte) error { return stop }); err != stop {
		t.Error(err)
	}
	for _, bad := range [][]byte{{3, 0, 1, 0}, {9, 0, 1, 0, 5, 5, 5, 5}} {
		if err := EachAttribute(bad, func(uint16, []byte) error { return nil }); err == nil {
			t.Errorf("%v was read", bad)
		}
	}
}

func FuzzAttributes(f *testing.F) {
	f.Add(Attribute(1, []byte("abc")))
	f.Fuzz(func(t *testing.T, message []byte) {
		_ = EachAttribute(message, func(_ uint16, value []byte) error {
			if len(value) > 0 && !bytes.Contains(message, value) {
				t.Errorf("%v is not in the message", value)
			}
			return nil
		})
	})
}
