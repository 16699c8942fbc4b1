package experiment

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tcpilot/tcpilot/internal/lab/link"
)

// The share of a direction's packets that may be let go more than a millisecond
// late before a round does not count; more where the processors are busy on
// purpose, with the link's emulation among those that wait for them.
const (
	lateShare         = 0.01
	lateShareCPUBound = 0.10
)

// counts are the counters of all directions that do something, by name.
type counts map[string]link.Counters

// count reads the links' counters.
func (n *network) count() (counts, error) {
	all := counts{}
	for name, l := range n.links {
		for way, d := range map[string]*link.Direction{"forward": l.forward, "backward": l.backward} {
			c, err := d.Counters()
			if err != nil {
				return nil, fmt.Errorf("count packets of link %s: %w", name, err)
			}
			all[name+" "+way] = c
		}
	}
	return all, nil
}

// trouble says where the emulation itself, since before, did what nobody asked
// of it.
func (all counts) trouble(before counts, late float64) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(all)) {
		c := all[name].Sub(before[name])
		if c.Failed > 0 {
			errs = append(errs, fmt.Errorf("the emulation of link %s had no room for %d packets", name, c.Failed))
		}
		if share := float64(c.Late) / float64(max(1, c.Passed)); share > late {
			errs = append(errs, fmt.Errorf("the emulation of link %s was late with %.1f %% of the packets", name, share*100))
		}
	}
	return errors.Join(errs...)
}
