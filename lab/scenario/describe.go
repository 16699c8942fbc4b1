package scenario

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// Describe writes a description for people: why the scenario exists, and what each case
// does. What all cases share is written once.
func (s *Scenario) Describe(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n\n", s.Name, s.Title)
	wrapped(&b, "Source: ", s.Source)
	wrapped(&b, "Expect: ", s.Expect)
	if len(s.Needs) > 0 {
		wrapped(&b, "Needs: ", strings.Join(s.Needs, ", "))
	}
	var all [][]string
	for i := range s.Cases {
		all = append(all, s.Cases[i].lines())
	}
	shared := func(line string) bool {
		return !slices.ContainsFunc(all, func(lines []string) bool { return !slices.Contains(lines, line) })
	}
	b.WriteByte('\n')
	for _, line := range all[0] {
		if shared(line) {
			b.WriteString(line + "\n")
		}
	}
	for i, lines := range all {
		if c := s.Cases[i]; c.Name != "" {
			fmt.Fprintf(&b, "\ncase %q, about %v\n", c.Name, c.Estimate().Round(time.Second))
		}
		for _, line := range lines {
			if !shared(line) {
				b.WriteString("  " + line + "\n")
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// lines describes what the case does, one topic a line.
func (c Case) lines() (lines []string) {
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	say("network   %s", network(c.Graph))
	for _, e := range c.Graph.Edges {
		if l, ok := c.Links[e.Name]; ok {
			say("link      %s", l.Describe(e.Name))
		}
	}
	for _, p := range c.Traffic {
		say("traffic   %s: %v", p.Name, p)
	}
	var names []string
	for _, s := range c.Subjects {
		name := s.Name
		if s.Name == c.Baseline {
			name += " (baseline)"
		}
		names = append(names, name)
	}
	say("subjects  %s", strings.Join(names, ", "))
	say("tuned     %s", strings.Join(c.Tuned, ", "))
	say("metrics   %s", strings.Join(c.Metrics, ", "))
	say("rounds    %d of each subject, after %d warm-up rounds of those that learn; a round takes about %v",
		c.Repeat, c.Warmup, c.round().Round(100*time.Millisecond))
	if cc := c.DefaultCC(); cc != "" {
		say("default   congestion control %s", cc)
	}
	for _, key := range slices.Sorted(maps.Keys(c.Sysctls)) {
		say("sysctl    %s = %s", key, c.Sysctls[key])
	}
	if c.CPUBound {
		say("limit     the processors (intended)")
	}
	return lines
}

// network lists the hosts, grouped by role.
func network(g topology.Graph) string {
	var parts []string
	for _, role := range []topology.Role{topology.Sender, topology.Router, topology.Receiver} {
		var names []string
		for _, n := range g.Nodes {
			if n.Role == role {
				names = append(names, n.Name)
			}
		}
		switch n := len(names); {
		case n > 4:
			parts = append(parts, fmt.Sprintf("%s ... %s", names[0], names[n-1]))
		case n > 0:
			parts = append(parts, strings.Join(names, " "))
		}
	}
	return strings.Join(parts, " | ")
}

// Describe describes what the link with this name does.
func (l Link) Describe(name string) string {
	var b strings.Builder
	b.WriteString(name + ": " + l.Forward.String())
	if l.Backward != l.Forward {
		b.WriteString("; back: " + l.Backward.String())
	}
	before := Change{Forward: l.Forward, Backward: l.Backward}
	for _, c := range l.Schedule {
		fmt.Fprintf(&b, "; from %v: ", c.At)
		var sides []string
		if c.Forward != before.Forward {
			sides = append(sides, differences(before.Forward, c.Forward))
		}
		if c.Backward != before.Backward {
			sides = append(sides, "back: "+differences(before.Backward, c.Backward))
		}
		b.WriteString(strings.Join(sides, "; "))
		before = c
	}
	return b.String()
}

// differences describes what changed; all of the new Spec if something was removed.
func differences(before, after link.Spec) string {
	was, is := strings.Split(before.String(), ", "), strings.Split(after.String(), ", ")
	if len(is) < len(was) {
		return after.String()
	}
	return strings.Join(slices.DeleteFunc(is, func(word string) bool { return slices.Contains(was, word) }), ", ")
}

// wrapped writes text in lines of at most 100 characters.
func wrapped(b *strings.Builder, lead, text string) {
	const width = 100
	b.WriteString(lead + console.Fold(text, width-len(lead), strings.Repeat(" ", len(lead))) + "\n")
}
