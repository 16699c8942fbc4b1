// Package progstats reads what BPF programs in the kernel have cost. It refuses to load them
// or to keep them there.
package progstats

import (
	"time"

	"github.com/cilium/ebpf"
)

// Stats says what one program has cost. The counts are 0 unless the kernel's bpf_stats_enabled
// is on.
type Stats struct {
	Name     string
	ID       uint32
	RunCount uint64
	RunTime  time.Duration
}

// Of describes the program of an id. It has no name if there is no such program.
func Of(id uint32) Stats {
	out := Stats{ID: id}
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return out
	}
	defer p.Close()
	if info, err := p.Info(); err == nil {
		out.Name = info.Name
	}
	if st, err := p.Stats(); err == nil {
		out.RunCount, out.RunTime = st.RunCount, st.Runtime
	}
	return out
}
