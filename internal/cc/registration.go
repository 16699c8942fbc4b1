package cc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// registration is a control that sockets can use. Its pins are in a directory of the same
// name:
//
//	link             registers the control as long as it exists
//	VERSION/ops      map of the control, which counts the sockets
//	VERSION/source   -> file of a user's own
//	VERSION/ecn      -> "needed"
//	VERSION/auto     -> "yes"
//
// One system call puts a version in force: the first by pinning the link, another one by
// updating the link. If the process is killed before or after that call, versions that are
// not in force may be left; adopt removes them. Facts are symbolic links, because a BPF file
// system cannot hold regular files.
type registration struct {
	Control        // in force
	path    string // its directory
	link    link.Link
	ops     *ebpf.Map
}

const (
	linkPin    = "link"
	opsPin     = "ops"
	sourceFact = "source"
	ecnFact    = "ecn"
	autoFact   = "auto"
)

// register loads o, registers it and pins it under dir. If another process has registered
// the name, o is not loaded: that takes long, and the kernel would refuse to register it.
func register(dir string, o Control) (*registration, error) {
	if there, err := isRegistered(o.name()); err == nil && there {
		return nil, explainAttach(unix.EEXIST)
	}
	path := filepath.Join(dir, o.name())
	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, fmt.Errorf("create pin directory: %w", err)
	}
	r, err := o.pin(path)
	if err != nil {
		return nil, errors.Join(err, removePins(path))
	}
	if err := r.attach(); err != nil {
		return nil, errors.Join(err, removePins(path), r.close())
	}
	return r, nil
}

func (r *registration) attach() (err error) {
	if r.link, err = attach(r.ops); err != nil {
		return err
	}
	if err := r.link.Pin(filepath.Join(r.path, linkPin)); err != nil {
		return fmt.Errorf("pin link: %w", err)
	}
	return nil
}

// replace puts another version in force. Sockets keep the version that they have.
func (r *registration) replace(o Control) error {
	next, err := o.pin(r.path)
	if err != nil {
		return err
	}
	if err := update(r.link, next.ops); err != nil {
		return errors.Join(err, next.remove())
	}
	before := *r
	next.link = r.link
	*r = *next
	return before.remove()
}

// pin loads o as a version below path, the directory of its name. It is not in force yet.
func (o Control) pin(path string) (*registration, error) {
	r := &registration{Control: o, path: path}
	r.elf = nil // a user's code may be large
	var err error
	if r.ops, err = o.load(o.name()); err != nil {
		return nil, err
	}
	if err := r.make(); err != nil {
		return nil, errors.Join(err, r.remove())
	}
	return r, nil
}

// dir is the directory of the version in force.
func (r *registration) dir() string { return filepath.Join(r.path, r.Version) }

func (r *registration) make() error {
	if err := os.Mkdir(r.dir(), 0o700); err != nil {
		return fmt.Errorf("create pin directory: %w", err)
	}
	err := errors.Join(r.setFact(sourceFact, r.Source, r.User), r.setFact(ecnFact, "needed", r.NeedsECN), r.setFact(autoFact, "yes", r.forAuto()))
	if err != nil {
		return err
	}
	if err := r.ops.Pin(filepath.Join(r.dir(), opsPin)); err != nil {
		return fmt.Errorf("pin map: %w", err)
	}
	return nil
}

// setByName changes whether a user's control is only for rules that name it.
func (r *registration) setByName(byName bool) error {
	if !r.User || byName == r.ByName {
		return nil
	}
	if err := r.setFact(autoFact, "yes", !byName); err != nil {
		return err
	}
	r.ByName = byName
	return nil
}

// setFact stores a fact as a symbolic link, or removes it.
func (r *registration) setFact(fact, value string, holds bool) error {
	path := filepath.Join(r.dir(), fact)
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil && holds {
		err = os.Symlink(value, path)
	}
	if err != nil {
		return fmt.Errorf("record %s: %w", fact, err)
	}
	return nil
}

// adopt opens what is pinned at path, and removes what does not belong to the version in
// force.
func adopt(path string) (*registration, error) {
	r := &registration{path: path}
	var ok bool
	if r.CC, ok = tcp.ParseCC(filepath.Base(path)); !ok {
		return nil, errors.New("no congestion control can have this name")
	}
	if err := r.open(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *registration) open() (err error) {
	if r.link, err = link.LoadPinnedLink(filepath.Join(r.path, linkPin), nil); err != nil {
		return fmt.Errorf("open link: %w", err)
	}
	inForce, err := registers(r.link)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(r.path)
	if err != nil {
		return fmt.Errorf("read pins: %w", err)
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		if err := r.read(entry.Name(), inForce); err == nil {
			continue
		}
		if err := os.RemoveAll(filepath.Join(r.path, entry.Name())); err != nil {
			return fmt.Errorf("remove version %s: %w", entry.Name(), err)
		}
	}
	if r.ops == nil {
		return errors.New("the version in force is not known")
	}
	return nil
}

// read opens the pins of a version if its map has the ID want.
func (r *registration) read(version string, want ebpf.MapID) error {
	dir := filepath.Join(r.path, version)
	ops, err := ebpf.LoadPinnedMap(filepath.Join(dir, opsPin), nil)
	if err != nil {
		return fmt.Errorf("open map: %w", err)
	}
	info, err := ops.Info()
	if err != nil {
		return errors.Join(err, ops.Close())
	}
	if id, ok := info.ID(); !ok || id != want {
		return errors.Join(errors.New("it is not in force"), ops.Close())
	}
	fact := func(name string) string {
		value, _ := os.Readlink(filepath.Join(dir, name))
		return value
	}
	r.Version, r.ops = version, ops
	r.Source, r.NeedsECN, r.ByName = fact(sourceFact), fact(ecnFact) != "", fact(autoFact) == ""
	r.User = r.Source != ""
	return nil
}

// remove removes the version's pins, and closes its map.
func (r *registration) remove() error {
	err := r.ops.Close()
	if gone := os.RemoveAll(r.dir()); gone != nil {
		err = errors.Join(err, fmt.Errorf("remove version %s: %w", r.Version, gone))
	}
	return err
}

// removePins removes a control's directory, the link first: without the link the rest has
// no effect.
func removePins(path string) error {
	err := os.Remove(filepath.Join(path, linkPin))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.RemoveAll(path)
	}
	if err != nil {
		return fmt.Errorf("remove pins of %s: %w", filepath.Base(path), err)
	}
	return nil
}

// close closes the link before the map: the kernel counts handles of the map.
func (r *registration) close() error {
	var errs []error
	if r.link != nil {
		errs = append(errs, r.link.Close())
	}
	if r.ops != nil {
		errs = append(errs, r.ops.Close())
	}
	return errors.Join(errs...)
}
