package estimate

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// WhyNetwork explains the type of the path: the measures that led to it, and their bounds. policed is
// the rate in bytes/s to which a policer was found to limit the path, 0 if none was.
func (p *Path) WhyNetwork(policed uint64) string {
	now, conditions := p.classify(policed)
	why := p.whyUnknown()
	if now != UnknownNetwork {
		why = p.explain(conditions, policed)
	}
	if now == p.Network.Type {
		return why
	}
	samples, wait := p.Network.wait()
	return fmt.Sprintf("of the %d samples and %s that change it to %s, there are %d: %s", samples, wait, now, p.Network.Shown, why)
}

// NetworkJudged reports whether enough is known of the path to say that no type fits.
func (p *Path) NetworkJudged() bool {
	return p.RTTs >= leastRTTs && !math.IsNaN(p.measure(sharpness, 0))
}

// explain writes the measures of conditions with their bounds. A measure with several bounds is written once.
func (p *Path) explain(conditions []condition, policed uint64) string {
	var parts []string
	for _, c := range conditions {
		part := p.text(c.measure, p.measure(c.measure, policed))
		switch bound := c.measure.unit(c.bound); {
		case c.measure == policedRate:
		case c.below:
			part += " (below " + bound + ")"
		default:
			part += " (at least " + bound + ")"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

// whyUnknown says what is missing to know the type, or what is known if no type fits.
func (p *Path) whyUnknown() string {
	switch {
	case p.RTTs < leastRTTs:
		return fmt.Sprintf("%d samples have a round-trip time, fewer than %d", p.RTTs, leastRTTs)
	case math.IsNaN(p.measure(sharpness, 0)):
		return fmt.Sprintf("it is not known yet whether the delay varies: of %.0f connections without a retransmission, %.0f had the least round-trip time again",
			p.Floor.All, p.Floor.Met)
	}
	parts := []string{}
	for _, m := range []measure{leastRTT, sharpness, spread, queue, inFlight} {
		if v := p.measure(m, 0); !math.IsNaN(v) {
			parts = append(parts, p.text(m, v))
		}
	}
	return "no type fits: " + strings.Join(parts, ", ")
}

// text writes a measure with its name.
func (p *Path) text(m measure, v float64) string {
	if m == sharpness {
		near := float64(p.Floor.near())
		return fmt.Sprintf("%s of the connections that came within %s of it came within %s", m.unit(v), leastRTT.unit(floorClose*near), leastRTT.unit(near))
	}
	return fmt.Sprintf([...]string{
		policedRate: "a policer limits it to %s",
		leastRTT:    "least round-trip time %s",
		spread:      "round-trip times within a small connection differ by %s",
		spreadShare: "that is %s of the least one",
		queue:       "greatest queue %s",
		queueShare:  "that is %s of the least round-trip time",
		inFlight:    "bandwidth-delay product %s",
	}[m], m.unit(v))
}

// unit writes a value of a measure.
func (m measure) unit(v float64) string {
	switch m {
	case policedRate:
		return fmt.Sprintf("%.3g Mbit/s", v*8/1e6)
	case inFlight:
		return fmt.Sprintf("%.3g Mbit", v/1e6)
	case sharpness, spreadShare, queueShare:
		return fmt.Sprintf("%.3g %%", 100*v)
	}
	d := time.Duration(math.Min(v, 1e12)) * time.Microsecond
	if d > 10*time.Millisecond {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}
