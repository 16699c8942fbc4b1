package datapath

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// mapped returns the prefix as the programs see it: an IPv6 address, v4-mapped for IPv4
// (RFC 4291, 2.5.5.2), and the length in bits of that address.
func mapped(p netip.Prefix) (addr [16]byte, bits uint32) {
	bits = uint32(p.Bits())
	if p.Addr().Is4() {
		bits += 96
	}
	return p.Addr().As16(), bits
}

// Bits of abiPathKey.Class: PATH_V4 and PATH_SCOPED of bpf/include/abi.h, and those of the class.
const (
	pathV4     = 1 << 24
	pathScoped = 1 << 25
	pathClass  = pathV4 - 1
)

// encodeKey returns the key as path_policy_find (bpf/sockops/policy.bpf.h) looks it up.
func encodeKey(k path.Key) (abiPathKey, error) {
	if !k.Prefix.IsValid() {
		return abiPathKey{}, fmt.Errorf("encode path key of class %d: no prefix", k.Class)
	}
	if k.Class > pathClass {
		return abiPathKey{}, fmt.Errorf("encode path key of class %d: at most %d", k.Class, pathClass)
	}
	addr, bits := mapped(k.Prefix)
	key := abiPathKey{Class: k.Class}
	switch {
	case k.Scope != 0:
		key.Class |= pathScoped
		key.Prefixlen = 32 + 64 + bits
		binary.LittleEndian.PutUint64(key.Rest[:], k.Scope)
		copy(key.Rest[8:], addr[:])
	case bits == 0: // both families
		key.Prefixlen = 31
	case bits >= 96 && netip.AddrFrom16(addr).Is4In6():
		key.Class |= pathV4
		key.Prefixlen = 32 + bits - 96
		copy(key.Rest[:], addr[12:])
	default:
		key.Prefixlen = 32 + bits
		copy(key.Rest[:], addr[:])
	}
	return key, nil
}

// encodePolicy gives arms their numbers and turns shares into cumulative
// weights. monoOffset is wallOffset.
func encodePolicy(e *path.Entry, ccs *ccTable, monoOffset int64) (abiPathPolicy, error) {
	p := abiPathPolicy{
		ExpiresNs: uint64(max(0, e.Expires-monoOffset)),
		Set:       e.Policy.Params.Mask(),
		Id:        e.ID,
		HoldOut:   e.Policy.HoldOut,
		NumArms:   uint16(e.Policy.NumArms),

		SliceShift:    uint32(e.Policy.Slice),
		HoldOutSlices: e.Policy.HoldSlices,
		Adapted:       e.Policy.Adapted | e.Policy.Defaults,

		Window:          e.Policy.Window,
		WindowExpiresNs: uint64(max(0, e.Policy.WindowExpires-monoOffset)),
	}
	if e.Policy.WatchLosses {
		p.Adapted |= 1 << tcp.MaxPacingRate
	}
	if unfollowed(&e.Policy) {
		p.Flags |= uint16(abiPolicyFlagsPOLICY_UNFOLLOWED)
	}
	for f := range tcp.NumFields {
		p.Value[f], _ = e.Policy.Params.Get(f)
	}
	for _, f := range []tcp.Field{tcp.RTOMin, tcp.DelackMax} {
		if v, ok := e.Policy.Params.Get(f); ok {
			p.Value[f] = max(v, minTimeout())
		}
	}
	if e.Policy.Adapted&(1<<tcp.SynRTO) != 0 {
		p.SynTimeout = jiffiesOf(p.Value[tcp.SynRTO])
	}
	var sum uint32
	for i, a := range e.Policy.Arms[:e.Policy.NumArms] {
		id := uint8(abiAbiLimitsARM_DEFAULT)
		if !a.Default {
			var err error
			if id, err = ccs.add(a.CC); err != nil {
				return p, err
			}
		}
		sum += a.Weight
		p.Arm[i], p.Weight[i] = id, sum
	}
	if p.SwitchFrom = uint32(e.Policy.SwitchFrom); p.SwitchFrom != 0 {
		p.SwitchTo = uint32(p.Arm[e.Policy.SwitchTo])
	}
	if e.Policy.NumArms > 0 && sum != 1<<16 {
		return p, fmt.Errorf("encode policy %d of %s: weights sum to %d, want 65536", e.ID, e.Key, sum)
	}
	return p, nil
}

// unfollowed reports whether the connections of a policy need no state: they get the default congestion control, and nothing
// else but adapted timeouts of the handshake.
func unfollowed(p *path.Policy) bool {
	const handshake = 1<<tcp.SynRTO | 1<<tcp.SynAckRTO
	fields := p.Params.Mask()
	switch {
	case p.FollowAll:
		return false
	case fields&^handshake != 0 || p.Adapted != fields:
		return false
	case p.NumArms > 1:
		return p.Arms[0].Default && p.Arms[0].Weight == 1<<16
	}
	return p.NumArms == 0 || p.Arms[0].Default
}

// minTimeout is the kernel's shortest timeout, in microseconds: TCP_TIMEOUT_MIN, two
// jiffies. The kernel refuses shorter ones.
func minTimeout() uint64 { return 2 * uint64(jiffyMicros()) }
