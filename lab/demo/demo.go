package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/lab/load"
)

// Options are the settings of a demo.
type Options struct {
	Binary string // tcpilot
	Stdout io.Writer
	// Terminal allows colours and block characters.
	Terminal bool
	Loss     float64 // share of packets; 2 % if 0
	// Baseline and Learning are the numbers of connections without and with tcpilot; 6
	// and 36 if 0.
	Baseline, Learning int
	Each               time.Duration // length of a connection; 0.6 s if 0
}

// holdOut is the share of connections in the hold-out: higher than tcpilot's default, so
// that the few connections of a demo include some.
const holdOut = 0.10

func (o *Options) defaults() {
	if o.Loss == 0 {
		o.Loss = 0.02
	}
	if o.Baseline == 0 {
		o.Baseline = 6
	}
	if o.Learning == 0 {
		o.Learning = 36
	}
	if o.Each == 0 {
		o.Each = 600 * time.Millisecond
	}
}

// Run shows the demo. The program that calls it must have called
// load.RunIfAgent first thing in main.
func Run(ctx context.Context, o Options) (err error) {
	o.defaults()
	s := &screen{out: o.Stdout, paint: console.Painter{On: o.Terminal}, scale: rate}
	lab, err := build(o.Binary, o.Loss)
	if err != nil {
		return fmt.Errorf("build demo network: %w", err)
	}
	defer func() {
		cerr := lab.close()
		if cerr == nil {
			s.printf("\n%s\n", s.dim("Everything that the demo created has been removed."))
		}
		err = errors.Join(err, cerr)
	}()
	s.printf("%s\n\n", s.bold("tcpilot demo"))
	s.printf("  client ── gateway ── server   %.0f Mbit/s, %s round trip, %.0f %% of packets lost\n",
		rate/1e6, roundTrip, o.Loss*100)
	s.printf("  %s\n\n", s.dim("three network namespaces on this machine; nothing else is changed"))
	before, err := baseline(ctx, s, lab, o)
	if err != nil {
		return err
	}
	if err := lab.start(ctx); err != nil {
		return fmt.Errorf("start tcpilot: %w", err)
	}
	return learning(ctx, s, lab, o, before)
}

// baseline makes connections without tcpilot and returns their mean goodput.
func baseline(ctx context.Context, s *screen, lab *lab, o Options) (mean float64, err error) {
	s.printf("%s  the kernel's default, cubic\n", s.bold("Without tcpilot"))
	for i := range o.Baseline {
		r, err := lab.connection(ctx, o.Each)
		if err != nil {
			return 0, fmt.Errorf("make connection: %w", err)
		}
		mean += r.Goodput / float64(o.Baseline)
		s.connection(i+1, o.Baseline, r.CCStart, r.Goodput, "")
	}
	s.printf("  mean %s\n\n", s.bold(console.BitRate(mean)))
	return mean, nil
}

// learning makes connections with tcpilot and shows how its choice develops.
func learning(ctx context.Context, s *screen, lab *lab, o Options, before float64) error {
	s.printf("%s  it chooses among cubic, bbr and reno; beside each connection is\n"+
		"  the share that each of them gets of the next connections\n", s.bold("With tcpilot"))
	var all []load.BulkResult
	for i := range o.Learning {
		r, err := lab.connection(ctx, o.Each)
		if err != nil {
			return fmt.Errorf("make connection: %w", err)
		}
		all = append(all, r)
		p, err := lab.path(ctx)
		if err != nil {
			return fmt.Errorf("ask tcpilot: %w", err)
		}
		s.connection(i+1, o.Learning, r.CCStart, r.Goodput, p.shares())
	}
	p, err := lab.path(ctx)
	if err != nil {
		return fmt.Errorf("ask tcpilot: %w", err)
	}
	tail := all[len(all)/2:]
	var after float64
	for _, r := range tail {
		after += r.Goodput / float64(len(tail))
	}
	s.summary(before, after, len(tail), p)
	return nil
}
