package datapath

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// rulesOfAll is n rules that use every dimension, of which only the last matches.
func rulesOfAll(r *rig, n int, cookie uint64) class.Table {
	rules := make([]rule, n)
	for i := range rules {
		rules[i] = rule{
			remote:    netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 16),
			local:     netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 24),
			rports:    [2]uint16{uint16(100 * i), uint16(100*i + 50)},
			lports:    [2]uint16{uint16(150 * i), uint16(150*i + 70)},
			cgroup:    uint64(i + 1_000_000),
			netns:     uint64(i + 1_000_000),
			direction: 1 + i%2,
			bySame:    true, same: class.SamePrefix{V4: true, Bits: i % class.MaxSamePrefix},
		}
	}
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	rules[n-1] = rule{remote: loopback, local: loopback, rports: [2]uint16{0, 65535}, lports: [2]uint16{0, 65535},
		cgroup: r.cg.ID, netns: cookie, bySame: true, same: class.SamePrefix{V4: true, Bits: 0}}
	for i := range rules {
		rules[i].dims = class.DimSamePrefix<<1 - 1
	}
	return compileRules(rules, 1)
}

// BenchmarkRootClassify measures what the programs cost a connection, both ends, by the
// kernel's own statistics (which add some 50 ns a call): with 1 rule and with 256, in
// alternating blocks, over all dimensions; and with one rule without conditions.
func BenchmarkRootClassify(b *testing.B) {
	r := newRig(b)
	cookie := netnsOf(b, r.ns)
	tables := map[string]class.Table{
		"1": rulesOfAll(r, 1, cookie), "256": rulesOfAll(r, 256, cookie), "plain": {Classes: []class.Class{{ID: 1}}},
	}
	for _, t := range tables {
		t.Classes[len(t.Classes)-1].ID = 1
	}
	r.policy(b, arms(arm("reno", 1<<16)))
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	must(b, err)
	defer stats.Close()
	l := listen(b, r.ns, "127.0.0.1:0", nil)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	const block = 300
	cost := map[string][]float64{}
	for b.Loop() {
		for name, t := range tables {
			r.rules(b, t)
			before := runtimeOf(b, r)
			r.connections(b, l.Addr().String(), block)
			cost[name] = append(cost[name], float64(runtimeOf(b, r)-before)/block)
		}
	}
	got := map[string]float64{}
	for name, c := range cost {
		got[name] = medianFloat(c)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(got["plain"], "ns/conn-no-dim")
	b.ReportMetric(got["1"], "ns/conn-1-rule")
	b.ReportMetric(got["256"], "ns/conn-256-rules")
	b.ReportMetric(got["256"]/got["1"], "x-256/1")
}

func (r *rig) connections(t testing.TB, address string, n int) {
	t.Helper()
	to := netip.MustParseAddrPort(address)
	r.ns.Do(t, func() {
		for range n {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			must(t, err)
			must(t, unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}))
			_, err = unix.Read(fd, make([]byte, 1)) // the server closes first
			must(t, err)
			must(t, unix.Close(fd))
		}
	})
	time.Sleep(20 * time.Millisecond)
}

func runtimeOf(t testing.TB, r *rig) (sum time.Duration) {
	t.Helper()
	progs, err := r.Programs()
	must(t, err)
	for _, p := range progs {
		sum += p.RunTime
	}
	return sum
}

func medianFloat(v []float64) float64 {
	d := make([]time.Duration, len(v))
	for i := range v {
		d[i] = time.Duration(v[i] * 1000)
	}
	return float64(median(d)) / 1000
}

// TestMeasureClassifyCostIsConstant: 256 rules cost what one costs, as the design claims.
// The programs' run time includes what else the machine does at that time.
func TestMeasureClassifyCostIsConstant(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		testenv.Root(t)
		testenv.AtMost(m, "cost of 256 rules, of one's", testing.Benchmark(BenchmarkRootClassify).Extra["x-256/1"], 1.5)
	})
}
