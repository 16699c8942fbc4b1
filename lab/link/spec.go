package link

import "time"

// Spec is what one direction of a link does to packets. The zero Spec does
// nothing.
type Spec struct {
	Delay  time.Duration // one way
	Jitter time.Duration // uniform in Delay ± Jitter, at most Delay; the order is kept
	// Reorder is the share of packets that go without Delay and so overtake.
	Reorder float64
	Loss    float64 // share of packets, each on its own
	Bursts  Bursts
	Rate    uint64 // bit/s on the wire (Ethernet frames); 0 is no limit
	Queue   Queue  // of Rate
	// ECN is the depth of the queue, in bytes, from which packets that say that they
	// can are marked instead of only queued; 0 never.
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
	ToBad, ToGood     float64 // chance of the change, each packet
	LossBad, LossGood float64 // chance of loss in the state
}

// Queue is the room for packets that wait for Rate; of two limits the narrower
// counts, and with none it is 100 ms at the rate, at least 64 KiB and at most the
// 99 MB (65536 full frames) that any queue may have.
type Queue struct {
	Bytes   uint64
	Packets uint64
}

// Policer drops what exceeds a token bucket; nothing waits. 0 is none.
type Policer struct {
	Rate  uint64 // bit/s
	Burst uint64 // bytes
}

// Backend is how delay and rate are made.
type Backend string

// The backends.
const (
	// Auto is Netem where the kernel has it, else Emulator.
	Auto Backend = "auto"
	// Netem is the kernel's netem and tbf.
	Netem Backend = "netem"
	// Emulator is our own: a program at the receiving device decides when each packet
	// leaves, an NFQUEUE keeps it until then.
	Emulator Backend = "emulator"
)
