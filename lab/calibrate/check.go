package calibrate

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/console"
)

// Row is one property as configured and as measured, as text.
type Row struct {
	Name     string `json:"name"` // such as "loss forward"
	Asked    string `json:"asked"`
	Measured string `json:"measured"`
	Verdict
}

// Check returns an error for each property that differs from the configuration, and for a
// host that was too busy.
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

// String formats the rows as a table.
func (m Measured) String() string {
	t := console.NewTable(m.From+" to "+m.To, "asked", "measured", "")
	for _, r := range m.Rows() {
		t.Row(r.Name, r.Asked, r.Measured, r.Reason())
	}
	var b strings.Builder
	t.Write(&b, console.Painter{}, "")
	return b.String()
}

// Rows lists all that was measured.
func (m Measured) Rows() []Row {
	rows := []Row{m.roundTrip()}
	rows = append(rows, m.Forward.rows("forward", m.Floor)...)
	return append(rows, m.Backward.rows("backward", m.Floor)...)
}

// probeBytes is about the frame size of a small probe, in bytes.
const probeBytes = 100

func (m Measured) roundTrip() Row {
	f, b := m.Forward.Asked, m.Backward.Asked
	both := Asked{
		Delay: f.Delay + b.Delay, perByte: f.perByte + b.perByte, loose: f.loose,
		Jitter:  time.Duration(math.Hypot(float64(f.Jitter), float64(b.Jitter))),
		Reorder: 1 - (1-f.Reorder)*(1-b.Reorder),
	}
	if m.RTT.Probes == 0 {
		return Row{"round trip", short(both.Delay), "nothing", wrong(fmt.Sprintf("none of %d probes came back", m.Probes))}
	}
	return Row{"round trip", short(both.Delay),
		fmt.Sprintf("%s (%s to %s)", short(m.RTT.Median), short(m.RTT.P10), short(m.RTT.P90)), both.delayVerdict(m.RTT, m.Floor)}
}

func (d Direction) rows(name string, floor time.Duration) (rows []Row) {
	a := d.Asked
	if d.Delay.Probes > 0 {
		rows = append(rows, Row{"delay " + name, short(a.Delay), short(d.Delay.Median), a.delayVerdict(d.Delay, floor)})
	}
	rows = append(rows, Row{"loss " + name, console.Percent(a.Loss), fmt.Sprintf("%s of %d", console.Percent(d.Loss), d.Sent), d.lossVerdict()})
	if a.Jitter > 0 && d.Delay.Probes > 0 {
		rows = append(rows, Row{"jitter " + name, "± " + short(a.Jitter), "± " + short(d.Delay.jitter()), a.jitterVerdict(d.Delay, floor)})
	}
	if v := d.reorderVerdict(); a.Reorder > 0 || v.Wrong != "" {
		rows = append(rows, Row{"reordering " + name, console.Percent(a.Reorder), console.Percent(d.Reorder), v})
	}
	if a.Rate == 0 || d.Offered == 0 { // no limit, or no flood
		return rows
	}
	rows = append(rows, Row{"rate " + name, bits(a.Rate), bits(d.Rate), d.rateVerdict()})
	if a.Queue > 0 && d.filled {
		rows = append(rows, Row{"full queue " + name, short(a.Queue), short(d.Queue), d.queueVerdict()})
	}
	if v := d.markVerdict(); a.ECN || v.Wrong != "" {
		asked := map[bool]string{true: "some", false: "none"}[a.ECN]
		rows = append(rows, Row{"marks " + name, asked, console.Percent(d.Marked), v})
	}
	return rows
}

// short formats a duration with three significant digits.
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
