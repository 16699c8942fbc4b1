package podnet

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net"

	"github.com/tcpilot/tcpilot/internal/pod"
)

// HostName is the name of the end on the host of an attachment's pair: "tcp" and 48 bits of a hash, so
// that it fits into IFNAMSIZ. It belongs to this attachment and to no other.
func HostName(k pod.Key) string { return fmt.Sprintf("tcp%012x", sum(k.Container+"@"+k.Interface)) }

// addressesOf are the MAC addresses of a pair, made from the host end's name. Addresses that are set are left
// alone by systemd-udevd, which replaces random ones (MACAddressPolicy=persistent) while the other end has
// them as permanent neighbours; and they tell a pair of this plugin from another device of that name.
func addressesOf(host string) (inner, outer net.HardwareAddr) {
	return address("pod " + host), address("host " + host)
}

func address(of string) net.HardwareAddr {
	b := binary.BigEndian.AppendUint64(nil, sum(of))[2:]
	b[0] = b[0]&^1 | 2 // unicast, locally administered (IEEE 802)
	return b
}

// sum has 48 bits.
func sum(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	v := h.Sum64()
	return (v ^ v>>48) & (1<<48 - 1)
}
