package podlink

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/rtnetlink"
)

// program is a program that is attached to devices.
type program struct {
	name string // in the kernel, and in the names of pins and filters
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

// way is one of the two ways in which kernels attach programs to devices.
type way interface {
	// attached lists how programs of this name of earlier processes of tcpilot are attached to a device.
	// inForce says that the program of this process is.
	attached(p *program, ifindex int) (ours []attachment, inForce bool, err error)
	// attach attaches a program so that it stays without this process.
	attach(p *program, ifindex int) error
	// trim detaches the programs of this process from all hooks that are in held and not in keep.
	trim(held, keep map[hook]bool) error
	// try attaches a program to a device of a network namespace that is about to end.
	try(p *program, ifindex int) error
}

// attachment is how a program of tcpilot is attached to a device.
type attachment interface {
	replace(p *program) error // in place, so that no packet is missed
	detach() error
}

// hook is a place for a program at a device, by its name.
type hook struct {
	program string
	ifindex int
}

// wayOf is the way in which this kernel attaches programs. dir is the directory for pins of links.
func wayOf(dir string) way {
	if hasTCX() {
		return tcx{dir}
	}
	return filters{}
}

// WithoutTCX says how this kernel attaches programs to devices because it has no tcx links; empty if it has them.
func WithoutTCX() string {
	if hasTCX() {
		return ""
	}
	return "by tc filters (cls_bpf): this kernel has no tcx links (Linux 6.6)"
}

// marker is the name of a map that each of tcpilot's programs on devices uses. The tag of a program
// differs from build to build; its name alone could be anybody's.
const marker = "pod_devices"

// attach makes sure that the program is attached to a device. The program of an earlier process is replaced in
// place, so that no packet is missed. Programs of others stay.
func (l *Links) attach(p *program, ifindex int) error {
	at := hook{p.name, ifindex}
	ours, inForce, err := l.way.attached(p, ifindex)
	if err != nil {
		return err
	}
	if inForce {
		l.held[at] = true
		return nil
	}
	for i, old := range ours {
		if err := old.replace(p); err != nil {
			l.log.Warn("program of an earlier tcpilot on a device not taken over", "program", p.name, "device", ifindex, "error", err)
			continue
		}
		l.adopted, l.held[at] = true, true
		return detachAll(slices.Delete(ours, i, i+1))
	}
	if err := l.way.attach(p, ifindex); err != nil {
		return fmt.Errorf("attach %s to device %d: %w", p.name, ifindex, err)
	}
	if l.held[at] {
		l.log.Warn("somebody else removed a program of tcpilot from a device; it is attached again", "program", p.name, "device", ifindex)
	}
	l.held[at] = true
	return detachAll(ours) // which could not be adopted
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

func detachAll(list []attachment) (errs error) {
	for _, old := range list {
		if err := old.detach(); err != nil {
			errs = errors.Join(errs, fmt.Errorf("detach program of an earlier tcpilot: %w", err))
		}
	}
	return errs
}

// eachAttached calls f for each hook of a device of this network namespace that has programs of earlier
// processes of tcpilot. It asks the devices, because the pins may be hidden by a BPF file system that was mounted
// over them, and filters have none.
func (p *programs) eachAttached(by way, f func(at hook, ours []attachment)) error {
	devices, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	for _, d := range devices {
		for _, one := range p.all() {
			ours, _, err := by.attached(one, d.Index)
			if err == nil && len(ours) > 0 { // an error: the kernel has no such hook, the device is of another kind or is gone
				f(hook{one.name, d.Index}, ours)
			}
		}
	}
	return nil
}

// removeEarlier detaches the programs that earlier processes left at hooks that are not in keep. It does so
// once for each process.
func (l *Links) removeEarlier(keep map[hook]bool) error {
	if l.swept {
		return nil
	}
	var errs []error
	err := l.programs.eachAttached(l.way, func(at hook, ours []attachment) {
		if !keep[at] {
			errs = append(errs, detachAll(ours))
		}
	})
	err = errors.Join(append(errs, err)...)
	l.swept = err == nil
	return err
}
