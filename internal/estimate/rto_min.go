package estimate

import (
	"fmt"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// RTOMins are the values of RTO_MIN that a path may get, in milliseconds: the kernel's
// (TCP_RTO_MIN), and shorter ones.
var RTOMins = [...]uint16{200, 100, 50, 25, 10}

const (
	// spuriousMost is the share of data packets that may be spurious retransmissions.
	spuriousMost = 0.001
	// spuriousProof is a number of spurious retransmissions that is added before a value counts
	// as safe, so that it needs at least 2000 packets.
	spuriousProof = 2
	// spuriousTime is for how long a value has to be in use before it counts as safe: a fast
	// path sends that many packets in no time.
	spuriousTime = 10 * time.Second
	// spuriousPrior is a number of packets without any that is added before a value counts
	// as too short, so that one spurious retransmission among few packets is not a high share.
	spuriousPrior = 1000
	// spuriousSample is the number of packets that a sample counts as at most: the spurious
	// retransmissions of a long transfer come in bursts, also for other reasons.
	spuriousSample = 250
	// leastSent is the number of packets from which a sample shows timeouts.
	leastSent = 10
	// spuriousMemory is the number of packets over which they are counted, and
	// spuriousHalfLife the time in which the counts halve.
	spuriousMemory   = 16_000
	spuriousHalfLife = time.Hour

	// tick is the longest jiffy (HZ=100), to which the kernel rounds RTO_MIN up.
	tick = 10 * time.Millisecond
)

// Spurious counts the spurious retransmissions of connections, discounted by packets and time.
type Spurious struct {
	Sent   float32 `json:"data_packets"`
	Resent float32 `json:"spurious_packets"` // those of them that were spurious retransmissions (tcp.Sample.Spurious)
	Since  int64   `json:"begun_ns"`         // Unix nanoseconds of the first sample; 0: none
}

// RTOMin is what spurious retransmissions show of the values of RTO_MIN on a path. The zero
// RTOMin knows nothing, and allows the kernel's value.
type RTOMin struct {
	Counts  [len(RTOMins)]Spurious `json:"counts"` // by value: an index into RTOMins
	At      int64                  `json:"at_ns"`  // Unix nanoseconds, of the latest count
	barring                        // values that caused too many
}

// observe counts a sample's packets for the value that its connection had. Values that are not
// in RTOMins were chosen by someone else, and are not counted.
func (r *RTOMin) observe(s *tcp.Sample) {
	i := rtoMinIndex(s.RTOMin)
	if i < 0 || s.DataSegsOut == 0 {
		return
	}
	at := max(s.At, r.At)
	if r.IsBarred(i, at) {
		return // the connection began before the value was barred
	}
	if r.At != 0 && at > r.At {
		k := keep(time.Duration(at-r.At), spuriousHalfLife)
		for j := range r.Counts {
			r.Counts[j].Sent *= k
			r.Counts[j].Resent *= k
		}
	}
	r.At = at
	c := &r.Counts[i]
	if c.Since == 0 {
		c.Since = at
	}
	sent := min(float32(s.DataSegsOut), spuriousSample)
	c.Sent += sent
	c.Resent += sent * float32(min(s.Spurious(), s.DataSegsOut)) / float32(s.DataSegsOut)
	if c.Sent > spuriousMemory {
		c.Resent *= spuriousMemory / c.Sent
		c.Sent = spuriousMemory
	}
	if i > 0 && c.Resent > spuriousMost*(c.Sent+spuriousPrior) {
		r.bar(i, at)
		clear(r.Counts[i:]) // they are counted from 0 when the values are used again
	}
}

// BarredAt is the value that is not used at a time, with all shorter ones; 0: none.
func (r *RTOMin) BarredAt(now int64) time.Duration {
	if int(r.Barred) >= len(RTOMins) || !r.IsBarred(int(r.Barred), now) {
		return 0
	}
	return time.Duration(RTOMins[r.Barred]) * time.Millisecond
}

// LeastAt is the least RTO_MIN that is allowed at a time, because shorter ones were found too short: the
// next value above the barred one; 0: any is allowed.
func (r *RTOMin) LeastAt(now int64) time.Duration {
	if r.BarredAt(now) == 0 {
		return 0
	}
	return time.Duration(RTOMins[r.Barred-1]) * time.Millisecond
}

// Allows reports whether a value, an index into RTOMins, may be used, if that of index `was` is in
// use: it is not barred, and either not shorter, or the next longer one has been shown to cause
// few spurious retransmissions.
func (r *RTOMin) Allows(i, was int, now int64, why *Why) bool {
	if i == 0 {
		return true
	}
	if r.IsBarred(i, now) {
		why.Is(func() string {
			return r.whyBarred(RTOMins[r.Barred], now, "spurious retransmissions")
		})
		return false
	}
	return i <= was || r.safe(i-1, why)
}

// safe reports whether a value causes few spurious retransmissions, with confidence.
func (r *RTOMin) safe(i int, why *Why) bool {
	c := &r.Counts[i]
	if c.Resent+spuriousProof <= spuriousMost*c.Sent && r.At-c.Since >= int64(spuriousTime) {
		return true
	}
	why.Is(func() string {
		took := time.Duration(0)
		if c.Since != 0 {
			took = max(0, until(r.At, c.Since))
		}
		return fmt.Sprintf("%.0f packets were sent with %s in %s, %.0f of them as spurious retransmissions: the next shorter value needs %.0f packets in at least %s",
			c.Sent, millis(RTOMins[i]), took, c.Resent, (c.Resent+spuriousProof)/spuriousMost, spuriousTime)
	})
	return false
}

// ShowsTimeouts reports whether a sample shows how long RTO_MIN may be. A connection whose
// application sends little shows that, but not what the path carries (ShowsCapacity).
func ShowsTimeouts(s *tcp.Sample) bool {
	return s.SRTT != 0 && s.DataSegsOut >= leastSent && rtoMinIndex(s.RTOMin) >= 0
}

// rtoMinIndex is the index into RTOMins of a connection's RTO_MIN, or -1.
func rtoMinIndex(value time.Duration) int {
	for i, ms := range RTOMins {
		// v/1000: with CONFIG_HZ=300, a jiffy of 3333.3 us is reported as 3333 us.
		if v := time.Duration(ms) * time.Millisecond; value >= v-v/1000 && value <= v+tick {
			return i
		}
	}
	return -1
}
