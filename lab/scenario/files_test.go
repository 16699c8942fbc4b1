package scenario

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/lab/subject"
	"github.com/tcpilot/tcpilot/lab/workload"
)

// variantsOf returns all variants of a shipped scenario.
func variantsOf(t *testing.T, name string) map[string]*Scenario {
	t.Helper()
	all := make(map[string]*Scenario)
	for variant, o := range map[string]Options{
		"full": {}, "quick": {Quick: true}, "emulated": {Emulated: true}, "quick, emulated": {Quick: true, Emulated: true},
	} {
		s, err := Load(name, o)
		if err != nil {
			t.Fatal(err)
		}
		all[variant] = s
	}
	return all
}

// here is the case with only the subjects that run on any machine; the limits of time
// are for these.
func (c Case) here() Case {
	c.Subjects = slices.DeleteFunc(slices.Clone(c.Subjects), func(s subject.Spec) bool {
		return s.Kind == subject.Bpftune || s.Kind == subject.Fixed && !slices.Contains([]string{"cubic", "reno", "bbr"}, s.CC)
	})
	return c
}

// Shipped scenarios can be read in all variants, and take no longer than a user would
// wait.
func TestShipped(t *testing.T) {
	for _, name := range Names() {
		for variant, s := range variantsOf(t, name) {
			if s.Name != name {
				t.Errorf("%s.yaml calls itself %s", name, s.Name)
			}
			limit := 6 * time.Minute
			if name == "web" {
				limit = 11 * time.Minute // a 95th percentile needs hundreds of connections
			}
			switch variant {
			case "quick":
				limit = 40 * time.Second
			case "quick, emulated":
				limit = time.Minute
				if name == "web" {
					limit = 6 * time.Minute // its links are slow, so that they are the limit and not an emulated processor
				}
			}
			for _, c := range s.Cases {
				if d := c.here().Estimate(); d > limit {
					t.Errorf("%s, %s, %s: takes %v, more than %v", name, variant, c.Name, d, limit)
				}
			}
		}
	}
}

// Rates are within what the emulation can do packet by packet: natively, and on
// emulated processors.
func TestShippedRates(t *testing.T) {
	for _, name := range Names() {
		for variant, s := range variantsOf(t, name) {
			limit := uint64(200e6)
			if variant != "full" && variant != "quick" {
				limit = 50e6
			} else if name == "adapt" || name == "resume" {
				limit = 500e6 // which its connections do not fill
			}
			for _, c := range s.Cases {
				for edge, l := range c.Links {
					states := []Change{{Forward: l.Forward, Backward: l.Backward}}
					for _, change := range append(states, l.Schedule...) {
						if r := max(change.Forward.Rate, change.Backward.Rate); r > limit {
							t.Errorf("%s, %s, %s: %d bit/s on %s, more than %d", name, variant, c.Name, r, edge, limit)
						}
					}
				}
			}
		}
	}
}

// Subjects that learn have enough connections for it in the warm-up rounds, unless the
// learning itself is what the scenario shows.
func TestShippedWarmup(t *testing.T) {
	const enough = 36
	for _, name := range Names() {
		if name == "shift" || name == "incast-clamp" { // shift shows the learning itself; incast-clamp is about a rule
			continue
		}
		for variant, s := range variantsOf(t, name) {
			if name == "satellite" && strings.HasPrefix(variant, "quick") {
				continue // no time for it: connections take 6 s
			}
			for _, c := range s.Cases {
				if !slices.ContainsFunc(c.Subjects, func(s subject.Spec) bool { return s.Kind == subject.Tcpilot }) {
					continue
				}
				round := 0
				for _, p := range c.Traffic {
					n := max(p.Count, 1) * max(p.Streams, 1) * c.numSenders(p)
					if p.Kind == workload.Flows || p.Kind == workload.Churn || p.Kind == workload.Wrk {
						n = p.Count + int(p.Duration.Seconds()*1000)
					}
					round = max(round, n) // counts connections of at least one path
				}
				warmup := c.Warmup
				if c.Fresh {
					warmup++ // the subject also learns in the round that is measured
				}
				if n := round * warmup; n < enough {
					t.Errorf("%s, %s, %s: %d connections to learn from, want %d", name, variant, c.Name, n, enough)
				}
			}
		}
	}
}
