package class

import (
	"math/bits"
	"net/netip"
)

// MaxRules bounds the rules of one table (ABI: bpf/include/abi.h).
const MaxRules = 256

// MaxPrefixes bounds the rows of one prefix dimension: half of remote_rules and of
// local_rules in bpf/sockops/maps.bpf.h, which hold two tables.
const MaxPrefixes = 8192

// MaxPortRanges bounds the ranges of one port dimension (ABI: MAX_PORT_SETS in
// bpf/include/abi.h).
const MaxPortRanges = 513

// Set is a set of rules, by index.
type Set [MaxRules / 64]uint64

// Add puts rule i into the set.
func (s *Set) Add(i int) { s[i/64] |= 1 << (i % 64) }

// Has reports whether rule i is in the set.
func (s Set) Has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }

// and returns the rules in both sets.
func (s Set) and(t Set) Set {
	for i := range s {
		s[i] &= t[i]
	}
	return s
}

// Or returns the rules in either set.
func (s Set) Or(t Set) Set {
	for i := range s {
		s[i] |= t[i]
	}
	return s
}

// first returns the lowest rule of the set, or -1.
func (s Set) first() int {
	for i, w := range s {
		if w != 0 {
			return i*64 + bits.TrailingZeros64(w)
		}
	}
	return -1
}

// Dim is a dimension in which rules tell connections apart. The bits are part
// of the ABI (bpf/include/abi.h, enum dimension).
type Dim uint32

const (
	DimRemote Dim = 1 << iota
	DimLocal
	DimRemotePort
	DimLocalPort
	DimCgroup
	DimNetNS
	DimDirection
	DimSamePrefix
)

// Class tells how connections of a rule are treated.
type Class struct {
	ID    uint32 // stable while the daemon runs; 0 is no class
	Leave bool   // touch nothing, report nothing; limits of network namespaces hold all the same
	// PeerAny: the peer option is sent to all remote addresses, not only to near ones (peer_near in
	// bpf/sockops/peer.bpf.h).
	PeerAny bool
	// Switch: running connections may get another congestion control (path.Policy.SwitchFrom).
	Switch bool
	// OwnScope: each network namespace learns separately.
	OwnScope bool
	// Named: the rule names a network namespace, a pod or a cgroup, and so has priority over the
	// settings of the namespace.
	Named bool
	// Watch has the bits of the events that are counted for a share of connections.
	Watch      uint8
	WatchShare uint32 // share of connections watched, in 1/65536
	// Timeouts says what connections get after repeated retransmission timeouts.
	Timeouts Timeouts
	// Limit is the key of the rule's rate limit, the same over reloads and restarts; 0 is none.
	Limit uint64
}

// Timeouts is the congestion control that a share of connections get once their retransmission timer
// has expired a number of times. The zero Timeouts changes nothing.
type Timeouts struct {
	CC    [16]byte // name, as in the kernel (TCP_CA_NAME_MAX)
	After uint32   // timeouts, at least 1
	Share uint32   // in 1/65536
}

// Events that can be counted per connection (BPF_SOCK_OPS_*_CB_FLAG).
const (
	WatchRTO        uint8 = 1 << iota // BPF_SOCK_OPS_RTO_CB_FLAG
	WatchRetransmit                   // BPF_SOCK_OPS_RETRANS_CB_FLAG
	WatchState                        // BPF_SOCK_OPS_STATE_CB_FLAG
)

// PrefixSet is one row of a prefix dimension: the rules that an address satisfies if Prefix
// is its longest match.
type PrefixSet struct {
	Prefix netip.Prefix // masked, not v4-mapped
	Rules  Set
}

// PortRange is a run of ports that satisfy the same rules.
type PortRange struct {
	First, Last uint16
	Rules       Set
}

// SamePrefix is a set of rules that require local and remote addresses with the same first
// Bits bits, in one family.
type SamePrefix struct {
	V4    bool
	Bits  int
	Rules Set
}

// Table is a compiled list of rules. In every dimension, each set includes the rules that do
// not match on this dimension, so that each look-up returns one set. A dimension whose bit is
// not in Dims is never looked up.
type Table struct {
	Dims    Dim
	Classes []Class // by rule

	// Remote and Local hold ::/0 and 0.0.0.0/0 whenever the dimension is in Dims.
	// Their rows are in order of address (IPv4 first), then of prefix length.
	Remote, Local []PrefixSet
	// RemotePort and LocalPort cover 0 to 65535 in order, without gaps.
	RemotePort, LocalPort []PortRange
	// Cgroup maps a cgroup id to the rules that name it; a socket satisfies those
	// of its own cgroup and of every ancestor, and AnyCgroup.
	Cgroup    map[uint64]Set
	AnyCgroup Set
	// NetNS maps a namespace cookie to the rules that it satisfies. A namespace that is not in it
	// satisfies AnyNetNS.
	NetNS    map[uint64]Set
	AnyNetNS Set
	Outgoing Set // rules that an outgoing connection satisfies
	Incoming Set
	// Same lists at most MaxSamePrefix comparisons; a rule in none is in AnySame.
	Same    []SamePrefix
	AnySame Set
}

// Undirected is the number of rules, from the first on, that do not tell who opens a connection: if one of them is the first
// that a connection satisfies, it is so in both directions.
func (t *Table) Undirected() int {
	if t.Dims&DimDirection == 0 {
		return len(t.Classes)
	}
	both := t.Outgoing.and(t.Incoming)
	for i := range t.Classes {
		if !both.Has(i) {
			return i
		}
	}
	return len(t.Classes)
}

// MaxSamePrefix bounds the distinct same-prefix comparisons (ABI: bpf/include/abi.h).
const MaxSamePrefix = 8

// Conn is what a connection is classified by.
type Conn struct {
	Remote, Local         netip.Addr // a v4-mapped address counts as IPv4
	RemotePort, LocalPort uint16
	Cgroups               []uint64 // the socket's cgroup and its ancestors
	NetNS                 uint64
	Outgoing              bool
}
