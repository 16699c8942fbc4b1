package link

// Counters count packets of one direction since it was shaped. A packet that was
// dropped counts under one reason.
type Counters struct {
	Passed uint64
	// Aggregates are those of Passed that are several segments: loss and rate are
	// only faithful per packet while this is 0.
	Aggregates uint64

	Lost       uint64 // by Spec.Loss
	LostBurst  uint64 // by Spec.Bursts
	Policed    uint64 // by Spec.Policer
	Overflowed uint64 // by Spec.Queue
	Marked     uint64 // by Spec.ECN; marked before they came included

	QueueMax uint64 // the deepest that the queue was, in bytes; by the emulator only

	// Failed are packets that the emulation itself dropped for want of room, and
	// Late those that it let go more than a millisecond after their time: what was
	// measured meanwhile is not the link's doing.
	Failed, Late uint64
}

// Dropped is all that was dropped on purpose.
func (c Counters) Dropped() uint64 { return c.Lost + c.LostBurst + c.Policed + c.Overflowed }

// LossShare is the share of packets that Loss and Bursts took of those that came
// to them.
func (c Counters) LossShare() float64 {
	lost := c.Lost + c.LostBurst
	return float64(lost) / float64(max(1, c.Passed+c.Policed+lost))
}

// Sub is what was counted since before; QueueMax stays that of all time.
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
