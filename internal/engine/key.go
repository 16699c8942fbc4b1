package engine

import (
	"encoding/binary"
	"net/netip"

	"github.com/tcpilot/tcpilot/internal/path"
)

// key is a path.Key in 32 bytes without pointers or padding, because every sample
// looks one up: hashing a netip.Prefix costs several times as much.
type key struct {
	hi, lo uint64 // the masked address, IPv4 as v4-mapped
	scope  uint64
	class  uint32
	bits   uint32 // prefix length of the v4-mapped address; 0 is the root of both families
}

const (
	hostBits  = 128
	mappedLo  = 0xffff << 32 // ::ffff:0:0/96, upper half of the lower word
	mappedLen = 96
)

// keyOf is the key of addr at a prefix length in the terms of its own family; a
// v4-mapped address counts as IPv4, and a length of 0 is the root.
func keyOf(class uint32, scope uint64, addr netip.Addr, bits int) key {
	k := key{scope: scope, class: class}
	if bits <= 0 || !addr.IsValid() {
		return k
	}
	b := addr.As16()
	if addr.Is4() || addr.Is4In6() {
		bits += mappedLen
	}
	k.hi, k.lo = binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	return k.cut(min(bits, hostBits))
}

// cut is the key at a shorter prefix length, that of the v4-mapped address.
func (k key) cut(bits int) key {
	if bits <= 64 {
		k.hi, k.lo = k.hi&^(1<<(64-bits)-1), 0
	} else {
		k.lo &^= 1<<(hostBits-bits) - 1
	}
	k.bits = uint32(bits)
	return k
}

// is4 reports whether the key is of an IPv4 prefix.
func (k key) is4() bool { return k.hi == 0 && k.lo&^0xffffffff == mappedLo && k.bits > mappedLen }

// rootKey is the key of a root: it matches every address of a class and scope.
func rootKey(class uint32, scope uint64) key { return key{scope: scope, class: class} }

// path converts the key to the form that the rest of the program uses.
func (k key) path() path.Key {
	if k.bits == 0 {
		return path.Root(k.class, k.scope)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], k.hi)
	binary.BigEndian.PutUint64(b[8:], k.lo)
	bits := int(k.bits)
	if k.is4() {
		bits -= mappedLen
	}
	return path.Key{Class: k.class, Scope: k.scope, Prefix: netip.PrefixFrom(netip.AddrFrom16(b).Unmap(), bits)}
}
