package link

// epoch is a stretch of time in which the bottleneck has one rate. The bottleneck
// counts time in the bits that it could have sent, so that packets still waiting when
// an epoch ends are served at the rate of the next.
type epoch struct {
	generation uint32 // number of epochs before it
	cost       uint64 // 0 is no limit
	since      int64  // on the clock
	served     uint64 // bits, until since
}

const (
	// bitsShift makes bits of ns and cost (BITS_SHIFT in bpf/model.bpf.c).
	bitsShift = 23
	// backlog is more bits than can ever wait: maxWaiting of the largest packets.
	backlog = 1 << 40
	// longest is how long, in ns, a packet waits at most when the rate falls; packets
	// that would wait longer all leave at that time (LONGEST in bpf/model.bpf.c).
	longest = 1 << 39
)

// next is the epoch that begins now.
func (e epoch) next(cost uint64, now int64) epoch {
	served := e.served + backlog // without a limit nothing waits
	if e.cost > 0 {
		spent := uint64(now - e.since)
		served = e.served + spent/e.cost<<bitsShift + spent%e.cost<<bitsShift/e.cost
	}
	return epoch{e.generation + 1, cost, now, served}
}

// departure returns when a packet leaves the bottleneck in this epoch, given when it
// would have left in the epoch before.
func (e epoch) departure(before epoch, leaves int64) int64 {
	left := leaves - e.since
	switch {
	case left <= 0 || before.cost == 0:
		return leaves
	case e.cost == 0:
		return e.since
	}
	wait := float64(left) * float64(e.cost) / float64(before.cost)
	return e.since + int64(min(wait, longest))
}

// epochs are all epochs so far, oldest first.
type epochs []epoch

// latest is the index of the latest epoch whose generation ends in these 3 bits.
func (all epochs) latest(generation uint32) int {
	now := len(all) - 1
	return max(0, now-int((uint32(now)-generation)&7))
}

// departure returns when a packet leaves, given when it would have left if the epoch
// of this index had lasted.
func (all epochs) departure(index int, leaves int64) int64 {
	for i := index + 1; i < len(all); i++ {
		leaves = all[i].departure(all[i-1], leaves)
	}
	return leaves
}
