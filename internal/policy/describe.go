package policy

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Describe writes the rule for people, on one line:
// "db: remote 10.0.0.0/8, remote port 5432: set init_cwnd 40 packets".
func (r *Rule) Describe() string {
	return r.Name + ": " + r.Match.String() + ": " + r.describeAction()
}

func (r *Rule) describeAction() string {
	if r.Leave {
		return "leave alone"
	}
	var parts []string
	if set := r.describeSet(); set != "" {
		parts = append(parts, "set "+set)
	}
	if l := r.Learn; l != nil {
		arms := "every congestion control of the kernel"
		if l.Arms != nil {
			arms = joinFunc(l.Arms, "|", tcp.CC.String)
		}
		s := fmt.Sprintf("learn %s for %s, hold out %s", arms, l.Objective, percent(l.HoldOut))
		if l.OwnScope {
			s += ", each network namespace for itself"
		}
		parts = append(parts, s)
	}
	if len(r.Adapt) > 0 {
		parts = append(parts, "adapt "+joinFunc(r.Adapt, ", ", tcp.Field.String)+" to the path")
	}
	if w := r.Watch; w.Events != 0 {
		parts = append(parts, fmt.Sprintf("watch %s of %s", strings.Join(w.Names(), "|"), percent(w.Share)))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	if r.RolloutShare() < 1 {
		parts = append(parts, "for "+percent(r.Rollout)+" of connections")
	}
	return strings.Join(parts, "; ")
}

func (r *Rule) describeSet() string {
	var parts []string
	if r.CC != (tcp.CC{}) {
		parts = append(parts, "cc "+r.CC.String())
	}
	for _, f := range r.Set.Fields() {
		v, _ := r.Set.Get(f)
		parts = append(parts, f.String()+" "+FormatValue(f, v))
	}
	return strings.Join(parts, ", ")
}

// FormatValue writes a field's value with its unit: "40 packets", "10 ms", "on".
func FormatValue(f tcp.Field, v uint64) string {
	switch u := tcp.Fields[f].Unit; {
	case u == tcp.Bool && v == 0:
		return "off"
	case u == tcp.Bool:
		return "on"
	case u.String() == "":
		return strconv.FormatUint(v, 10)
	default:
		return strconv.FormatUint(v, 10) + " " + u.String()
	}
}

// String writes the conditions for people: "remote 10.0.0.0/8, local port 443".
func (m *Match) String() string {
	var parts []string
	add := func(name, list string) {
		if list != "" {
			parts = append(parts, name+" "+list)
		}
	}
	add("remote", join(m.Remote))
	add("local", join(m.Local))
	add("remote port", join(m.RemotePort))
	add("local port", join(m.LocalPort))
	add("cgroup", strings.Join(m.Cgroup, "|"))
	add("netns", strings.Join(m.NetNS, "|"))
	if m.Direction != Either {
		parts = append(parts, m.Direction.String())
	}
	add("same prefix", m.Same.String())
	if len(parts) == 0 {
		return "every connection"
	}
	return strings.Join(parts, ", ")
}

// String writes a range as in the configuration: "443" or "8000-8100".
func (p PortRange) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// String writes the prefix lengths: "ipv6 /44|ipv4 /16", empty if it does not ask.
func (s Same) String() string {
	var parts []string
	if s.IPv6 != 0 {
		parts = append(parts, fmt.Sprintf("ipv6 /%d", s.IPv6))
	}
	if s.IPv4 != 0 {
		parts = append(parts, fmt.Sprintf("ipv4 /%d", s.IPv4))
	}
	return strings.Join(parts, "|")
}

// WatchEvents names the events that can be watched, by configuration key.
var WatchEvents = []struct {
	Name string
	Bit  uint8
}{
	{"rto", class.WatchRTO},
	{"retransmit", class.WatchRetransmit},
	{"state", class.WatchState},
}

// Names lists the events by their configuration keys.
func (w Watch) Names() []string {
	var names []string
	for _, e := range WatchEvents {
		if w.Events&e.Bit != 0 {
			names = append(names, e.Name)
		}
	}
	return names
}

func percent(share float64) string {
	return strconv.FormatFloat(share*100, 'g', 4, 64) + " %"
}

func join[T fmt.Stringer](list []T) string { return joinFunc(list, "|", T.String) }

func joinFunc[T any](list []T, sep string, text func(T) string) string {
	parts := make([]string, len(list))
	for i, v := range list {
		parts[i] = text(v)
	}
	return strings.Join(parts, sep)
}
