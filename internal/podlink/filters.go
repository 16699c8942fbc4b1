package podlink

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/rtnetlink"
)

// filters attaches programs as tc filters (cls_bpf), for kernels before tcx. The kernel keeps a filter until it is removed, or
// the device or its qdisc clsact is. The filter has a priority and a handle, by which the next process finds it, and a
// text, which says whether tcpilot added the qdisc.
type filters struct{}

// withClsact is the end of a filter's text if tcpilot added the device's qdisc.
const withClsact = "/clsact"

// priorities are those that are tried for a filter, first the last one that the kernel has: filters of others run before, as
// with tcx. Others may use one for another kind or protocol.
var priorities = []uint16{0xffff, 0xfffe, 0xfffd}

// handles of the filters, by the name of their programs: "tcp", and a number.
var handles = map[string]uint32{"tcpilot_pod_out": 0x74637001, "tcpilot_pod_in": 0x74637002, "tcpilot_wire_in": 0x74637003}

// filter is a filter of tcpilot.
type filter struct{ rtnetlink.Filter }

// filterOf is the filter for a program; without a handle if the program is for netkit pairs.
func filterOf(p *program, ifindex int) rtnetlink.Filter {
	f := rtnetlink.Filter{Device: ifindex, Hook: rtnetlink.Ingress, Handle: handles[p.name], Name: p.name}
	if p.at == ebpf.AttachTCXEgress {
		f.Hook = rtnetlink.Egress
	}
	return f
}

// findFilter looks for tcpilot's filter for a program, of this or an earlier process; nil if there is none.
func findFilter(p *program, ifindex int) (*filter, error) {
	at := filterOf(p, ifindex)
	if at.Handle == 0 {
		return nil, nil
	}
	for _, at.Priority = range priorities {
		f, ok, err := rtnetlink.FindFilter(at)
		if err != nil {
			return nil, fmt.Errorf("look for filter of device %d: %w", ifindex, err)
		}
		if ok && (p.inForce(f) || isOurs(ebpf.ProgramID(f.Program), p.name)) {
			return &filter{f}, nil
		}
	}
	return nil, nil
}

// inForce reports whether a filter has the program of this process.
func (p *program) inForce(f rtnetlink.Filter) bool {
	return p.prog != nil && ebpf.ProgramID(f.Program) == p.id
}

func (filters) attached(p *program, ifindex int) (ours []attachment, inForce bool, err error) {
	f, err := findFilter(p, ifindex)
	switch {
	case err != nil || f == nil:
		return nil, false, err
	case p.inForce(f.Filter):
		return nil, true, nil
	}
	return []attachment{f}, false, nil
}

func (filters) attach(p *program, ifindex int) error {
	kind, err := rtnetlink.ClsactOf(ifindex)
	if err != nil {
		return fmt.Errorf("look for qdisc clsact: %w", err)
	}
	f := filterOf(p, ifindex)
	switch {
	case kind == "":
		return addWithClsact(f, p.prog.FD())
	case kind != "clsact" && f.Hook == rtnetlink.Egress:
		return fmt.Errorf("the device has a qdisc %s of somebody else's, which has no hook for packets that leave: tcpilot needs clsact in its place", kind)
	case ownsClsact(ifindex):
		f.Name += withClsact
	}
	for _, f.Priority = range priorities {
		// The priority, or the handle there, is another filter's.
		if err = rtnetlink.AddFilter(f, p.prog.FD()); !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	return wrap("add filter", err)
}

// addWithClsact adds a filter to a device without a qdisc for it. So no filter of others can have its priority.
func addWithClsact(f rtnetlink.Filter, program int) error {
	f.Priority = priorities[0]
	own := f
	own.Name += withClsact
	qdisc, err := rtnetlink.AddFilterAndClsact(own, program)
	switch {
	case errors.Is(qdisc, unix.EEXIST) && err == nil: // somebody else added the qdisc meanwhile
		return wrap("name filter", rtnetlink.ReplaceFilter(f, program))
	case errors.Is(qdisc, unix.EEXIST):
		return wrap("add filter", err)
	case qdisc == nil && err != nil:
		return errors.Join(wrap("add filter (kernel module cls_bpf)", err), rtnetlink.DeleteClsact(f.Device))
	}
	return cmp.Or(wrap("add qdisc clsact (kernel module sch_ingress)", qdisc), err)
}

// ownsClsact reports whether a filter of tcpilot's at a device says that tcpilot added the qdisc.
func ownsClsact(ifindex int) bool {
	programs := named()
	return slices.ContainsFunc(programs.all(), func(p *program) bool {
		f, err := findFilter(p, ifindex)
		return err == nil && f != nil && f.ownsClsact()
	})
}

func (f *filter) ownsClsact() bool { return strings.HasSuffix(f.Name, withClsact) }

func (filters) try(p *program, ifindex int) error { return filters{}.attach(p, ifindex) }

// trim asks only about the hooks that this process has used.
func (filters) trim(held, keep map[hook]bool) (errs error) {
	programs := named()
	for _, p := range programs.all() {
		for at := range held {
			if at.program != p.name || keep[at] {
				continue
			}
			f, err := findFilter(p, at.ifindex)
			if err == nil && f != nil {
				err = f.detach()
			}
			if err != nil && !errors.Is(err, unix.ENODEV) {
				errs = errors.Join(errs, err)
			}
		}
	}
	return errs
}

func (f *filter) replace(p *program) error {
	return wrap("replace program of filter", rtnetlink.ReplaceFilter(f.Filter, p.prog.FD()))
}

// detach removes the filter. With the last filter of a device, it removes the qdisc that tcpilot added; not if the filters cannot be listed.
func (f *filter) detach() error {
	if now, ok, err := rtnetlink.FindFilter(f.Filter); err == nil && (!ok || now.Program != f.Program) {
		return nil // somebody else removed it; what is there now is another one
	}
	remove := rtnetlink.DeleteFilter
	if f.ownsClsact() {
		if alone, err := f.isAlone(); err == nil && alone {
			remove = func(f rtnetlink.Filter) error { return rtnetlink.DeleteClsact(f.Device) }
		}
	}
	err := remove(f.Filter)
	if err == nil {
		return nil
	}
	if _, left, errFind := rtnetlink.FindFilter(f.Filter); errors.Is(errFind, unix.ENODEV) || errFind == nil && !left {
		return nil // somebody else removed it, or the device
	}
	return wrap("remove filter", err)
}

// isAlone reports whether the device has no other filter, of whoever.
func (f *filter) isAlone() (bool, error) {
	alone := true
	for _, hook := range []rtnetlink.Hook{rtnetlink.Ingress, rtnetlink.Egress} {
		err := rtnetlink.EachFilter(f.Device, hook, func(other rtnetlink.Filter) bool {
			alone = other.Hook == f.Hook && other.Priority == f.Priority && other.Handle == f.Handle
			return alone
		})
		if err != nil {
			return false, fmt.Errorf("list filters of device %d: %w", f.Device, err)
		}
		if !alone {
			return false, nil
		}
	}
	return true, nil
}

// wrap says what failed; nil if nothing did.
func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
