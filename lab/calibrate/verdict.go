package calibrate

import (
	"fmt"
	"time"

	"github.com/tcpilot/tcpilot/internal/console"
)

// Tolerances of links. On an emulated machine, all but that of loss are wider by the factor
// slack, because its clock and its processors stop for milliseconds.
const (
	slack        = 5
	delayOff     = 500 * time.Microsecond // or delayShare, if that is more
	delayShare   = 0.05
	jitterOff    = 500 * time.Microsecond // or jitterShare, if that is more
	jitterShare  = 0.10                   // plus what chance explains with so many probes
	lossShareOff = 0.05
	// strayLoss is the share of packets that the kernel may drop by itself if no loss was
	// configured, for example because of a full backlog after a stall.
	strayLoss    = 1e-4
	reorderShare = 0.10
	// maxReorder is the greatest share of packets that go ahead of others for which the
	// order of arrival shows how many they were; at half of the packets it does not show
	// which half went ahead. In simulations with 3 to 200 packets in flight the measured
	// share is within reorderShare up to this value.
	maxReorder = 0.3
	// strayReorder is the share of packets that may be reordered if that was not configured,
	// for example because the scheduler moves the sender to another processor.
	strayReorder = 0.01
	rateShare    = 0.03
	queueOff     = 2 * time.Millisecond // or queueShare, if that is more
	queueShare   = 0.10
)

// Verdict is the result of comparing a measurement with the configuration; empty if they
// agree.
type Verdict struct {
	Wrong     string `json:"wrong,omitempty"`     // why it differs from the configuration
	Undecided string `json:"undecided,omitempty"` // why it cannot be judged
}

// Reason returns whichever of the two is set.
func (v Verdict) Reason() string {
	if v.Undecided != "" {
		return "not judged: " + v.Undecided
	}
	return v.Wrong
}

func wrong(why string) Verdict     { return Verdict{Wrong: why} }
func undecided(why string) Verdict { return Verdict{Undecided: why} }

// within is the tolerance of a time: a fixed one, or a share of the configured value.
func within(off time.Duration, share float64, asked time.Duration, loose float64) time.Duration {
	return time.Duration(loose * max(float64(off), share*float64(asked)))
}

// overtake is the greatest share of so many probes that may, by chance, have passed without
// the delay.
func (a Asked) overtake(probes int) float64 {
	_, high := interval(float64(probes), a.Reorder)
	return high
}

// delayVerdict compares a median with what was asked; the time to send the packet is
// allowed on top.
func (a Asked) delayVerdict(s Spread, floor time.Duration) Verdict {
	// If a share overtakes, the median of all is below the median of the others: at their
	// quantile (1/2 - ahead) / (1 - ahead), which in a uniform distribution is this far
	// below the middle.
	ahead := a.overtake(s.Probes)
	if ahead >= 0.5 {
		return undecided("half of the probes may have passed without the delay")
	}
	low := time.Duration(ahead / (1 - ahead) * float64(a.Jitter))
	off := within(delayOff, delayShare, a.Delay, a.loose) + floor + byChance(medianError/(1-ahead), a.Jitter, s.Probes)
	switch {
	case s.Median < a.Delay-off-low:
		return wrong("too short")
	case s.Median > a.Delay+probeBytes*a.perByte+off:
		return wrong("too long")
	}
	return Verdict{}
}

func (a Asked) jitterVerdict(s Spread, floor time.Duration) Verdict {
	// As long as less than a tenth overtakes, the tenth percentile is among those that do
	// not, but further from the middle; the same holds for the ninetieth.
	ahead := a.overtake(s.Probes)
	if ahead >= 0.1 {
		return undecided("a tenth of the probes may have overtaken others, without any jitter")
	}
	off := within(jitterOff, jitterShare, a.Jitter, a.loose) + floor + byChance(a.jitterError, a.Jitter, s.Probes)
	wide := time.Duration(ahead / (1 - ahead) * float64(a.Jitter))
	switch got := s.jitter(); {
	case got < a.Jitter-off:
		return wrong("too narrow")
	case got > a.Jitter+off+wide:
		return wrong("too wide")
	}
	return Verdict{}
}

func (d Direction) lossVerdict() Verdict {
	asked := d.Asked.Loss
	n := float64(d.Sent) / d.Asked.inflation
	low, _ := interval(n, asked)
	_, high := interval(n, max(asked, strayLoss))
	off := max(strayLoss, lossShareOff*asked)
	would := fmt.Sprintf("chance explains %s to %s", console.Percent(low), console.Percent(high))
	switch {
	case d.Loss < low && d.Loss < asked-off:
		return wrong("too little; " + would)
	case d.Loss > high && d.Loss > asked+off:
		return wrong("too much; " + would)
	}
	return Verdict{}
}

func (d Direction) reorderVerdict() Verdict {
	asked, n := d.Asked.Reorder, float64(d.Sent-d.Lost)
	switch {
	case asked == 0:
		if _, high := interval(n, strayReorder*d.Asked.loose); d.Reorder > high {
			return wrong("not asked")
		}
		return Verdict{}
	case asked > maxReorder:
		return undecided("so many packets overtook others that the order of arrival does not show how many")
	case !d.canReorder:
		return undecided("the probes were too far apart to overtake")
	}
	low, high := interval(n, asked)
	switch off := reorderShare * d.Asked.loose * asked; {
	case d.Reorder < low-off:
		return wrong("too little")
	case d.Reorder > high+off:
		return wrong("too much")
	}
	return Verdict{}
}

func (d Direction) rateVerdict() Verdict {
	a := d.Asked
	switch {
	case d.Rate > a.Rate*(1+rateShare*a.loose) && d.overfull():
		return wrong("a stalled machine delayed packets, which then arrived in a burst: measure again")
	case d.Rate > a.Rate*(1+rateShare*a.loose):
		return wrong("too fast")
	case d.Rate >= a.Rate*(1-a.Loss)*(1-rateShare*a.loose): // loss may come after the limit
		return Verdict{}
	case d.Offered < a.Rate*(1+over/2):
		return wrong(fmt.Sprintf("this machine sends only %s, too little to measure the rate", bits(d.Offered)))
	}
	return wrong("too slow")
}

func (d Direction) queueVerdict() Verdict {
	a := d.Asked
	if a.overtake(d.Delay.Probes) >= 0.5 {
		return undecided("half of the packets may have passed without the delay")
	}
	switch {
	case d.Rate < a.Rate*(1-rateShare*a.loose)*(1-a.Loss): // not full, or the rate is to blame
		return Verdict{}
	case d.Queue < a.Queue-a.queueOff()-a.Jitter:
		return wrong("too short")
	case d.overfull():
		return wrong("too long")
	}
	return Verdict{}
}

// overfull reports whether packets waited longer than is possible in the queue that was
// asked.
func (d Direction) overfull() bool {
	a := d.Asked
	return d.filled && a.Queue > 0 && d.Queue > a.Queue+a.queueOff()+2*a.Jitter
}

func (a Asked) queueOff() time.Duration {
	return within(queueOff, queueShare, a.Queue, a.loose) + 2*packetLen*a.perByte
}

func (d Direction) markVerdict() Verdict {
	switch {
	case !d.Asked.ECN && d.Marked > 0:
		return wrong("not asked")
	case d.Asked.marks && d.filled && d.Marked < 0.5:
		return wrong("too few, although the queue was full")
	}
	return Verdict{}
}
