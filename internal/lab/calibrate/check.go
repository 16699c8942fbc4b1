package calibrate

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"text/tabwriter"
	"time"
)

// How far a link may be off. In a machine that is emulated itself, all but loss
// may be slack times as far: its clock and its processors stop for milliseconds.
const (
	slack        = 5
	delayOff     = 500 * time.Microsecond // or
	delayShare   = 0.05
	jitterOff    = 500 * time.Microsecond // or
	jitterShare  = 0.25                   // what its percentiles of some hundred probes can tell
	lossShareOff = 0.05
	// strayLoss is the share of packets that the kernel may drop by itself where no
	// loss was asked: a backlog that is full after a stall.
	strayLoss    = 1e-4
	reorderShare = 0.10
	// strayReorder is the share of packets that may overtake where that was not
	// asked: those of a sender that the scheduler moves to another processor.
	strayReorder = 0.01
	rateShare    = 0.03
	queueOff     = 2 * time.Millisecond // or
	queueShare   = 0.10
)

// Row is one thing that was asked and measured, for people.
type Row struct {
	Name     string `json:"name"` // such as "loss forward"
	Asked    string `json:"asked"`
	Measured string `json:"measured"`
	// Wrong says why it is not what was asked; empty if it is.
	Wrong string `json:"wrong,omitempty"`
}

// Check says what the path does that was not asked.
func (m Measured) Check() error {
	var wrong []error
	for _, r := range m.Rows() {
		if r.Wrong != "" {
			wrong = append(wrong, fmt.Errorf("%s: %s measured, %s asked: %s", r.Name, r.Measured, r.Asked, r.Wrong))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	if err := m.Host.Sane(DefaultLimits); err != nil {
		wrong = append(wrong, fmt.Errorf("meanwhile %w", err))
	}
	return errors.Join(wrong...)
}

// String is the rows as a table.
func (m Measured) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s to %s\tasked\tmeasured\t\n", m.From, m.To)
	for _, r := range m.Rows() {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Name, r.Asked, r.Measured, r.Wrong)
	}
	w.Flush()
	return b.String()
}

// Rows lists all that was measured.
func (m Measured) Rows() []Row {
	f, b := m.Forward.Asked, m.Backward.Asked
	rows := []Row{{
		Name: "round trip", Asked: short(f.Delay + b.Delay),
		Measured: fmt.Sprintf("%s (%s to %s)", short(m.RTT.Median), short(m.RTT.P10), short(m.RTT.P90)),
		Wrong: delayWrong(m.RTT, f.Delay+b.Delay, probeBytes*(f.perByte+b.perByte),
			time.Duration(math.Hypot(float64(f.Jitter), float64(b.Jitter))), m.Floor, f.loose),
	}}
	rows = append(rows, m.Forward.rows("forward", m.Floor)...)
	return append(rows, m.Backward.rows("backward", m.Floor)...)
}

// probeBytes is about the frame of a small probe.
const probeBytes = 100

func (d Direction) rows(name string, floor time.Duration) []Row {
	a := d.Asked
	rows := []Row{
		{"delay " + name, short(a.Delay), short(d.Delay.Median), delayWrong(d.Delay, a.Delay, probeBytes*a.perByte, a.Jitter, floor, a.loose)},
		{"loss " + name, percent(a.Loss), fmt.Sprintf("%s of %d", percent(d.Loss), d.Sent), d.lossWrong()},
	}
	if a.Jitter > 0 {
		rows = append(rows, Row{"jitter " + name, "± " + short(a.Jitter), "± " + short(d.Delay.jitter()), d.jitterWrong(floor)})
	}
	if a.Reorder > 0 || d.reorderWrong() != "" {
		rows = append(rows, Row{"reordering " + name, percent(a.Reorder), percent(d.Reorder), d.reorderWrong()})
	}
	if a.Rate == 0 {
		return rows
	}
	rows = append(rows, Row{"rate " + name, bits(a.Rate), bits(d.Rate), d.rateWrong()})
	if a.Queue > 0 && d.filled {
		rows = append(rows, Row{"full queue " + name, short(a.Queue), short(d.Queue), d.queueWrong()})
	}
	if a.ECN || d.markWrong() != "" {
		asked := map[bool]string{true: "some", false: "none"}[a.ECN]
		rows = append(rows, Row{"marks " + name, asked, percent(d.Marked), d.markWrong()})
	}
	return rows
}

// within is how far a time may be off: by so much, or by a share of what was
// asked.
func within(off time.Duration, share float64, asked time.Duration, loose float64) time.Duration {
	return time.Duration(loose * max(float64(off), share*float64(asked)))
}

// delayWrong compares a median with what was asked, which sending may add to.
func delayWrong(s Spread, asked, sending, jitter, floor time.Duration, loose float64) string {
	off := within(delayOff, delayShare, asked, loose) + floor + medianError(jitter, s.Probes)
	switch {
	case s.Median < asked-off:
		return "too short"
	case s.Median > asked+sending+off:
		return "too long"
	}
	return ""
}

func (d Direction) jitterWrong(floor time.Duration) string {
	off := within(jitterOff, jitterShare, d.Asked.Jitter, d.Asked.loose) + floor
	switch got := d.Delay.jitter(); {
	case got < d.Asked.Jitter-off:
		return "too narrow"
	case got > d.Asked.Jitter+off:
		return "too wide"
	}
	return ""
}

func (d Direction) lossWrong() string {
	asked := d.Asked.Loss
	n := float64(d.Sent) / d.Asked.inflation
	low, _ := interval(n, asked)
	_, high := interval(n, max(asked, strayLoss))
	off := max(strayLoss, lossShareOff*asked)
	would := fmt.Sprintf("%s to %s would be chance", percent(low), percent(high))
	switch {
	case d.Loss < low && d.Loss < asked-off:
		return "too little; " + would
	case d.Loss > high && d.Loss > asked+off:
		return "too much; " + would
	}
	return ""
}

func (d Direction) reorderWrong() string {
	asked, n := d.Asked.Reorder, float64(d.Sent-d.Lost)
	if asked == 0 {
		if _, high := interval(n, strayReorder*d.Asked.loose); d.Reorder > high {
			return "not asked"
		}
		return ""
	}
	if !d.canReorder {
		return "" // the probes were too far apart to tell
	}
	low, high := interval(n, asked)
	switch off := reorderShare * d.Asked.loose * asked; {
	case d.Reorder < low-off:
		return "too little"
	case d.Reorder > high+off:
		return "too much"
	}
	return ""
}

func (d Direction) rateWrong() string {
	a := d.Asked
	switch {
	case d.Rate > a.Rate*(1+rateShare*a.loose):
		return "too fast"
	case d.Rate >= a.Rate*(1-a.Loss)*(1-rateShare*a.loose): // loss may come after the limit
		return ""
	case d.Offered < a.Rate*(1+over/2):
		return fmt.Sprintf("this machine sends only %s, too little to tell", bits(d.Offered))
	}
	return "too slow"
}

func (d Direction) queueWrong() string {
	a := d.Asked
	off := within(queueOff, queueShare, a.Queue, a.loose) + 2*packetLen*a.perByte
	switch {
	case d.Rate < a.Rate*(1-rateShare*a.loose)*(1-a.Loss): // not full, or the rate is to blame
		return ""
	case d.Queue < a.Queue-off-a.Jitter:
		return "too short"
	case d.Queue > a.Queue+off+2*a.Jitter:
		return "too long"
	}
	return ""
}

func (d Direction) markWrong() string {
	switch {
	case !d.Asked.ECN && d.Marked > 0:
		return "not asked"
	case d.Asked.marks && d.filled && d.Marked < 0.5:
		return "too few, with the queue full"
	}
	return ""
}

// percent writes a share with three digits that count.
func percent(share float64) string { return fmt.Sprintf("%.3g %%", 100*share) }

// short writes a duration with three digits that count.
func short(d time.Duration) string {
	for unit := time.Second; unit >= time.Microsecond; unit /= 1000 {
		if d >= unit {
			return d.Round(max(1, unit/time.Duration(math.Pow(10, 2-math.Floor(math.Log10(float64(d)/float64(unit))))))).String()
		}
	}
	return d.String()
}

func bits(perSecond float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1e9, "Gbit/s"}, {1e6, "Mbit/s"}, {1e3, "kbit/s"}} {
		if perSecond >= unit.size {
			return fmt.Sprintf("%.4g %s", perSecond/unit.size, unit.name)
		}
	}
	return fmt.Sprintf("%.4g bit/s", perSecond)
}
