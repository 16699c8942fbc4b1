package experiment

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tcpilot/tcpilot/lab/link"
)

// The greatest share of a direction's packets that may be released more than a millisecond
// late for a round to count. It is greater for cases that keep the processors busy on
// purpose, because the link's emulation then waits for them as well.
const (
	lateShare         = 0.01
	lateShareCPUBound = 0.10
)

// counts are the counters of all directions, by name.
type counts map[string]count

type count struct {
	link.Counters
	offload bool // aggregates are expected: some Spec of the direction leaves offloads on
}

// count reads the links' counters.
func (n *network) count() (counts, error) {
	all := counts{}
	for name, l := range n.links {
		forward, err := l.forward.Counters()
		if err != nil {
			return nil, fmt.Errorf("count packets of link %s: %w", name, err)
		}
		backward, err := l.backward.Counters()
		if err != nil {
			return nil, fmt.Errorf("count packets of link %s: %w", name, err)
		}
		there, back := l.offloads()
		all[name+" forward"], all[name+" backward"] = count{forward, there}, count{backward, back}
	}
	return all, nil
}

// offloads reports for each direction whether offloads are on at any time.
func (d duplex) offloads() (forward, backward bool) {
	forward, backward = d.Forward.Offload, d.Backward.Offload
	for _, c := range d.Schedule {
		forward, backward = forward || c.Forward.Offload, backward || c.Backward.Offload
	}
	return forward, backward
}

// check reports what the emulation itself did wrong since before: dropped packets, let
// aggregates pass, or released packets late.
func (all counts) check(before counts, late float64) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(all)) {
		c := all[name].Sub(before[name].Counters)
		if c.Failed > 0 {
			errs = append(errs, fmt.Errorf("the emulation of link %s had no room for %d packets", name, c.Failed))
		}
		if c.Aggregates > 0 && !all[name].offload {
			errs = append(errs, fmt.Errorf("%d packets of link %s were aggregates of several, each of which is lost and queued as one: "+
				"something turned offloads on", c.Aggregates, name))
		}
		if share := float64(c.Late) / float64(max(1, c.Passed)); share > late {
			errs = append(errs, fmt.Errorf("the emulation of link %s was late with %.1f %% of the packets", name, share*100))
		}
	}
	return errors.Join(errs...)
}
