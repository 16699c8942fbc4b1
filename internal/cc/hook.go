package cc

import (
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// txStart is the hook that tells of sending after idling since Linux 7.1, which
// cwnd_event did before: a control has a program for each.
const txStart = "cwnd_event_tx_start"

// dropTxStart takes the program of txStart out of an object where the kernel has no
// such hook: nothing else of the object needs it.
func dropTxStart(spec *ebpf.CollectionSpec, kernel *btf.Struct) {
	if slices.ContainsFunc(kernel.Members, func(m btf.Member) bool { return m.Name == txStart }) {
		return
	}
	maps.DeleteFunc(spec.Programs, func(_ string, p *ebpf.ProgramSpec) bool {
		return p.AttachTo == opsType+":"+txStart
	})
}
