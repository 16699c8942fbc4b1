package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/rtnetlink"
)

// program is a program that is attached to devices.
type program struct {
	name string // in the kernel, and in the names of pins
	at   ebpf.AttachType
	prog *ebpf.Program
	id   ebpf.ProgramID
}

// programs are those for what pods send by veth and by netkit pairs, and for what they receive, and the one of outer devices
// (which lead to other hosts).
type programs struct{ podOut, netkitOut, podIn, wireIn program }

func (p *programs) all() []*program { return []*program{&p.podOut, &p.netkitOut, &p.podIn, &p.wireIn} }

// named are the programs before they are loaded: their names and attach types.
func named() programs {
	return programs{
		podOut:    program{name: "tcpilot_pod_out", at: ebpf.AttachTCXIngress},
		netkitOut: program{name: "tcpilot_nk_out", at: ebpf.AttachNetkitPeer},
		podIn:     program{name: "tcpilot_pod_in", at: ebpf.AttachTCXEgress},
		wireIn:    program{name: "tcpilot_wire_in", at: ebpf.AttachTCXIngress},
	}
}

// out is the program for what a pod sends, and other the one that it replaces. What the program of netkit pairs routes passes
// nothing at the ingress of the host's end, and what it does not route passes in spite of a policy of the pair. So it is for pairs that
// tcpilot-cni made, and where nobody else has programs.
func (p *programs) out(of *pod.Pod, host rtnetlink.Link) (out, other *program) {
	if of.Made && host.Kind == "netkit" && netkitRedirects() && p.netkitOut.isAlone(host.Index) && p.podOut.isAlone(host.Index) {
		return &p.netkitOut, &p.podOut
	}
	return &p.podOut, &p.netkitOut
}

// netkitRedirects reports whether programs at a netkit pair may redirect packets. That crashes Linux 6.11.0 and 6.11.1
// (157f29152b61, "netkit: Assign missing bpf_net_context"), which distributions do not tell apart from later ones.
func netkitRedirects() bool {
	version, err := features.LinuxVersionCode()
	return err == nil && version>>8 != 6<<8|11
}

// marker is the name of a map that each of tcpilot's programs on devices uses. The tag of a program
// differs from build to build; its name alone could be anybody's.
const marker = "pod_devices"

// attach makes sure that the program is attached to a device by a pinned link. The program of an earlier
// process is replaced in place, so that no packet is missed. It is found even if its pin is hidden, because
// another BPF file system was mounted over it. Programs of others stay.
func (l *Links) attach(p *program, ifindex int) error {
	ours, inForce, err := p.attached(ifindex)
	if err != nil {
		return err
	}
	if inForce {
		return nil
	}
	for i, old := range ours {
		if err := l.adopt(p, ifindex, old); err != nil {
			l.log.Warn("program of an earlier tcpilot on a device not taken over", "program", p.name, "device", ifindex, "error", err)
			continue
		}
		l.adopted = true
		return detachAll(slices.Delete(ours, i, i+1))
	}
	created, err := p.link(ifindex)
	if err != nil {
		return fmt.Errorf("attach %s to device %d: %w", p.name, ifindex, err)
	}
	defer created.Close()
	if err := repin(created, l.pin(p, ifindex)); err != nil {
		return err
	}
	return detachAll(ours) // which could not be adopted
}

// isAlone reports whether no program of others is attached where this one would be.
func (p *program) isAlone(ifindex int) bool {
	on, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: p.at})
	return err == nil && !slices.ContainsFunc(on.Programs, func(a link.AttachedProgram) bool { return a.ID != p.id && !isOurs(a.ID, p.name) })
}

func (p *program) link(ifindex int) (link.Link, error) {
	if p.at == ebpf.AttachNetkitPeer {
		return link.AttachNetkit(link.NetkitOptions{Interface: ifindex, Program: p.prog, Attach: p.at})
	}
	return link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: p.prog, Attach: p.at})
}

// attached lists the links by which programs of this name of earlier processes of tcpilot are attached to a device.
// inForce says that the program of this process is attached.
func (p *program) attached(ifindex int) (ours []link.ID, inForce bool, err error) {
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
			ours = append(ours, id)
		}
	}
	return ours, inForce, nil
}

// isOurs reports whether a program is one of tcpilot's, of any version.
func isOurs(id ebpf.ProgramID, name string) bool {
	prog, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return false
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil || info.Name != name {
		return false
	}
	maps, _ := info.MapIDs()
	return slices.ContainsFunc(maps, func(id ebpf.MapID) bool {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return false
		}
		defer m.Close()
		info, err := m.Info()
		return err == nil && info.Name == marker
	})
}

func (l *Links) adopt(p *program, ifindex int, id link.ID) error {
	old, err := link.NewFromID(id)
	if err != nil {
		return err
	}
	defer old.Close()
	if err := old.Update(p.prog); err != nil {
		return err
	}
	return repin(old, l.pin(p, ifindex))
}

func detachAll(ids []link.ID) (errs error) {
	for _, id := range ids {
		old, err := link.NewFromID(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = errors.Join(old.Detach(), old.Close())
		}
		if err != nil {
			errs = errors.Join(errs, fmt.Errorf("detach program of an earlier tcpilot: %w", err))
		}
	}
	return errs
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

func (l *Links) pin(p *program, ifindex int) string {
	return filepath.Join(l.linkPins(), fmt.Sprintf("%s-%d", p.name, ifindex))
}

// unpin removes all pins except those in keep, which detaches their programs.
func (l *Links) unpin(keep map[string]bool) (errs error) {
	pins, err := os.ReadDir(l.linkPins())
	if err != nil {
		return fmt.Errorf("list pins of devices: %w", err)
	}
	for _, pin := range pins {
		path := filepath.Join(l.linkPins(), pin.Name())
		if keep[path] {
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

// eachAttached calls f for each hook of a device of this network namespace that has programs of earlier
// processes of tcpilot. It asks the devices, because the pins may be hidden by a BPF file system that was mounted
// over them.
func (p *programs) eachAttached(f func(p *program, ifindex int, ours []link.ID)) error {
	devices, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	for _, d := range devices {
		for _, one := range p.all() {
			ours, _, err := one.attached(d.Index)
			if err == nil && len(ours) > 0 { // an error: the kernel has no such hook, the device is of another kind or is gone
				f(one, d.Index, ours)
			}
		}
	}
	return nil
}

// removeEarlier detaches the programs that earlier processes left at devices without a pin in keep. It does so
// once for each process.
func (l *Links) removeEarlier(keep map[string]bool) error {
	if l.swept {
		return nil
	}
	var errs []error
	err := l.programs.eachAttached(func(p *program, ifindex int, ours []link.ID) {
		if !keep[l.pin(p, ifindex)] {
			errs = append(errs, detachAll(ours))
		}
	})
	err = errors.Join(append(errs, err)...)
	l.swept = err == nil
	return err
}

// Remove detaches all programs of tcpilot from the devices of this network namespace, and removes the
// pins below dir, to give pods back to the host's stack. It is not an error if there is nothing;
// removed says whether there was anything.
func Remove(dir string) (removed bool, err error) {
	var errs []error
	programs := named()
	err = programs.eachAttached(func(_ *program, _ int, ours []link.ID) {
		removed = true
		errs = append(errs, detachAll(ours))
	})
	if _, err := os.Stat(dir); err == nil {
		removed = true
	}
	return removed, errors.Join(append(errs, err, os.RemoveAll(dir))...)
}
