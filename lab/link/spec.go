package link

import "time"

// Spec is what one direction of a link does to packets. The zero Spec does
// nothing.
type Spec struct {
	Delay  time.Duration // one way
	Jitter time.Duration // uniform in Delay ± Jitter, at most Delay; the order is kept
	// Reorder is the share of packets that get no Delay and so overtake.
	Reorder float64
	Loss    float64 // share of packets, drawn independently
	Bursts  Bursts
	Rate    uint64 // bit/s on the wire (Ethernet frames); 0 is no limit
	Queue   Queue  // of Rate
	// ECN is the depth of the queue, in bytes, from which on ECN-capable packets are
	// marked; 0 is never.
	ECN     uint64
	Policer Policer
	// Offload leaves segmentation and receive offload on: fast, but a loss takes a
	// whole aggregate of up to 64 KB.
	Offload bool
}

// Bursts is loss in bursts: a Gilbert-Elliott channel of a good and a bad state,
// by packet (E. O. Elliott, Bell System Technical Journal 42, 1963). The zero
// value has none.
type Bursts struct {
	ToBad, ToGood     float64 // probability of the change, for each packet
	LossBad, LossGood float64 // probability of loss in the state
}

// Queue limits the packets that wait for Rate. If both limits are set, the first one
// reached applies. If none is set, the limit is 100 ms at the rate, at least 64 KiB and
// at most 99 MB (65536 full frames), which is the maximum of any queue.
type Queue struct {
	Bytes   uint64
	Packets uint64
}

// Policer drops packets that exceed a token bucket; nothing waits. The zero value is
// none.
type Policer struct {
	Rate  uint64 // bit/s
	Burst uint64 // bytes
}

// Backend is what delays packets and limits their rate.
type Backend string

// The backends.
const (
	// Auto is Netem if the kernel has it and it can do the Spec, else Emulator.
	Auto Backend = "auto"
	// Netem is the kernel's netem and tbf.
	Netem Backend = "netem"
	// Emulator needs no netem: a BPF program at the receiving device decides when each
	// packet leaves, and an NFQUEUE keeps it until then.
	Emulator Backend = "emulator"
)
