package path

import (
	"fmt"
	"net/netip"
)

// Key names a path. The zero Prefix is not valid; use Root for "every remote
// address of the class".
type Key struct {
	Class uint32 // id of the class; 0 is no class
	// Scope is 0 if all network namespaces share the path, or the cookie of the one network
	// namespace that it belongs to.
	Scope uint64
	// Prefix is the remote prefix, masked. IPv4 prefixes are kept as IPv4; the
	// root of both families is ::/0.
	Prefix netip.Prefix
}

var rootPrefix = netip.PrefixFrom(netip.IPv6Unspecified(), 0)

// Root is the key that matches every remote address of a class.
func Root(class uint32, scope uint64) Key {
	return Key{Class: class, Scope: scope, Prefix: rootPrefix}
}

// IsRoot reports whether k matches every remote address of its class.
func (k Key) IsRoot() bool { return k.Prefix.Bits() == 0 && k.Prefix.Addr().Is6() }

// String writes the key for people: "class 3 192.0.2.0/24".
func (k Key) String() string {
	if k.Scope != 0 {
		return fmt.Sprintf("class %d scope %d %s", k.Class, k.Scope, k.Prefix)
	}
	return fmt.Sprintf("class %d %s", k.Class, k.Prefix)
}

// Of returns the key of addr at the given prefix length (0 to 32 for IPv4, 0 to
// 128 for IPv6; longer lengths count as 32 or 128). Length 0 is the root.
// A v4-mapped address counts as IPv4.
func Of(class uint32, scope uint64, addr netip.Addr, bits int) Key {
	addr = addr.Unmap().WithZone("")
	if bits <= 0 {
		return Root(class, scope)
	}
	p, _ := addr.Prefix(min(bits, addr.BitLen()))
	return Key{Class: class, Scope: scope, Prefix: p}
}
