package experiment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tcpilot/tcpilot/lab/link"
)

// change is a step of a schedule.
type change struct {
	at                time.Duration
	name              string
	links             duplex
	forward, backward link.Spec
}

// follow changes the links by their schedules from now on. The function that it returns
// ends that and restores the links' initial settings.
func (n *network) follow(ctx context.Context) (end func() error) {
	var changes []change
	for name, d := range n.links {
		for _, c := range d.Schedule {
			changes = append(changes, change{c.At, name, d, c.Forward, c.Backward})
		}
	}
	if len(changes) == 0 {
		return func() error { return nil }
	}
	slices.SortStableFunc(changes, func(a, b change) int { return int(a.at - b.at) })
	ctx, cancel := context.WithCancel(ctx)
	var err error
	var done sync.WaitGroup
	begin := time.Now()
	done.Go(func() {
		for _, c := range changes {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Until(begin.Add(c.at))):
				err = errors.Join(err, c.links.set(c.name, c.forward, c.backward))
			}
		}
	})
	return func() error {
		cancel()
		done.Wait()
		for name, d := range n.links {
			if len(d.Schedule) > 0 {
				err = errors.Join(err, d.set(name, d.Forward, d.Backward))
			}
		}
		return err
	}
}

func (d duplex) set(name string, forward, backward link.Spec) error {
	if err := errors.Join(d.forward.Set(forward), d.backward.Set(backward)); err != nil {
		return fmt.Errorf("change link %s: %w", name, err)
	}
	return nil
}
