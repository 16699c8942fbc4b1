package e2e

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/tcpilot/tcpilot/lab/load"
)

// Offsets and values of include/uapi/linux/bpf.h, struct bpf_sock_ops.
const (
	sockOpsOp      = 0
	sockOpsCBFlags = 84

	opActiveEstablished = 4 // BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB
	opRTT               = 12
	flagRTT             = 1 << 3 // BPF_SOCK_OPS_RTT_CB_FLAG
	opHeaderOptions     = 14     // BPF_SOCK_OPS_HDR_OPT_LEN_CB
	flagHeaderOptions   = 1 << 6 // BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG
)

// callbackCounter is a sock_ops program that does not belong to tcpilot: it asks for callbacks
// when a connection is established, and counts them.
func callbackCounter(t testing.TB, cgroup string, op, flag int32) (calls func() uint64) {
	t.Helper()
	count, err := ebpf.NewMap(&ebpf.MapSpec{Name: "other_calls", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	must(t, err)
	t.Cleanup(func() { count.Close() })
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "other_sockops", Type: ebpf.SockOps, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadMem(asm.R7, asm.R6, sockOpsOp, asm.Word),
			asm.JEq.Imm(asm.R7, op, "count"),
			asm.JNE.Imm(asm.R7, opActiveEstablished, "exit"),
			asm.LoadMem(asm.R2, asm.R6, sockOpsCBFlags, asm.Word),
			asm.Or.Imm(asm.R2, flag),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.FnSockOpsCbFlagsSet.Call(),
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
		},
	})
	must(t, err)
	t.Cleanup(func() { prog.Close() })
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachCGroupSockOps, Program: prog})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return func() (n uint64) {
		must(t, count.Lookup(uint32(0), &n))
		return n
	}
}

func TestRootCallbacksOfOtherProgramsSurvive(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"other", "tcpilot"} {
		t.Run(first+" attached first", func(t *testing.T) {
			w := newWorld(t, "far")
			// Every callback that tcpilot can ask for, on every connection.
			s := settings{rules: "  - name: lab\n    match: {remote: [10.77.0.0/16]}\n    set: {cc: reno}\n" +
				"    watch: {events: [rto, retransmit, state], share: 100%}\n"}
			var rtts, options func() uint64
			attach := func() {
				rtts = callbackCounter(t, w.cgroup.Path, opRTT, flagRTT)
				options = callbackCounter(t, w.cgroup.Path, opHeaderOptions, flagHeaderOptions)
			}
			if first == "other" {
				attach()
				startTcpilot(t, w, s)
			} else {
				startTcpilot(t, w, s)
				attach()
			}
			r := bulk(t, w.client, load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: 200 * time.Millisecond})
			if r.CCStart != "reno" {
				t.Errorf("connection starts with %s: tcpilot's program did not run", r.CCStart)
			}
			if n := rtts(); n < 3 { // one per round trip, at most 50 ms each
				t.Errorf("another program got %d RTT callbacks of a connection of 200 ms", n)
			}
			if n := options(); n < 100 { // one per packet
				t.Errorf("another program got %d callbacks for header options of a connection of 200 ms", n)
			}
		})
	}
}
