package experiment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/report"
	"github.com/tcpilot/tcpilot/lab/scenario"
	"github.com/tcpilot/tcpilot/lab/subject"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// Options say what to run, and how.
type Options struct {
	Scenarios []*scenario.Scenario
	// Cases and Subjects choose among those of the scenarios by name; empty is all. A
	// subject that a scenario does not list is added if it needs no settings
	// (subject.Named).
	Cases, Subjects []string
	Repeat          int  // rounds that count, instead of the scenarios' own; 0 leaves those
	Quick           bool // calibrate for a shorter time
	Emulated        bool // the machine is emulated, in real time: wider tolerances
	Backend         link.Backend
	Binary          string // tcpilot, for the subjects that are it
	Out             *report.Writer
	Progress        func(Progress) // called from one goroutine; may be nil

	anyHost bool // for tests: do not refuse rounds because of the machine and its links
}

// Run runs scenarios one after the other and writes a record of all they do. The
// program that calls it must have called load.RunIfAgent first thing in main.
//
// A case that cannot run here, or whose link or host fails the checks, is written as
// refused; one that fails is part of the error. The other cases run in either case. When ctx
// ends, Run removes what it made and returns ctx's error.
func Run(ctx context.Context, o Options, run report.Run) (err error) {
	release, err := prepare()
	if err != nil {
		return err
	}
	defer release()
	todo, err := o.cases()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := o.Out.Run(run); err != nil {
		return err
	}
	defer func() {
		end := report.End{Elapsed: time.Since(began)}
		if err != nil {
			end.Stopped = err.Error()
		}
		err = errors.Join(err, o.Out.End(end))
	}()
	pace := newPace(todo, o)
	var errs []error
	for _, c := range todo {
		if err := runCase(ctx, c, o, pace); err != nil {
			errs = append(errs, fmt.Errorf("run %s: %w", c.title(), err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// prepare locks the machine for this run and removes what a killed run left.
func prepare() (release func(), err error) {
	if release, err = topology.Exclusive(); err != nil {
		return nil, err
	}
	if _, err := topology.Sweep(); err != nil {
		release()
		return nil, fmt.Errorf("remove what a killed run left: %w", err)
	}
	return release, nil
}

// job is a case with its scenario.
type job struct {
	scenario *scenario.Scenario
	scenario.Case
}

func (j job) title() string {
	if j.Name == "" {
		return j.scenario.Name
	}
	return j.scenario.Name + ", " + j.Name
}

// cases lists the chosen cases; a choice without a match is an error.
func (o Options) cases() (todo []job, err error) {
	var names []string
	for _, s := range o.Scenarios {
		for _, c := range s.Cases {
			names = append(names, c.Name)
			if len(o.Cases) > 0 && !slices.Contains(o.Cases, c.Name) {
				continue
			}
			if o.Repeat > 0 {
				c.Repeat = o.Repeat
			}
			c.Subjects = o.withAdded(c.Subjects)
			j := job{s, c}
			if slices.ContainsFunc(todo, func(o job) bool { return o.title() == j.title() }) {
				return nil, fmt.Errorf("case %q occurs twice: a report identifies cases by scenario and case", j.title())
			}
			todo = append(todo, j)
		}
	}
	for _, want := range o.Cases {
		if !slices.Contains(names, want) {
			return nil, fmt.Errorf("no case %q; there are %q", want, names)
		}
	}
	var subjects []string
	for _, j := range todo {
		for _, s := range j.Subjects {
			subjects = append(subjects, s.Name)
		}
	}
	for _, want := range o.Subjects {
		if !slices.Contains(subjects, want) {
			return nil, fmt.Errorf("no subject %q; there are %q, and those that need no settings: %q", want,
				slices.Compact(slices.Sorted(slices.Values(subjects))), subject.Names())
		}
	}
	return todo, nil
}

// withAdded returns a case's subjects and the chosen ones that need no settings.
func (o Options) withAdded(specs []subject.Spec) []subject.Spec {
	specs = slices.Clone(specs)
	for _, want := range o.Subjects {
		s, ok := subject.Named(want)
		if ok && !slices.ContainsFunc(specs, func(o subject.Spec) bool { return o.Name == want }) {
			specs = append(specs, s)
		}
	}
	return specs
}
