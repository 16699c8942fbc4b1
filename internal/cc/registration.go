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
)

// registration is a control that sockets may be given. Its pins are in a directory
// called like it:
//
//	link             registers the control as long as it exists
//	VERSION/ops      map of the control, which counts the sockets
//	VERSION/source   -> file of a user's own
//	VERSION/ecn      -> "needed"
//	VERSION/auto     -> "yes"
//
// Pinning the link puts the first version in force, updating it another, each with
// one call; adopt clears what was done before that call, or was left after it. A BPF
// file system takes symbolic links, but no files.
type registration struct {
	name string
	path string
	link link.Link
	now  *edition // in force
}

// edition is one version of a control.
type edition struct {
	version  string
	source   string // of a user's own; empty for ours
	needsECN bool
	auto     bool // a user's own that is for more than the rules which name it
	path     string
	ops      *ebpf.Map
}

const (
	linkPin    = "link"
	opsPin     = "ops"
	sourceFact = "source"
	ecnFact    = "ecn"
	autoFact   = "auto"
)

// register loads o, registers it and pins it under dir. What somebody else has
// registered is not loaded first: that takes long, and the kernel refuses it anyway.
func register(dir string, o object) (*registration, error) {
	if there, err := isRegistered(o.name); err == nil && there {
		return nil, explainAttach(unix.EEXIST)
	}
	r := &registration{name: o.name, path: filepath.Join(dir, o.name)}
	if err := os.Mkdir(r.path, 0o700); err != nil {
		return nil, fmt.Errorf("create pin directory: %w", err)
	}
	if err := r.make(o); err != nil {
		return nil, errors.Join(err, removePins(r.path), r.close())
	}
	return r, nil
}

func (r *registration) make(o object) (err error) {
	if r.now, err = o.pin(r.path); err != nil {
		return err
	}
	if r.link, err = attach(r.now.ops); err != nil {
		return err
	}
	if err := r.link.Pin(filepath.Join(r.path, linkPin)); err != nil {
		return fmt.Errorf("pin link: %w", err)
	}
	return nil
}

// replace puts another version in force. Sockets keep the one that they have.
func (r *registration) replace(o object) error {
	next, err := o.pin(r.path)
	if err != nil {
		return err
	}
	if err := update(r.link, next.ops); err != nil {
		return errors.Join(err, next.remove())
	}
	before := r.now
	r.now = next
	return before.remove()
}

// pin loads o as a version below the directory of its name, in force or not.
func (o object) pin(dir string) (*edition, error) {
	e := &edition{version: o.version, needsECN: o.needsECN, path: filepath.Join(dir, o.version)}
	if o.user {
		e.source = o.source
	}
	var err error
	if e.ops, err = o.load(o.name); err != nil {
		return nil, err
	}
	if err := e.make(o.auto); err != nil {
		return nil, errors.Join(err, e.remove())
	}
	return e, nil
}

func (e *edition) make(auto bool) error {
	if err := os.Mkdir(e.path, 0o700); err != nil {
		return fmt.Errorf("create pin directory: %w", err)
	}
	if err := errors.Join(e.note(sourceFact, e.source, e.source != ""), e.note(ecnFact, "needed", e.needsECN), e.setAuto(auto)); err != nil {
		return err
	}
	if err := e.ops.Pin(filepath.Join(e.path, opsPin)); err != nil {
		return fmt.Errorf("pin map: %w", err)
	}
	return nil
}

func (e *edition) setAuto(auto bool) error {
	if auto == e.auto {
		return nil
	}
	if err := e.note(autoFact, "yes", auto); err != nil {
		return err
	}
	e.auto = auto
	return nil
}

// note makes a fact last, or ends it.
func (e *edition) note(fact, value string, holds bool) error {
	path := filepath.Join(e.path, fact)
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil && holds {
		err = os.Symlink(value, path)
	}
	if err != nil {
		return fmt.Errorf("note %s: %w", fact, err)
	}
	return nil
}

// adopt opens what is pinned at path, and clears what does not belong to the
// version in force.
func adopt(path string) (*registration, error) {
	r := &registration{name: filepath.Base(path), path: path}
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
		path := filepath.Join(r.path, entry.Name())
		if e, err := readEdition(path, inForce); err == nil {
			r.now = e
		} else if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove version %s: %w", entry.Name(), err)
		}
	}
	if r.now == nil {
		return errors.New("the version in force is not known")
	}
	return nil
}

// readEdition opens what is pinned at path if it is the control whose map is known
// to the kernel as want.
func readEdition(path string, want ebpf.MapID) (*edition, error) {
	e := &edition{version: filepath.Base(path), path: path}
	var err error
	if e.ops, err = ebpf.LoadPinnedMap(filepath.Join(path, opsPin), nil); err != nil {
		return nil, fmt.Errorf("open map: %w", err)
	}
	info, err := e.ops.Info()
	if err != nil {
		return nil, errors.Join(err, e.ops.Close())
	}
	if id, ok := info.ID(); !ok || id != want {
		return nil, errors.Join(errors.New("it is not in force"), e.ops.Close())
	}
	fact := func(name string) string {
		value, _ := os.Readlink(filepath.Join(path, name))
		return value
	}
	e.source, e.needsECN, e.auto = fact(sourceFact), fact(ecnFact) != "", fact(autoFact) != ""
	return e, nil
}

// remove takes the version's pins away, and closes it.
func (e *edition) remove() error {
	err := e.ops.Close()
	if gone := os.RemoveAll(e.path); gone != nil {
		err = errors.Join(err, fmt.Errorf("remove version %s: %w", e.version, gone))
	}
	return err
}

// removePins removes a control's directory, the link first: without it the rest
// does nothing.
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
	if r.now != nil {
		errs = append(errs, r.now.ops.Close())
	}
	return errors.Join(errs...)
}
