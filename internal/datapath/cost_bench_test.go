package datapath

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/limit"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// BenchmarkRootCostPieces measures what each piece of the programs costs a connection,
// both ends, by the kernel's own run-time statistics: the difference between two set-ups
// of which one has the piece. The statistics add some 50 ns to each of 11 calls; this is
// most of the cost of an empty program, and cancels out in differences. Set-ups take
// turns; medians.
//
//	go test ./internal/datapath -run '^$' -bench CostPieces -benchtime 20x
func BenchmarkRootCostPieces(b *testing.B) {
	r := newRig(b)
	empty := emptySockops(b, r.cg.Path)
	l := listen(b, r.ns, "127.0.0.1:0", nil)
	go acceptAll(l)
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	must(b, err)
	defer stats.Close()
	setups := []struct {
		piece string
		lease time.Duration
		table class.Table
		row   func() // the policy
		rate  uint32
	}{
		{"no-lease", -time.Second, oneClass, func() {}, 1},
		{"classify", time.Minute, class.Table{Classes: []class.Class{{ID: 1, Leave: true}}}, func() {}, 1},
		{"followed-or-not", time.Minute, oneClass, func() {}, 1},
		{"policy-look-up", time.Minute, oneClass, func() { r.rows(b, time.Now().Add(time.Hour), sliced(theDefault(1<<16))) }, 1},
		{"draws-and-state", time.Minute, oneClass, func() { r.rows(b, time.Now().Add(time.Hour), followAll(sliced(theDefault(1<<16)))) }, 1},
		{"setsockopt", time.Minute, oneClass, func() { r.rows(b, time.Now().Add(time.Hour), sliced(arm("reno", 1<<16))) }, 1},
		{"report", time.Minute, oneClass, func() { r.rows(b, time.Now().Add(time.Hour), sliced(arm("reno", 1<<16))) }, 0},
	}
	const block = 500
	cost := make([][]float64, len(setups))
	var none []float64
	for b.Loop() {
		for i, s := range setups {
			must(b, r.DeletePoliciesExcept(func(uint32) bool { return false }))
			s.row()
			r.rules(b, s.table)
			must(b, r.SetSettings(Settings{ReportRate: s.rate}))
			must(b, r.SetLease(s.lease))
			r.connections(b, l.Addr().String(), 40) // closes a window: from now on ends are thinned
			before, emptyBefore := runtimeOf(b, r), empty(b)
			r.connections(b, l.Addr().String(), block)
			cost[i] = append(cost[i], float64(runtimeOf(b, r)-before)/block)
			none = append(none, float64(empty(b)-emptyBefore)/block)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(medianFloat(none), "ns/conn-empty")
	for i, s := range setups {
		got := medianFloat(cost[i])
		b.Logf("%-16s %6.0f ns a connection", s.piece, got)
		if i > 0 {
			got -= medianFloat(cost[i-1])
		}
		b.ReportMetric(got, "ns/conn-"+s.piece)
	}
}

var oneClass = class.Table{Classes: []class.Class{{ID: 1}}}

// BenchmarkRootAdaptedCost measures what adapted fields cost a connection, both ends, as BenchmarkRootCostPieces does:
// the difference from a connection that gets nothing. The setup `followed` gets nothing either, but has state.
//
//	go test ./internal/datapath -run '^$' -bench AdaptedCost -benchtime 20x
func BenchmarkRootAdaptedCost(b *testing.B) {
	r := newRig(b)
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	must(b, err)
	defer stats.Close()
	const block = 500
	def := arms(theDefault(1 << 16))
	adapted := func(fields ...tcp.Field) func(*path.Policy) {
		return func(p *path.Policy) {
			def(p)
			for _, f := range fields {
				p.Params.Set(f, 250)
				p.Adapted |= 1 << f
			}
		}
	}
	setups := []struct {
		name    string
		adapted uint64
		policy  func(*path.Policy)
	}{
		{"nothing", 0, def},
		{"followed", 0, followAll(def)},
		{"losses-watched", 0, func(p *path.Policy) { def(p); p.WatchLosses = true }},
		{"syn-timeout", 1 << tcp.SynRTO, adapted(tcp.SynRTO)},
		{"syn-timeouts", 1<<tcp.SynRTO | 1<<tcp.SynAckRTO, adapted(tcp.SynRTO, tcp.SynAckRTO)},
		{"rto-min", 0, rtoMin(50_000)},
		{"peer-option", 1 << tcp.PeerOption, peerOption(10_000)},
	}
	cost := make([][]float64, len(setups))
	r.rules(b, oneClass)
	for b.Loop() {
		for i, s := range setups {
			r.policy(b, s.policy)
			must(b, r.SetSettings(Settings{Adapted: s.adapted, ReportRate: 1}))
			l := listen(b, r.ns, "127.0.0.1:0", nil)
			go acceptAll(l)
			r.connections(b, l.Addr().String(), 40)
			before := runtimeOf(b, r)
			r.connections(b, l.Addr().String(), block)
			cost[i] = append(cost[i], float64(runtimeOf(b, r)-before)/block)
			must(b, l.Close())
		}
	}
	b.ReportMetric(0, "ns/op")
	for i, s := range setups {
		b.ReportMetric(medianFloat(cost[i])-medianFloat(cost[0]), "ns/conn-"+s.name)
	}
}

// BenchmarkRootNetNSLimitCost measures what limits of network namespaces cost a connection that no rule matches, both ends, as
// BenchmarkRootCostPieces does: no namespace has one, another one has, its own has.
//
//	go test ./internal/datapath -run '^$' -bench NetNSLimitCost -benchtime 20x
func BenchmarkRootNetNSLimitCost(b *testing.B) {
	r := newRig(b)
	addAddresses(b, r.ns)
	r.ns.IP(b, "route replace local 192.0.2.1 dev lo table local src 192.0.2.2") // the source of connections to it
	r.rules(b, noRules)
	cookie, err := netns.Cookie(r.ns.Path())
	must(b, err)
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	must(b, err)
	defer stats.Close()
	l := listen(b, r.ns, "192.0.2.1:0", nil)
	go acceptAll(l)
	const block = 500
	some := limit.Limit{Connection: 1e9}
	setups := []struct {
		name   string
		limits map[uint64]limit.Limit
	}{{"none", nil}, {"another", map[uint64]limit.Limit{1 << 60: some}}, {"own", map[uint64]limit.Limit{cookie: some}}}
	cost := make([][]float64, len(setups))
	for b.Loop() {
		for i, s := range setups {
			must(b, r.SetLimits(nil, s.limits))
			before := runtimeOf(b, r)
			r.connections(b, l.Addr().String(), block)
			cost[i] = append(cost[i], float64(runtimeOf(b, r)-before)/block)
		}
	}
	b.ReportMetric(0, "ns/op")
	for i, s := range setups {
		b.ReportMetric(medianFloat(cost[i]), "ns/conn-"+s.name)
	}
}

// sliced is the policy of one arm, with slices and both kinds of hold-out, none of which
// is ever drawn.
func sliced(a path.Arm) func(*path.Policy) {
	return func(p *path.Policy) {
		arms(a)(p)
		p.Slice, p.HoldOut, p.HoldSlices = 30, 1, 1
	}
}

// rows is a policy for the class, for a network and for the host.
func (r *rig) rows(b *testing.B, expires time.Time, change func(*path.Policy)) {
	b.Helper()
	for _, p := range []netip.Prefix{prefix("127.0.0.0/24"), prefix("127.0.0.1/32"), prefix("10.0.0.0/8")} {
		r.policyOf(b, path.Key{Class: 1, Prefix: p}, expires, change)
	}
	r.policyOf(b, path.Root(1, 0), expires, change)
}

func acceptAll(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_ = c.Close()
	}
}

// emptySockops attaches a program that does nothing, and tells its run time.
func emptySockops(b *testing.B, cgroup string) func(*testing.B) time.Duration {
	b.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SockOps, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
	must(b, err)
	b.Cleanup(func() { must(b, prog.Close()) })
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachCGroupSockOps, Program: prog})
	must(b, err)
	b.Cleanup(func() { must(b, l.Close()) })
	return func(b *testing.B) time.Duration {
		b.Helper()
		s, err := prog.Stats()
		must(b, err)
		return s.Runtime
	}
}
