package cc

import (
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// txStart is the hook by which Linux 7.1 and later report that a socket sends again after
// nothing was in flight. Earlier kernels report it by cwnd_event: a control has a program for
// each.
const txStart = "cwnd_event_tx_start"

// dropTxStart removes the program of txStart from an object if the kernel has no such
// hook: nothing else in the object needs it.
func dropTxStart(spec *ebpf.CollectionSpec, kernel *btf.Struct) {
	if slices.ContainsFunc(kernel.Members, func(m btf.Member) bool { return m.Name == txStart }) {
		return
	}
	maps.DeleteFunc(spec.Programs, func(_ string, p *ebpf.ProgramSpec) bool {
		return p.AttachTo == opsType+":"+txStart
	})
}
