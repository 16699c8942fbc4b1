package policy

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tcpilot/tcpilot/internal/class"
)

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
	if m.Pod != nil {
		add("pod", m.Pod.String())
	}
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

func join[T fmt.Stringer](list []T) string { return joinFunc(list, "|", T.String) }

func joinFunc[T any](list []T, sep string, text func(T) string) string {
	parts := make([]string, len(list))
	for i, v := range list {
		parts[i] = text(v)
	}
	return strings.Join(parts, sep)
}
