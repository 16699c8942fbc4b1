package rtnetlink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
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

// A list of filters that the kernel ends with an error is not whole.
func TestListThatEndsEarly(t *testing.T) {
	f := Filter{Device: 2, Hook: Egress, Priority: 1, Handle: 1}
	for _, errno := range []unix.Errno{0, unix.EMSGSIZE} {
		end := binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))
		answers := append(request(unix.RTM_NEWTFILTER, 0, f.header()), request(unix.NLMSG_DONE, 0, end)...)
		n := 0
		more, err := eachOf(answers, Egress, func(got Filter) bool { n++; return got == f })
		if n != 1 || more || errno == 0 && err != nil || errno != 0 && err != errno {
			t.Errorf("%d filters, more %v, %v; want the error %v", n, more, err, errno)
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
