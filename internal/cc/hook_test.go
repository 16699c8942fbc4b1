package cc

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/progstats"
)

// TestDropTxStart: a program for the hook is dropped if the kernel has no such hook, and
// nothing else is.
func TestDropTxStart(t *testing.T) {
	for _, c := range []struct {
		hooks []string
		want  int
	}{
		{[]string{"ssthresh", "cwnd_event"}, 2},
		{[]string{"ssthresh", "cwnd_event", txStart}, 3},
	} {
		kernel := &btf.Struct{Name: opsType}
		for _, hook := range c.hooks {
			kernel.Members = append(kernel.Members, btf.Member{Name: hook})
		}
		spec := &ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{}}
		for _, hook := range []string{"ssthresh", "cwnd_event", txStart} {
			spec.Programs["x_"+hook] = &ebpf.ProgramSpec{AttachTo: opsType + ":" + hook}
		}
		dropTxStart(spec, kernel)
		if len(spec.Programs) != c.want || spec.Programs["x_cwnd_event"] == nil {
			t.Errorf("with %v: %d programs are left, want %d", c.hooks, len(spec.Programs), c.want)
		}
	}
}

// TestRootIdleRestart: controls that act when a connection sends after idling are called
// then, by the hook that this kernel has for it.
func TestRootIdleRestart(t *testing.T) {
	r := newEmbeddedRig(t)
	kernel, err := kernelOps()
	must(t, err)
	hook := "cwnd_event"
	if slices.ContainsFunc(kernel.Members, func(m btf.Member) bool { return m.Name == txStart }) {
		hook = txStart
	}
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	must(t, err)
	defer stats.Close()
	for _, name := range []string{"bbr3", "cubic"} {
		must(t, r.Load(t.Context(), "test_"+name))
		c, s := r.pair(t, "test_"+name)
		const times = 5
		for range times {
			exchange(t, c, s, 1000)
			eventually(t, func() error { // idle before the next
				if n := tcpInfo(t, c).Unacked; n != 0 {
					return fmt.Errorf("%d packets are not acknowledged", n)
				}
				return nil
			})
		}
		row := r.row(t, "test_"+name)
		i := slices.IndexFunc(row.Programs, func(p progstats.Stats) bool { return p.Name == name+"_"+hook })
		if i < 0 || row.Programs[i].RunCount < times {
			t.Errorf("%s: %s did not run %d times: %+v", name, hook, times, row.Programs)
		}
	}
}
