package estimate

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// NetworkReason says why a path has its type of network. It is kept as figures, and written only if
// somebody asks for it: a snapshot has one for each path.
type NetworkReason struct {
	text     string // if it was read by UnmarshalText
	network  Network
	measures measures
	floor    Floor
	rtts     uint32
}

// WhyNetwork returns the reason of the path's type.
func (p *Path) WhyNetwork() NetworkReason { return p.why(p.shown()) }

func (p *Path) why(m measures) NetworkReason {
	return NetworkReason{network: p.Network, measures: m, floor: p.Floor, rtts: p.RTTs}
}

// MarshalText writes the reason as a sentence.
func (r NetworkReason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (r *NetworkReason) UnmarshalText(text []byte) error {
	*r = NetworkReason{text: string(text)}
	return nil
}

// Judged reports whether enough is known of the path to say that no type fits.
func (r *NetworkReason) Judged() bool {
	return known(r.measures[leastRTT]) && known(r.measures[sharpness])
}

// String names the measures that led to the type, with their bounds.
func (r NetworkReason) String() string {
	if r.text != "" {
		return r.text
	}
	now, conditions := r.measures.classify()
	why := r.unknown()
	if now != UnknownNetwork {
		why = r.explain(conditions)
	}
	if now == r.network.Type {
		return why
	}
	return fmt.Sprintf("the latest %d samples show %s, which applies after %s of such samples: %s", r.network.Shown, now, r.network.wait().Round(time.Second), why)
}

// explain writes the measures of conditions with their bounds.
func (r *NetworkReason) explain(conditions []condition) string {
	var parts []string
	for i, c := range conditions {
		bound := "at least " + c.measure.unit(c.bound)
		if c.below {
			bound = "below " + c.measure.unit(c.bound)
		}
		last := len(parts) - 1
		switch {
		case c.measure == policedRate:
			parts = append(parts, r.figure(c.measure))
		case i > 0 && conditions[i-1].measure == c.measure:
			parts[last] = strings.TrimSuffix(parts[last], ")") + ", " + bound + ")"
		default:
			parts = append(parts, r.figure(c.measure)+" ("+bound+")")
		}
	}
	return strings.Join(parts, ", ")
}

// unknown says what is missing to know the type, or what is known if no type fits.
func (r *NetworkReason) unknown() string {
	switch {
	case r.rtts == 0:
		return "no round-trip time is known"
	case r.rtts < leastRTTs:
		return fmt.Sprintf("%d samples have a round-trip time, fewer than %d", r.rtts, leastRTTs)
	case !known(r.measures[sharpness]):
		return fmt.Sprintf("it is not known yet whether the delay varies: of %.0f connections without a retransmission, %.0f had the least round-trip time again",
			r.floor.All, r.floor.Met)
	}
	parts := []string{}
	for _, m := range []measure{leastRTT, sharpness, spread, queue, inFlight} {
		if known(r.measures[m]) {
			parts = append(parts, r.figure(m))
		}
	}
	return "no type fits: " + strings.Join(parts, ", ")
}

// figure writes a measure with its name.
func (r *NetworkReason) figure(m measure) string {
	v := m.unit(r.measures[m])
	switch m {
	case policedRate:
		return "a policer limits it to " + v
	case leastRTT:
		return "least round-trip time " + v
	case sharpness:
		near := r.floor.near()
		return fmt.Sprintf("%s of the connections that came within %s of it came within %s", v, leastRTT.unit(floorClose*near), leastRTT.unit(near))
	case spread:
		return "round-trip times within a small connection differ by " + v
	case spreadShare, queueShare:
		return "that is " + v + " of the least one"
	case queue:
		return "greatest queue " + v
	}
	return "bandwidth-delay product " + v
}

// unit writes a value of a measure.
func (m measure) unit(v float32) string {
	switch m {
	case policedRate:
		return fmt.Sprintf("%.3g Mbit/s", v*8/1e6)
	case inFlight:
		return fmt.Sprintf("%.3g Mbit", v/1e6)
	case sharpness, spreadShare, queueShare:
		return fmt.Sprintf("%.0f %%", 100*v)
	}
	d := time.Duration(math.Min(float64(v), 1e12)) * time.Microsecond
	switch {
	case d > 10*time.Millisecond:
		d = d.Round(time.Millisecond)
	case d > 100*time.Microsecond:
		d = d.Round(10 * time.Microsecond)
	}
	return d.String()
}
