package podlink

import (
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// BenchmarkRootRouteCost is the run time of the programs for a packet of a request or reply of one byte, from a pod to another
// node, from there to the pod, and from there to the node itself, and for all packets of a short connection of a pod, as the
// kernel's own statistics have it. With a clock that counts instructions (test/vm/gotest -i), it is their number.
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
			b.ReportMetric(out().each, "ns/out-"+family.name)
			b.ReportMetric(in().each, "ns/in-"+family.name)
		}
		others := spent(b, r.links.objs.TcpilotWireIn)
		turns(b, r.node.NS, r.far.NS, netip.MustParseAddr("10.2.0.2"))
		b.ReportMetric(others().each, "ns/not-for-a-pod")
		for _, family := range families {
			const connections = 500
			out, in := spent(b, r.links.objs.TcpilotPodOut), spent(b, r.links.objs.TcpilotWireIn)
			shortConnections(b, r.a.NS, r.c.NS, family.of(r.c), connections)
			b.ReportMetric((out().all+in().all)/connections, "ns/connection-"+family.name)
		}
	}
}

// shortConnections begins and ends connections one after the other, each with one byte and its answer.
func shortConnections(b *testing.B, from, to *testenv.NS, address netip.Addr, n int) {
	b.Helper()
	l := to.Listen(b, "tcp", netip.AddrPortFrom(address, 5003).String())
	defer l.Close()
	go serve(l, func(c net.Conn) {
		answer := make([]byte, 1)
		_, _ = c.Read(answer)
		_, _ = c.Write(answer)
	})
	from.Do(b, func() {
		for range n {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			_, _ = c.Write([]byte("x"))
			_, err = io.ReadAll(c)
			_ = c.Close()
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}

// runTime is that of a program: of all its runs, and of each, ns.
type runTime struct{ all, each float64 }

// spent begins to measure a program; the function that it returns tells its run time since then.
func spent(b *testing.B, p *ebpf.Program) func() runTime {
	b.Helper()
	read := func() *ebpf.ProgramStats {
		s, err := p.Stats()
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	before := read()
	return func() runTime {
		after := read()
		all := float64(after.Runtime - before.Runtime)
		return runTime{all, all / float64(after.RunCount-before.RunCount)}
	}
}
