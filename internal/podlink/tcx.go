package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// tcx attaches programs by links of tcx (Linux 6.6) and netkit, which are pinned.
type tcx struct{ dir string } // of pins

// loopback is the index of the first device of a network namespace.
const loopback = 1

// hasTCX reports whether the kernel has tcx links.
func hasTCX() bool {
	_, err := link.QueryPrograms(link.QueryOptions{Target: loopback, Attach: ebpf.AttachTCXIngress})
	return !errors.Is(err, ebpf.ErrNotSupported) && !errors.Is(err, unix.EINVAL)
}

// tcxLink is a link of an earlier process. It is found even if its pin is hidden, because another BPF file system was
// mounted over it.
type tcxLink struct {
	id  link.ID
	pin string // where it belongs
}

func (t tcx) pin(at hook) string {
	return filepath.Join(t.dir, fmt.Sprintf("%s-%d", at.program, at.ifindex))
}

func (t tcx) attached(p *program, ifindex int) (ours []attachment, inForce bool, err error) {
	on, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: p.at})
	if err != nil {
		return nil, false, fmt.Errorf("list programs of device %d: %w", ifindex, err)
	}
	for _, a := range on.Programs {
		id, linked := a.LinkID()
		switch {
		case p.prog != nil && a.ID == p.id:
			inForce = true
		case linked && isOurs(a.ID, p.name):
			ours = append(ours, tcxLink{id, t.pin(hook{p.name, ifindex})})
		}
	}
	return ours, inForce, nil
}

func (t tcx) attach(p *program, ifindex int) error {
	created, err := p.link(ifindex)
	if err != nil {
		return err
	}
	defer created.Close()
	return repin(created, t.pin(hook{p.name, ifindex}))
}

func (tcx) try(p *program, ifindex int) error {
	created, err := p.link(ifindex)
	if err != nil {
		return err
	}
	return created.Close()
}

func (p *program) link(ifindex int) (link.Link, error) {
	if p.at == ebpf.AttachNetkitPeer {
		return link.AttachNetkit(link.NetkitOptions{Interface: ifindex, Program: p.prog, Attach: p.at})
	}
	return link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: p.prog, Attach: p.at})
}

// isAlone reports whether no program of others is attached where this one would be.
func (p *program) isAlone(ifindex int) bool {
	on, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: p.at})
	return err == nil && !slices.ContainsFunc(on.Programs, func(a link.AttachedProgram) bool { return a.ID != p.id && !isOurs(a.ID, p.name) })
}

func (old tcxLink) replace(p *program) error {
	l, err := link.NewFromID(old.id)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.Update(p.prog); err != nil {
		return err
	}
	return repin(l, old.pin)
}

func (old tcxLink) detach() error {
	l, err := link.NewFromID(old.id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(l.Detach(), l.Close())
}

// repin pins a link at a path, in place of another link if there is one. It pins the link under another
// name first and then renames the pin, so that at any time one of the two links has a pin: without any, the
// program would be detached when the process ends.
func repin(l link.Link, path string) error {
	next := path + "-next" // a name with a dot is refused
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old pin: %w", err)
	}
	if err := l.Pin(next); err != nil {
		return fmt.Errorf("pin link: %w", err)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("pin link: %w", err)
	}
	return nil
}

// trim removes all pins except those to keep, also of earlier processes, which detaches their programs.
func (t tcx) trim(_, keep map[hook]bool) (errs error) {
	kept := map[string]bool{}
	for at := range keep {
		kept[t.pin(at)] = true
	}
	pins, err := os.ReadDir(t.dir)
	if err != nil {
		return fmt.Errorf("list pins of devices: %w", err)
	}
	for _, pin := range pins {
		path := filepath.Join(t.dir, pin.Name())
		if kept[path] {
			continue
		}
		// Without this, the kernel detaches the program some time after the last pin is removed.
		if pinned, err := link.LoadPinnedLink(path, nil); err == nil {
			_ = pinned.Detach() // fails if the device is gone
			_ = pinned.Close()
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = errors.Join(errs, fmt.Errorf("remove pin of device: %w", err))
		}
	}
	return errs
}
