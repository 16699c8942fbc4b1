package cc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/kernelcc"
)

// Catalogue holds the registered controls, and knows those that can be registered. Its
// methods may be called from any goroutine.
type Catalogue struct {
	dir string // of pins; in a BPF file system
	log *slog.Logger

	testing sync.Mutex // locked for seconds while a user's control is tested; mu never is

	mu         sync.Mutex
	known      []Control                // tcpilot's own
	registered map[string]*registration // by name
	tried      map[string]error         // why one of tcpilot's own cannot be loaded, by name; nil if it can
}

// Open adopts what an earlier process registered and pinned under dir, a directory in a
// BPF file system that only the catalogue uses. It removes what that process left half
// done.
func Open(dir string, log *slog.Logger) (*Catalogue, error) {
	return open(dir, log, embedded())
}

func open(dir string, log *slog.Logger, known []Control) (*Catalogue, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create pin directory: %w", err)
	}
	c := &Catalogue{dir: dir, log: log, known: known, registered: map[string]*registration{}, tried: map[string]error{}}
	if err := c.adopt(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close releases the process's own handles. What is registered stays, and the next
// process adopts it.
func (c *Catalogue) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, r := range c.registered {
		errs = append(errs, r.close())
	}
	clear(c.registered)
	return errors.Join(errs...)
}

// adopt opens what is pinned. It removes what cannot be used, and controls of an earlier
// tcpilot that this one does not have.
func (c *Catalogue) adopt() error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return fmt.Errorf("read pins: %w", err)
	}
	for _, entry := range entries {
		path := filepath.Join(c.dir, entry.Name())
		r, err := adopt(path)
		if err == nil && !r.User && find(c.known, r.name()) == nil {
			err = errors.Join(errors.New("this version of tcpilot has no congestion control of this name"), r.close())
		}
		if err != nil {
			c.log.Warn("removed a congestion control that cannot be adopted", "cc", entry.Name(), "error", err)
			if err := removePins(path); err != nil {
				return err
			}
			if err := waitUnregistered(entry.Name()); err != nil {
				c.log.Warn("a congestion control that was removed is still registered", "cc", entry.Name(), "error", err)
			}
			continue
		}
		c.registered[r.name()] = r
		c.log.Info("adopted congestion control", "cc", r.name(), "version", r.Version)
	}
	return nil
}

// Load makes sure that tcpilot's own control called name is registered in its newest
// version. If that version is registered already, nothing changes. An older version is
// replaced in place: sockets that use it keep it, new ones get the new version.
func (c *Catalogue) Load(ctx context.Context, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := find(c.known, name)
	if o == nil {
		return fmt.Errorf("load congestion control %q: tcpilot has none of this name: %w", name, fs.ErrNotExist)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err := c.ensure(*o)
	if !errors.Is(err, unix.EEXIST) { // otherwise another process has registered it: the kernel accepts it
		c.tried[name] = err
	}
	if err != nil {
		return fmt.Errorf("load congestion control %s: %w", name, err)
	}
	return nil
}

// ensure registers o unless its version is already in force.
func (c *Catalogue) ensure(o Control) error {
	r := c.registered[o.name()]
	if r == nil {
		r, err := register(c.dir, o)
		if err != nil {
			return err
		}
		c.registered[o.name()] = r
		c.log.Info("loaded congestion control", "cc", o.name(), "version", o.Version)
		return nil
	}
	before := r.Version
	if before == o.Version {
		return r.setByName(o.ByName)
	}
	if err := r.replace(o); err != nil {
		return err
	}
	c.log.Info("upgraded congestion control", "cc", o.name(), "from", before, "to", o.Version)
	return nil
}

// Unload removes the control called name, tcpilot's own or a user's, from the kernel, and
// returns how many sockets used it: they keep it until they close. No policy should name
// it any more, because new sockets cannot get it.
func (c *Catalogue) Unload(name string) (connections int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.registered[name]
	if r == nil {
		return 0, fmt.Errorf("unload congestion control %q: it is not loaded: %w", name, fs.ErrNotExist)
	}
	connections, err = r.connections()
	if gone := removePins(r.path); gone != nil {
		return connections, fmt.Errorf("unload congestion control %s: %w", name, errors.Join(err, gone))
	}
	delete(c.registered, name)
	if err := errors.Join(err, r.close(), waitUnregistered(name)); err != nil {
		return connections, fmt.Errorf("unload congestion control %s: %w", name, err)
	}
	c.log.Info("unloaded congestion control", "cc", name, "version", r.Version, "connections", connections)
	return connections, nil
}

// List returns every control, ordered by name. Those of tcpilot's own that are not
// registered are loaded once, without registering them, to find out whether this kernel
// accepts them.
func (c *Catalogue) List() ([]Control, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out, err := c.each(c.describeWhole)
	there, listed := kernelcc.Available()
	for _, o := range c.known {
		if c.registered[o.name()] == nil {
			out = append(out, c.notLoaded(o, slices.Contains(there, o.name())))
		}
	}
	slices.SortFunc(out, byName)
	return out, errors.Join(err, listed)
}

// One returns the control called name as List does, without reading the others.
func (c *Catalogue) One(name string) (Control, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.registered[name]; r != nil {
		return c.describeWhole(r)
	}
	o := find(c.known, name)
	if o == nil {
		return Control{}, fmt.Errorf("find congestion control %q: %w", name, fs.ErrNotExist)
	}
	there, err := isRegistered(name)
	return c.notLoaded(*o, there), err
}

// Loaded returns the registered controls, ordered by name, without their programs: unlike
// List it costs next to nothing.
func (c *Catalogue) Loaded() ([]Control, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out, err := c.each(c.describe)
	slices.SortFunc(out, byName)
	return out, err
}

func byName(a, b Control) int { return cmp.Compare(a.name(), b.name()) }

// each describes all registered controls.
func (c *Catalogue) each(describe func(*registration) (Control, error)) (out []Control, err error) {
	var errs []error
	for _, r := range c.registered {
		row, err := describe(r)
		out, errs = append(out, row), append(errs, err)
	}
	return out, errors.Join(errs...)
}

func (c *Catalogue) describe(r *registration) (row Control, err error) {
	row = r.Control
	if o := find(c.known, r.name()); o != nil {
		row = *o
		row.Version, row.Outdated = r.Version, o.Version != r.Version
	}
	row.State = Loaded
	if row.Connections, err = r.connections(); err != nil {
		err = fmt.Errorf("describe congestion control %s: %w", r.name(), err)
	}
	return row, err
}

// describeWhole adds the programs, each of which must be opened.
func (c *Catalogue) describeWhole(r *registration) (row Control, err error) {
	if row, err = c.describe(r); err != nil {
		return row, err
	}
	if row.Programs, err = r.programs(); err != nil {
		err = fmt.Errorf("list programs of congestion control %s: %w", r.name(), err)
	}
	return row, err
}

// notLoaded describes one of tcpilot's own that this catalogue has not registered; there says
// that another process has registered it.
func (c *Catalogue) notLoaded(o Control, there bool) Control {
	if there {
		o.State, o.Version, o.Why = Elsewhere, "", "another process has registered it, in an unknown version"
		return o
	}
	err, ok := c.tried[o.name()]
	if !ok {
		err = o.try()
		c.tried[o.name()] = err
	}
	if o.State = Available; err != nil {
		o.State, o.Why = Absent, err.Error()
	}
	return o
}
