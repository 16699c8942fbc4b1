package podlink

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// BenchmarkRootRouteCost is the run time of the programs for a packet of a request or reply of one byte, from a pod to another
// node, from there to the pod, and from there to the node itself, as the kernel's own statistics have it. With a clock that counts
// instructions (test/vm/gotest -i), it is their number.
func BenchmarkRootRouteCost(b *testing.B) {
	r := newRig(b)
	r.open()
	r.set(r.wanted())
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	families := []struct {
		name string
		of   func(*testenv.Pod) netip.Addr
	}{
		{"v4", func(p *testenv.Pod) netip.Addr { return p.V4 }},
		{"v6", func(p *testenv.Pod) netip.Addr { return p.V6 }},
	}
	for b.Loop() {
		for _, family := range families {
			out, in := spent(b, r.links.objs.TcpilotPodOut), spent(b, r.links.objs.TcpilotWireIn)
			turns(b, r.a.NS, r.c.NS, family.of(r.c))
			b.ReportMetric(out(), "ns/out-"+family.name)
			b.ReportMetric(in(), "ns/in-"+family.name)
		}
		others := spent(b, r.links.objs.TcpilotWireIn)
		turns(b, r.node.NS, r.far.NS, netip.MustParseAddr("10.2.0.2"))
		b.ReportMetric(others(), "ns/not-for-a-pod")
	}
}

// spent begins to measure a program; the function that it returns is the mean time of a run since then, ns.
func spent(b *testing.B, p *ebpf.Program) func() float64 {
	b.Helper()
	read := func() *ebpf.ProgramStats {
		s, err := p.Stats()
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	before := read()
	return func() float64 {
		after := read()
		return float64(after.Runtime-before.Runtime) / float64(after.RunCount-before.RunCount)
	}
}
