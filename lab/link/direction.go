package link

import (
	"errors"
	"fmt"
	"sync"

	"github.com/tcpilot/tcpilot/lab/topology"
)

// Ends are one direction of a wire: packets leave From and arrive at To.
type Ends struct{ From, To *topology.End }

func (e Ends) String() string {
	return fmt.Sprintf("%s of %s to %s", e.From.Device, e.From.Host.Name, e.To.Host.Name)
}

// Direction is one direction of a wire, on which packets get the delays, losses and limits
// of its Spec. Its methods may be called from any goroutine.
type Direction struct {
	ends    Ends
	backend Backend

	mu       sync.Mutex
	spec     Spec
	model    *model
	holder   holder // nil until a Spec needs it
	offloads *offloads
}

// holder makes packets wait.
type holder interface {
	set(Spec) (modelLinkConfig, error) // returns what the model has to do
	count(*Counters) error             // adds its own counts
	close() error
}

// Shape makes one direction of a wire do what the Spec says. Auto is Netem if the
// kernel has it and it can do this Spec, else Emulator; a caller that will Set other
// Specs later chooses the backend for all of them with Backend.For.
func Shape(e Ends, s Spec, b Backend) (*Direction, error) {
	b, err := b.For(s)
	if err != nil {
		return nil, fmt.Errorf("shape %s: %w", e, err)
	}
	d := &Direction{ends: e, backend: b}
	if d.offloads, err = readOffloads(e); err != nil {
		return nil, fmt.Errorf("shape %s: %w", e, err)
	}
	if d.model, err = newModel(e.To); err != nil {
		return nil, fmt.Errorf("shape %s: %w", e, err)
	}
	if err := d.Set(s); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Set changes what the direction does; traffic may be running. Each packet meets
// either the old Spec or the new one. Packets that wait for the rate are served at
// the new rate from now on; their delay stays as it was, and no later packet
// overtakes them. Netem drops the packets that wait for the rate when ECN or the
// kind of the queue's limit (bytes or packets) changes.
func (d *Direction) Set(s Spec) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := s.Check()
	if err == nil {
		err = d.backend.supports(s)
	}
	if err == nil {
		err = d.set(s)
	}
	if err != nil {
		return fmt.Errorf("shape %s: %w", d.ends, err)
	}
	d.spec = s
	return nil
}

func (d *Direction) set(s Spec) error {
	if err := d.offloads.set(s.Offload); err != nil {
		return err
	}
	if d.holder == nil && (s.Delay > 0 || s.Rate > 0) {
		h, err := d.newHolder()
		if err != nil {
			return err
		}
		d.holder = h
	}
	if d.holder == nil {
		return d.model.set(s.instant())
	}
	c, err := d.holder.set(s)
	if err != nil {
		return err
	}
	return d.model.set(c)
}

func (d *Direction) newHolder() (holder, error) {
	if d.backend == Netem {
		return &netem{end: d.ends.From}, nil
	}
	return newEmulator(d.ends.To)
}

// Spec is what the direction does now.
func (d *Direction) Spec() Spec {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.spec
}

// Counters reads the counters.
func (d *Direction) Counters() (Counters, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c, err := d.model.count()
	if err == nil && d.holder != nil {
		err = d.holder.count(&c)
	}
	if err != nil {
		return c, fmt.Errorf("count packets from %s: %w", d.ends, err)
	}
	return c, nil
}

// Close takes everything off the wire.
func (d *Direction) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	// The model first: otherwise packets would keep marks that nothing reads or clears.
	errs = append(errs, d.model.close())
	if d.holder != nil {
		errs = append(errs, d.holder.close())
	}
	errs = append(errs, d.offloads.restore())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("unshape %s: %w", d.ends, err)
	}
	return nil
}
