package link

// Counters count packets of one direction since it was shaped. A dropped packet
// counts under exactly one reason.
type Counters struct {
	Passed uint64
	// Aggregates are those of Passed that have several segments. Loss and rate apply
	// to each segment correctly only while this is 0.
	Aggregates uint64

	Lost       uint64 // by Spec.Loss
	LostBurst  uint64 // by Spec.Bursts
	Policed    uint64 // by Spec.Policer
	Overflowed uint64 // by Spec.Queue
	Marked     uint64 // by Spec.ECN; includes packets that arrived already marked

	QueueMax uint64 // maximum depth of the queue, in bytes; by the emulator only

	// Failed are packets that the emulation itself dropped because its buffers were
	// full, and Late those that it released more than a millisecond after their
	// time. If there are any, the measurement does not show the link as specified.
	Failed, Late uint64
}

// Sub returns what was counted after before was read; QueueMax stays the maximum
// since the direction was shaped.
func (c Counters) Sub(before Counters) Counters {
	c.Passed -= before.Passed
	c.Aggregates -= before.Aggregates
	c.Lost -= before.Lost
	c.LostBurst -= before.LostBurst
	c.Policed -= before.Policed
	c.Overflowed -= before.Overflowed
	c.Marked -= before.Marked
	c.Failed -= before.Failed
	c.Late -= before.Late
	return c
}
