package estimate

import (
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// DelackMaxes are the values of DELACK_MAX that a path may get, in milliseconds: the kernel's
// (TCP_DELACK_MAX), and shorter ones.
var DelackMaxes = [...]uint16{200, 16, 8, 4}

const (
	// KernelDelay is by how much the kernel delays the ACK of a small segment at least
	// (TCP_ATO_MIN, TCP_DELACK_MIN).
	KernelDelay = 40 * time.Millisecond

	// extraACKs is how many more segments without data may be sent with a shorter value, per
	// segment with data that is received.
	extraACKs = 0.1
	// extraPrior is a number of received segments without extra ACKs that is added to the counts,
	// so that a few connections do not bar a value.
	extraPrior = 500
	// LeastReceived is the number of received segments from which a number of ACKs is known.
	LeastReceived = 100
	// delackSample is the number of received segments that a sample counts as at most, so
	// that no connection decides alone.
	delackSample = 250
	// leastWaited is the number of segments with data from which a sample shows waits.
	leastWaited = 8
	// handshakeACKs are the segments without data of a connection's beginning and end.
	handshakeACKs = 3
	// delackMemory is the number of received segments over which they are counted, and
	// delackHalfLife the time in which the counts halve.
	delackMemory   = 16_000
	delackHalfLife = time.Hour
)

// ACKs counts the segments of connections in both directions, discounted by packets and time.
type ACKs struct {
	Received float32 `json:"received_segments"` // segments with data that were received
	Sent     float32 `json:"sent_acks"`         // segments without data that were sent
}

func (c *ACKs) rate() float32 { return c.Sent / max(1, c.Received) }

// Delack is what samples show of delayed ACKs on a path: how often peers wait for one, and how
// many more ACKs a shorter delay costs. The zero Delack knows nothing.
type Delack struct {
	// Counts are by value, an index into DelackMaxes, and by the size of segments: small ones,
	// of less than half the MSS on average, and large ones. With large ones, ACKs depend
	// mostly on their number.
	Counts   [len(DelackMaxes)][2]ACKs `json:"counts"`
	Received float32                   `json:"received_segments"` // with data
	Waits    float32                   `json:"waits"`             // how often a peer waited for a delayed ACK before it sent more
	At       int64                     `json:"at_ns"`             // Unix nanoseconds, of the latest count
	barring                            // values that cost too many ACKs
}

// observe counts a sample. Values that are not in DelackMaxes were chosen by someone else, and
// are not counted.
func (d *Delack) observe(s *tcp.Sample) {
	i := delackIndex(s.DelackMax)
	if i < 0 || s.DataSegsIn == 0 || s.Kind == tcp.KindFailedConnect {
		return
	}
	at := max(s.At, d.At)
	if d.At != 0 && at > d.At {
		d.discount(keep(time.Duration(at-d.At), delackHalfLife))
	}
	d.At = at
	share := min(1, delackSample/float32(s.DataSegsIn))
	received := share * float32(s.DataSegsIn)
	d.Received += received
	d.Waits += share * waits(s)
	if d.Received > delackMemory {
		d.Waits *= delackMemory / d.Received
		d.Received = delackMemory
	}
	if d.IsBarred(i, at) {
		return // the connection began before the value was barred
	}
	c := &d.Counts[i][large(s)]
	c.Received += received
	c.Sent += share * acks(s)
	if c.Received > delackMemory {
		c.Sent *= delackMemory / c.Received
		c.Received = delackMemory
	}
	if extra, of := d.Extra(i); i > 0 && extra > extraACKs*(of+extraPrior) {
		d.bar(i, at)
		clear(d.Counts[i:]) // they are counted from 0 when the values are used again
	}
}

func (d *Delack) discount(k float32) {
	d.Received *= k
	d.Waits *= k
	for i := range d.Counts {
		for j := range d.Counts[i] {
			d.Counts[i][j].Received *= k
			d.Counts[i][j].Sent *= k
		}
	}
}

// Extra returns how many more ACKs were sent with a value than would have been with the
// kernel's, which the hold-out keeps, and for how many received segments that is known.
func (d *Delack) Extra(i int) (acks, received float32) {
	for j := range d.Counts[i] {
		if usual, c := &d.Counts[0][j], &d.Counts[i][j]; usual.Received >= LeastReceived {
			acks += c.Sent - usual.rate()*c.Received
			received += c.Received
		}
	}
	return acks, received
}

// Comparable reports whether it is known how many ACKs small segments get with the kernel's value.
func (d *Delack) Comparable() bool { return d.Counts[0][0].Received >= LeastReceived }

// Bars reports whether the value of index i is barred.
func (d *Delack) Bars(i int, now int64, why *Why) bool {
	if !d.IsBarred(i, now) {
		return false
	}
	why.Is(func() string {
		return d.whyBarred(DelackMaxes[d.Barred], now, "more ACKs than with the kernel's delay")
	})
	return true
}

// Share is the number of waits per segment that was received with data.
func (d *Delack) Share() float32 { return d.Waits / max(LeastReceived, d.Received) }

// ShowsWaits reports whether the peer of a connection waited for delayed ACKs.
func ShowsWaits(s *tcp.Sample) bool {
	return s.SRTT != 0 && delackIndex(s.DelackMax) >= 0 && waits(s) > 0
}

// waits is how often the peer of a connection waited for a delayed ACK before it sent more.
//
// A sender with Nagle's algorithm that writes a message in two pieces sends the first one, and
// the second one when that is acknowledged (RFC 896; tcp_nagle_check). The receiver has nothing
// to send before it has both, so its ACK is delayed. Each message then is two small segments
// that are received, at least one segment without data that is sent, and one with data: the
// answer. A message of one segment is acknowledged by the answer. If the answer takes longer
// than the delay, there is an ACK without data, but not more segments than answers.
//
// A connection that is shorter than the delays of so many ACKs would be did not wait for them.
func waits(s *tcp.Sample) float32 {
	if s.DataSegsIn < leastWaited || s.DataSegsOut == 0 || s.DataSegsIn <= s.DataSegsOut || large(s) == 1 {
		return 0
	}
	n := min(acks(s), float32(s.DataSegsOut), float32(s.DataSegsIn-s.DataSegsOut))
	// Half of the delay is asked for, because timers of the kernel may expire up to a jiffy early.
	if delay := min(s.DelackMax, KernelDelay) / 2; n*float32(delay) > float32(s.Duration) {
		return 0
	}
	return n
}

// acks is the number of segments without data that a connection sent, but for those of its
// beginning and end.
func acks(s *tcp.Sample) float32 {
	n := float32(s.SegsOut) - float32(s.DataSegsOut)
	if s.Kind == tcp.KindClose || !s.Has(tcp.FlagLater) {
		n -= handshakeACKs
	}
	return max(0, n)
}

// large is 1 if a connection received segments of half the MSS or more on average; else 0.
func large(s *tcp.Sample) int {
	if s.BytesReceived*2 >= uint64(s.DataSegsIn)*uint64(s.MSS) {
		return 1
	}
	return 0
}

// delackIndex is the index into DelackMaxes of a connection's DELACK_MAX, or -1. The kernel
// rounds up to its clock, and to two ticks at least: with 250 Hz, 4 ms is 8 ms.
func delackIndex(value time.Duration) int {
	for i, ms := range DelackMaxes {
		// v/1000: with CONFIG_HZ=300, a jiffy of 3333.3 us is reported as 3333 us.
		if v := time.Duration(ms) * time.Millisecond; value >= v-v/1000 && value <= v+tick {
			return i
		}
	}
	return -1
}
