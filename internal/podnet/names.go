package podnet

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net"

	"github.com/tcpilot/tcpilot/internal/pod"
)

// HostName is the name of the host's end of an attachment's pair: "tcp" and 48 bits of a hash of the
// attachment, so that it fits into IFNAMSIZ.
func HostName(k pod.Key) string { return fmt.Sprintf("tcp%012x", sum(k.Container+"@"+k.Interface)) }

// addressesOf are the MAC addresses of a pair, computed from the name of the host's end. They are set for two
// reasons. systemd-udevd leaves them alone, while it replaces random addresses (MACAddressPolicy=persistent),
// which the other end already has in permanent neighbour entries. And they distinguish a pair of this plugin from
// another device of that name.
func addressesOf(host string) (inner, outer net.HardwareAddr) {
	return address("pod " + host), address("host " + host)
}

func address(of string) net.HardwareAddr {
	b := binary.BigEndian.AppendUint64(nil, sum(of))[2:]
	b[0] = b[0]&^1 | 2 // unicast, locally administered (IEEE 802)
	return b
}

// sum is a hash of 48 bits (FNV-1a, folded).
func sum(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	v := h.Sum64()
	return (v ^ v>>48) & (1<<48 - 1)
}
