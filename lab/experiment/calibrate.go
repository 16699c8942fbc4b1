package experiment

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/lab/calibrate"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/report"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// Calibration compares the settings of a path of a case with measurements.
type Calibration struct {
	Title    string              `json:"title"` // of scenario and case
	From     string              `json:"from,omitempty"`
	To       string              `json:"to,omitempty"`
	Measured *calibrate.Measured `json:"measured,omitempty"`
	// Refused says which check failed, or why the case cannot be built here.
	Refused string `json:"refused,omitempty"`
}

// Calibrate builds the networks of scenarios, measures their paths and reports each. A failed
// check is part of the report, and is not an error.
func Calibrate(ctx context.Context, o Options, tell func(Calibration)) error {
	release, err := prepare()
	if err != nil {
		return err
	}
	defer release()
	todo, err := o.cases()
	if err != nil {
		return err
	}
	for _, j := range todo {
		if err := calibrateCase(ctx, j, o, tell); err != nil {
			return fmt.Errorf("calibrate %s: %w", j.title(), err)
		}
	}
	return nil
}

func calibrateCase(ctx context.Context, j job, o Options, tell func(Calibration)) (err error) {
	n, refused, err := open(ctx, j, o)
	if err != nil {
		return err
	}
	if refused != "" {
		tell(Calibration{Title: j.title(), Refused: refused})
		return nil
	}
	defer func() { err = errors.Join(err, n.close()) }()
	return n.paths(ctx, func(c Calibration) {
		c.Title = j.title()
		tell(c)
	})
}

// paths measures as few paths as are needed to cross every link that does something: the
// first path, and then each path with such a link that no earlier path has. IPv6 is
// measured if the traffic is IPv6. A path of a pod is measured at its node, because nothing
// has connected the pod yet.
func (n *network) paths(ctx context.Context, tell func(Calibration)) error {
	seen := map[string]bool{}
	for _, sender := range n.layout.Senders {
		for _, receiver := range n.layout.Receivers {
			from, to := n.layout.Place(sender), n.layout.Place(receiver)
			if from == to {
				continue // there is no link between pods of one node
			}
			hops, err := n.layout.Path(from, to)
			if err != nil {
				return err
			}
			fresh := len(seen) == 0
			for _, hop := range hops {
				l := n.links[hop.Name]
				shaped := l.Forward != link.Spec{} || l.Backward != link.Spec{}
				fresh = fresh || shaped && !seen[hop.Name]
				seen[hop.Name] = true
			}
			if !fresh {
				continue
			}
			if err := n.path(ctx, from, to, tell); err != nil {
				return fmt.Errorf("measure %s to %s: %w", from.Name, to.Name, err)
			}
		}
	}
	return nil
}

// path measures one path.
func (n *network) path(ctx context.Context, from, to *topology.Host, tell func(Calibration)) error {
	want, err := calibrate.Along(n.layout, from, to, n.asked)
	if err != nil {
		return err
	}
	want.Quick, want.Emulated, want.IPv6 = n.quick, n.emulated, n.ipv6
	m, err := calibrate.Link(ctx, n.layout, from, to, want)
	if err != nil {
		return err
	}
	c := Calibration{From: from.Name, To: to.Name, Measured: &m}
	// Check's error contains the load of the host.
	if err := cmp.Or(m.Check(), m.Host.Sane(calibrationLimits())); err != nil && !n.anyHost {
		c.Refused = err.Error()
	}
	tell(c)
	return nil
}

// asked is what a wire does at the beginning of a round.
func (n *network) asked(wire string) (forward, backward link.Spec) {
	l := n.links[wire]
	return l.Forward, l.Backward
}

// calibrationPauses are the pauses before each try of a calibration.
var calibrationPauses = []time.Duration{0, 0, 0, 10 * time.Second, 30 * time.Second}

// calibrationsIfQuiet is the number of tries if the host was not disturbed in the last one.
const calibrationsIfQuiet = 3

// calibrate measures the paths before a case, and refuses the case if one is not what was
// asked. It tries up to three times, and up to two more times if other load on the machine
// may be the cause.
func (n *network) calibrate(ctx context.Context, about *report.Case) error {
	var seen []Calibration
	for i, pause := range calibrationPauses {
		if i >= calibrationsIfQuiet && !disturbed(seen) {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		seen, about.Refused = nil, ""
		err := n.paths(ctx, func(c Calibration) {
			seen = append(seen, c)
			if c.Refused != "" {
				about.Refused = fmt.Sprintf("%s to %s: %s", c.From, c.To, c.Refused)
			}
		})
		if err != nil {
			return err
		}
		if about.Refused == "" {
			break
		}
	}
	var err error
	about.Calibration, err = json.Marshal(seen)
	return err
}

// disturbed reports whether the host was too busy during one of the measurements.
func disturbed(seen []Calibration) bool {
	return slices.ContainsFunc(seen, func(c Calibration) bool {
		return c.Measured != nil && c.Measured.Host.Sane(calibrationLimits()) != nil
	})
}

// calibrationLimits leave the processors out: a flood to measure the rate may keep
// them busy.
func calibrationLimits() calibrate.Limits {
	limits := calibrate.DefaultLimits
	limits.Busy = 1
	return limits
}
