package testenv

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Offsets of include/uapi/linux/bpf.h, struct bpf_sock_ops.
const (
	sockOpsOp      = 0
	sockOpsCBFlags = 84
)

// CountCallbacks attaches a sock_ops program to a cgroup, as somebody else's beside tcpilot's, which counts the
// callbacks with op (unix.BPF_SOCK_OPS_..._CB). It asks for those of flag when a connection is established
// (unix.BPF_SOCK_OPS_..._CB_FLAG); 0: for none.
func CountCallbacks(t testing.TB, cgroup string, op, flag int32) (calls func() uint64) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("count callbacks: %v", err)
		}
	}
	count, err := ebpf.NewMap(&ebpf.MapSpec{Name: "other_calls", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	check(err)
	t.Cleanup(func() { count.Close() })
	code := asm.Instructions{
		asm.LoadMem(asm.R7, asm.R1, sockOpsOp, asm.Word),
		asm.JEq.Imm(asm.R7, op, "count"),
	}
	if flag != 0 {
		code = append(code,
			asm.JNE.Imm(asm.R7, unix.BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, "exit"),
			asm.LoadMem(asm.R2, asm.R1, sockOpsCBFlags, asm.Word),
			asm.Or.Imm(asm.R2, flag),
			asm.FnSockOpsCbFlagsSet.Call(),
		)
	}
	code = append(code,
		asm.Ja.Label("exit"),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word).WithSymbol("count"),
		asm.LoadMapPtr(asm.R1, count.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "exit"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("exit"),
		asm.Return(),
	)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "other_sockops", Type: ebpf.SockOps, AttachType: ebpf.AttachCGroupSockOps, License: "Dual BSD/GPL", Instructions: code,
	})
	check(err)
	t.Cleanup(func() { prog.Close() })
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachCGroupSockOps, Program: prog})
	check(err)
	t.Cleanup(func() { l.Close() })
	return func() (n uint64) {
		t.Helper()
		check(count.Lookup(uint32(0), &n))
		return n
	}
}
