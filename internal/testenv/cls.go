package testenv

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ClsProgram is a program (BPF_PROG_TYPE_SCHED_CLS) at a hook of a device.
type ClsProgram struct {
	Name string
	ID   ebpf.ProgramID
	By   uint64 // id of its link; of a filter, priority and handle
}

// HasTCX reports whether the kernel has tcx links (Linux 6.6).
func HasTCX(t testing.TB) bool {
	t.Helper()
	Root(t)
	_, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachTCXIngress})
	return err == nil
}

// ClsPrograms lists the programs at a hook of a device of the calling thread's network namespace, in the order in which
// they run: those of tcx links or netkit, and of filters on a kernel without these.
func ClsPrograms(t testing.TB, ifindex int, at ebpf.AttachType) (list []ClsProgram) {
	t.Helper()
	if !HasTCX(t) {
		return ClsFilters(t, ifindex, at)
	}
	on, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: at})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range on.Programs {
		id, _ := p.LinkID()
		list = append(list, ClsProgram{programName(t, p.ID), p.ID, uint64(id)})
	}
	return list
}

// ClsFilters is ClsPrograms for filters only.
func ClsFilters(t testing.TB, ifindex int, at ebpf.AttachType) (list []ClsProgram) {
	t.Helper()
	device, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		t.Fatal(err)
	}
	filters, err := netlink.FilterList(device, parentOf(at))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range filters {
		if f, ok := f.(*netlink.BpfFilter); ok && f.Id != 0 { // 0: a priority, not a filter
			id := ebpf.ProgramID(f.Id)
			list = append(list, ClsProgram{programName(t, id), id, uint64(f.Priority)<<32 | uint64(f.Handle)})
		}
	}
	return list
}

func parentOf(at ebpf.AttachType) uint32 {
	if at == ebpf.AttachTCXEgress {
		return netlink.HANDLE_MIN_EGRESS
	}
	return netlink.HANDLE_MIN_INGRESS
}

func programName(t testing.TB, id ebpf.ProgramID) string {
	t.Helper()
	prog, err := ebpf.NewProgramFromID(id)
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		t.Fatal(err)
	}
	return info.Name
}

// priorities numbers the filters of this process, so that they run in the order in which they were attached.
var priorities atomic.Uint32

// AttachCls attaches a program of somebody else's to a hook of a device of the calling thread's network namespace
// until the test ends, or detach is called: by a tcx link, or as a filter on a kernel without these.
func AttachCls(t testing.TB, ifindex int, prog *ebpf.Program, at ebpf.AttachType) (detach func()) {
	t.Helper()
	if !HasTCX(t) {
		return AttachFilter(t, ifindex, prog, at, uint16(priorities.Add(1)), 1)
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: prog, Attach: at})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// AttachFilter is AttachCls for a filter, with a priority and a handle. It adds the qdisc clsact
// if there is none, and leaves it.
func AttachFilter(t testing.TB, ifindex int, prog *ebpf.Program, at ebpf.AttachType, priority uint16, handle uint32) (detach func()) {
	t.Helper()
	AddClsact(t, ifindex)
	f := &netlink.BpfFilter{DirectAction: true, Fd: prog.FD(), Name: "other", FilterAttrs: netlink.FilterAttrs{
		LinkIndex: ifindex, Parent: parentOf(at), Priority: priority, Handle: handle, Protocol: unix.ETH_P_ALL}}
	if err := netlink.FilterAdd(f); err != nil {
		t.Fatalf("add filter: %v", err)
	}
	return func() {
		if err := netlink.FilterDel(f); err != nil {
			t.Error(err)
		}
	}
}

// AddClsact adds the qdisc clsact to a device of the calling thread's network namespace, unless it is there.
func AddClsact(t testing.TB, ifindex int) {
	t.Helper()
	err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		t.Fatalf("add qdisc clsact: %v", err)
	}
}

// PassingProgram is a program of somebody else's that passes all packets on to those that run after it.
func PassingProgram(t testing.TB, name string) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return prog
}
