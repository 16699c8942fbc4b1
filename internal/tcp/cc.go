package tcp

import "bytes"

// CC is the kernel's name of a congestion control, NUL-padded
// (TCP_CA_NAME_MAX in include/net/tcp.h is 16). The zero value means none.
// It is comparable, so that it can key a map without allocating.
type CC [16]byte

// ParseCC returns name as a CC; ok is false when the name is empty or does not
// fit the kernel's 15 characters plus NUL.
func ParseCC(name string) (cc CC, ok bool) {
	if name == "" || len(name) >= len(cc) {
		return cc, false
	}
	copy(cc[:], name)
	return cc, true
}

// CCOf returns the congestion control of a name that is known to be valid. For other names,
// use ParseCC.
func CCOf(name string) (cc CC) {
	copy(cc[:], name)
	return cc
}

// String returns the name without its padding.
func (c CC) String() string {
	if i := bytes.IndexByte(c[:], 0); i >= 0 {
		return string(c[:i])
	}
	return string(c[:])
}

// MarshalText writes the name.
func (c CC) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads a name; a name that does not fit is cut to 15 bytes, as
// the kernel does.
func (c *CC) UnmarshalText(b []byte) error {
	*c = CC{}
	copy(c[:len(c)-1], b)
	return nil
}
