package link

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"
)

// Bounds of a Spec.
const (
	minRate = 8_000           // bit/s: a frame takes 1.5 s
	MaxRate = 100_000_000_000 // bit/s: 1/2^20 ns a byte still resolves it to 10^-5
	// maxHold is how long a packet may wait: well within the 18 minutes ahead that
	// the 31 bits of a mark can express.
	maxHold = 5 * time.Minute
	// minFrame is a full Ethernet frame, minAggregate the largest aggregate that
	// offloads make of several.
	minFrame, minAggregate = 1514, 64<<10 + 14
	// maxWaiting is the number of packets that may wait for the rate, the length of
	// the model's ring (bpf/model.bpf.c), and maxQueue the bytes of as many full
	// frames. Smaller packets may fill the ring before they reach the limit in bytes:
	// packets that then find no room count as failed.
	maxWaiting = 1 << 16
	maxQueue   = maxWaiting * minFrame
)

// Check returns what is wrong with the Spec, beginning with the field's name.
func (s Spec) Check() error {
	return cmp.Or(s.checkShares(), s.checkDelay(), s.checkRate(), s.checkPolicer())
}

func (s Spec) checkShares() error {
	shares := []struct {
		field string
		value float64
	}{
		{"reorder", s.Reorder}, {"loss", s.Loss},
		{"bursts: to bad", s.Bursts.ToBad}, {"bursts: to good", s.Bursts.ToGood},
		{"bursts: loss bad", s.Bursts.LossBad}, {"bursts: loss good", s.Bursts.LossGood},
	}
	for _, share := range shares {
		if math.IsNaN(share.value) || share.value < 0 || share.value > 1 {
			return fmt.Errorf("%s: %v is not in 0 to 1", share.field, share.value)
		}
	}
	return nil
}

func (s Spec) checkDelay() error {
	switch {
	case s.Delay < 0:
		return fmt.Errorf("delay: %s is negative", s.Delay)
	case s.Jitter < 0 || s.Jitter > s.Delay:
		return fmt.Errorf("jitter: %s is not in 0 to the delay, %s", s.Jitter, s.Delay)
	case s.Reorder > 0 && s.Delay == 0:
		return errors.New("reorder: requires a delay: without one no packet can overtake")
	case s.Delay+s.Jitter > maxHold:
		return fmt.Errorf("delay: %s is more than %s", s.Delay+s.Jitter, maxHold)
	}
	return nil
}

func (s Spec) checkRate() error {
	if s.Rate == 0 {
		if s.Queue != (Queue{}) {
			return errors.New("queue: requires a rate: without one nothing waits")
		}
		if s.ECN > 0 {
			return errors.New("ecn: requires a rate: without one nothing waits")
		}
		return nil
	}
	if err := checkRate("rate", s.Rate); err != nil {
		return err
	}
	room := s.Room()
	if room.Bytes > 0 && room.Bytes < s.largest() {
		return fmt.Errorf("queue: %d bytes is too small for a packet of %d bytes", room.Bytes, s.largest())
	}
	if room.Bytes > maxQueue {
		return fmt.Errorf("queue: %d bytes is more than the maximum of %d bytes (%d frames)", room.Bytes, maxQueue, maxWaiting)
	}
	if room.Packets > maxWaiting {
		return fmt.Errorf("queue: %d packets is more than the maximum of %d", room.Packets, maxWaiting)
	}
	if wait := s.QueueDelay(); s.Delay+s.Jitter+wait > maxHold {
		return fmt.Errorf("queue: at this rate a packet may wait %s, more than the maximum of %s", wait, maxHold)
	}
	return nil
}

func (s Spec) checkPolicer() error {
	if s.Policer == (Policer{}) {
		return nil
	}
	if err := checkRate("policer: rate", s.Policer.Rate); err != nil {
		return err
	}
	if s.Policer.Burst < s.largest() {
		return fmt.Errorf("policer: burst: %d bytes is too small for a packet of %d bytes", s.Policer.Burst, s.largest())
	}
	return nil
}

func checkRate(field string, r uint64) error {
	if r < minRate || r > MaxRate {
		return fmt.Errorf("%s: %d bit/s is not in %d to %d", field, r, minRate, MaxRate)
	}
	return nil
}

// largest is the size in bytes of the largest packet that a limit must admit.
func (s Spec) largest() uint64 {
	if s.Offload {
		return minAggregate
	}
	return minFrame
}

// Room returns the Queue with its default filled in, or the zero Queue if there is
// no rate.
func (s Spec) Room() Queue {
	if s.Rate == 0 || s.Queue != (Queue{}) {
		return s.Queue
	}
	return Queue{Bytes: min(max(s.Rate/8/10, 64<<10), maxQueue)}
}

// QueueDelay is how long a full queue of full Ethernet frames takes to leave.
func (s Spec) QueueDelay() time.Duration {
	if s.Rate == 0 {
		return 0
	}
	room := s.Room()
	bytes := room.Bytes
	if room.Packets > 0 && (bytes == 0 || room.Packets*minFrame < bytes) {
		bytes = room.Packets * minFrame
	}
	return time.Duration(float64(bytes) * 8e9 / float64(s.Rate))
}

// LossShare is the share of packets that Loss and Bursts drop in the long run.
func (s Spec) LossShare() float64 { return 1 - (1-s.Loss)*(1-s.Bursts.share()) }

// share is the share of packets lost in the long run: the channel is bad for
// ToBad / (ToBad + ToGood) of them.
func (b Bursts) share() float64 {
	if b.ToBad == 0 {
		return b.LossGood
	}
	bad := b.ToBad / (b.ToBad + b.ToGood)
	return bad*b.LossBad + (1-bad)*b.LossGood
}
