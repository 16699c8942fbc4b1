package e2e

import (
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/tcpilot/tcpilot/internal/api"
	labLink "github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/topology"
	"golang.org/x/sys/unix"
)

// The cost of tcpilot, as README and docs state it:
//
//	go test ./test/e2e -run '^$' -bench Cost           a few pairs, 2 minutes
//	TCPILOT_FULL=1 go test ./test/e2e -run '^$' -bench Cost

// churnPort is the first of the ports of the server whose cost is measured too, and plainPort of
// those whose listeners are not in the tuned cgroup. With one port alone, a client runs out of local
// ports within seconds, and searches for one.
const (
	churnPort  = 5202
	plainPort  = 5302
	churnPorts = 16
)

// bothEnds tunes the server's sockets like the client's: a congestion control is set on
// both ends of each connection.
const bothEnds = "  - {name: lab, match: {remote: [10.0.0.0/8]}, set: {cc: reno}}\n"

// newChurn makes a world in which both ends are in the tuned cgroup. Closed connections do not
// wait (TIME_WAIT) in numbers that grow from block to block.
func newChurn(b *testing.B) (w *world, server *load.Agent, to []string) {
	w = newPlainWorld(b, "far")
	for _, h := range []*topology.Host{w.star.Client, w.remotes[0].Host} {
		must(b, h.SetSysctl("net.ipv4.tcp_max_tw_buckets", "2000"))
	}
	server = w.agent(b, w.remotes[0].Host, w.cgroup)
	return w, server, listenChurn(b, w, server, churnPort)
}

// listenChurn has the server listen on ports from the first on.
func listenChurn(b *testing.B, w *world, server *load.Agent, first int) (to []string) {
	b.Helper()
	for port := first; port < first+churnPorts; port++ {
		_, err := server.Listen(b.Context(), load.ListenSpec{Address: fmt.Sprintf("0.0.0.0:%d", port)})
		must(b, err)
		to = append(to, fmt.Sprintf("%s:%d", w.remotes[0].Addr4, port))
	}
	return to
}

// spent is the cost of connections.
type spent struct {
	connections   uint64
	elapsed       time.Duration
	ends, machine time.Duration // CPU time of client and server, and of the whole machine
}

func (s spent) perSecond() float64 { return float64(s.connections) / s.elapsed.Seconds() }
func (s spent) perEnds() float64   { return float64(s.ends.Microseconds()) / float64(s.connections) }
func (s spent) perMachine() float64 {
	return float64(s.machine.Microseconds()) / float64(s.connections)
}

func (s spent) String() string {
	return fmt.Sprintf("%.0f/s %.1f us (machine %.1f us)", s.perSecond(), s.perEnds(), s.perMachine())
}

func sumSpent(blocks []spent) (sum spent) {
	for _, s := range blocks {
		sum.connections += s.connections
		sum.elapsed += s.elapsed
		sum.ends += s.ends
		sum.machine += s.machine
	}
	return sum
}

// block makes connections as fast as it can for d.
func block(b *testing.B, w *world, server *load.Agent, to []string, d time.Duration) spent {
	b.Helper()
	before, err := server.CPU(b.Context())
	must(b, err)
	busy := machineBusy(b)
	r, err := w.client.Churn(b.Context(), load.ChurnSpec{To: to, Duration: d, Workers: 8})
	must(b, err)
	busy = machineBusy(b) - busy
	after, err := server.CPU(b.Context())
	must(b, err)
	if r.Errors > 0 {
		b.Errorf("%d connections failed: %s", r.Errors, r.FirstError)
	}
	return spent{r.Connections, r.Elapsed, r.CPU.Sum() + after.Sub(before).Sum(), busy}
}

// BenchmarkCostPairs compares connections with and without tcpilot, which runs all the time: with a
// congestion control set on each connection, in the default configuration, which learns, and with a
// rule that leaves the connections alone, which is what classification costs. The benchmark none
// compares two times without tcpilot, and so shows what the method itself finds if there is no
// difference.
func BenchmarkCostPairs(b *testing.B) {
	b.Run("none", func(b *testing.B) { costPairs(b, "") })
	b.Run("set", func(b *testing.B) { costPairs(b, bothEnds) })
	b.Run("learn", func(b *testing.B) { costPairs(b, "  - {name: lab, match: {remote: [10.0.0.0/8]}, learn: {}}\n") })
	b.Run("leave", func(b *testing.B) { costPairs(b, "  - {name: lab, match: {remote: [10.0.0.0/8]}, leave: true}\n") })
}

// costPairs takes turns of half a second, in the order of the Thue-Morse sequence, so that a host
// whose speed changes within seconds is as fast for one as for the other. Client and server are the same
// processes in all of them; they are in the tuned cgroup or in another one.
func costPairs(b *testing.B, rules string) {
	const slice = 500 * time.Millisecond
	pairs, length := 6, 2*time.Second
	if full() {
		pairs, length = 24, 4*time.Second
	}
	w, server, tuned := newChurn(b)
	other, err := w.net.Cgroup("other")
	must(b, err)
	move(b, server, other)
	plain := listenChurn(b, w, server, plainPort)
	// In a cgroup of its own: two processes of one cgroup charge kernel memory to it for less than two of two.
	apart, err := w.net.Cgroup("apart")
	must(b, err)
	move(b, server, apart)
	if rules != "" {
		startTcpilot(b, w, settings{rules: rules, lease: "10s", interval: "5s"})
	}
	measure := func(with bool) spent {
		cgroup, to := other, plain
		if with {
			cgroup, to = w.cgroup, tuned
		}
		move(b, w.client, cgroup)
		return block(b, w, server, to, slice)
	}
	measure(true) // warm up
	measure(false)
	var rates, ends, machine, base []float64
	for range b.N {
		for i := range pairs {
			var on, off []spent
			for j := range 2 * int(length/slice) {
				if bits.OnesCount(uint(j))%2 == 0 {
					on = append(on, measure(true))
				} else {
					off = append(off, measure(false))
				}
			}
			with, without := sumSpent(on), sumSpent(off)
			rates = append(rates, with.perSecond()/without.perSecond())
			ends = append(ends, with.perEnds()/without.perEnds())
			machine = append(machine, with.perMachine()/without.perMachine())
			base = append(base, without.perEnds())
			b.Logf("pair %d: without %s, with %s", i, without, with)
		}
	}
	b.ReportMetric(0, "ns/op")
	publish(b, rates, "rate-ratio")
	publish(b, ends, "cpu-ratio")
	publish(b, machine, "machine-ratio")
	b.ReportMetric(median(base), "us-cpu/conn")
}

// move puts a process into a cgroup. Sockets belong to the cgroup in which they were created, and
// accepted ones to their listener's.
func move(b *testing.B, a *load.Agent, to *topology.Cgroup) {
	b.Helper()
	must(b, os.WriteFile(filepath.Join(to.Path, "cgroup.procs"), strconv.AppendInt(nil, int64(a.Pid()), 10), 0))
}

// BenchmarkCostBPF sums the run time of tcpilot's programs per connection, both
// ends, at 5,000 connections per second. The kernel's statistics themselves add
// about 50 ns a call.
func BenchmarkCostBPF(b *testing.B) {
	for name, rules := range map[string]string{
		"set":   bothEnds,
		"learn": "  - {name: lab, match: {remote: [10.0.0.0/8]}, learn: {arms: [cubic, bbr, reno]}}\n",
	} {
		b.Run(name, func(b *testing.B) {
			w, _, to := newChurn(b)
			p := startTcpilot(b, w, settings{rules: rules})
			stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
			must(b, err)
			defer stats.Close()
			before := p.runTimes(b)
			var connections uint64
			for range b.N {
				r, err := w.client.Churn(b.Context(), load.ChurnSpec{To: to, Duration: 4 * time.Second, Rate: 5000, Workers: 16})
				must(b, err)
				connections += r.Connections
				b.ReportMetric(r.PerSecond, "conn/s")
				b.ReportMetric(float64(r.Behind.Milliseconds()), "ms-behind")
			}
			var ns, calls float64
			for name, after := range p.runTimes(b) {
				d := runTime{after.ns - before[name].ns, after.calls - before[name].calls}
				b.Logf("%s: %.2f calls a connection, %.0f ns a call", name,
					d.calls/float64(connections), d.ns/max(1, d.calls))
				ns, calls = ns+d.ns, calls+d.calls
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ns/float64(connections)/1000, "us-bpf/conn")
			b.ReportMetric(calls/float64(connections), "calls/conn")
		})
	}
}

// BenchmarkCostAdapt compares the run time of tcpilot's programs per connection without
// adapted values, with the default and with auto, in turns whose order alternates: on a perfect wire, where timeouts are
// adapted, with small messages over 1 ms, where initial windows could be, and with connections of 64 KB over 4 ms, where they are.
// Both ends are tcpilot's, or only the one that opens the connections, or the one that accepts them.
func BenchmarkCostAdapt(b *testing.B) {
	near, small := load.ChurnSpec{Rate: 4000, Workers: 16}, load.ChurnSpec{Rate: 3000, Workers: 32}
	b.Run("near", func(b *testing.B) { costAdapt(b, atBoth, 0, near) })
	b.Run("small", func(b *testing.B) { costAdapt(b, atBoth, 500*time.Microsecond, small) })
	b.Run("far", func(b *testing.B) {
		costAdapt(b, atBoth, 2*time.Millisecond, load.ChurnSpec{Rate: 500, Workers: 32, Reply: 64 << 10})
	})
	b.Run("outgoing", func(b *testing.B) { costAdapt(b, atClient, 500*time.Microsecond, small) })
	b.Run("incoming", func(b *testing.B) { costAdapt(b, atServer, 500*time.Microsecond, small) })
}

// ends are the ends of connections that are tcpilot's.
type ends int

const (
	atBoth ends = iota
	atClient
	atServer
)

func costAdapt(b *testing.B, ends ends, oneWay time.Duration, churn load.ChurnSpec) {
	turns := 4
	if full() {
		turns = 12
	}
	w, _, to := newChurn(b)
	client := w.client
	switch ends {
	case atClient:
		to = listenChurn(b, w, w.remotes[0].agent, plainPort)
	case atServer:
		client = w.beside
	}
	if oneWay > 0 {
		shape(b, w.star.Entry, w.star.Access, labLink.Spec{Delay: oneWay})
		shape(b, w.remotes[0].Near, w.remotes[0].Far, labLink.Spec{Delay: oneWay})
	}
	churn.To = to
	with := func(more string) settings {
		return settings{lease: "10s", interval: "5s", rules: "  - {name: lab, match: {remote: [10.0.0.0/8]}, learn: {}" + more + "}\n"}
	}
	const off, usual, auto = ", adapt: off", "", ", adapt: auto"
	p := startTcpilot(b, w, with(usual))
	some := func(d time.Duration) float64 {
		s := churn
		s.Duration = d
		r, err := client.Churn(b.Context(), s)
		must(b, err)
		if r.Errors > 0 {
			b.Errorf("%d connections failed: %s", r.Errors, r.FirstError)
		}
		return float64(r.Connections)
	}
	parts := map[string][]runTime{} // by configuration and program
	measure := func(more string) (ns float64) {
		p.configure(b, with(more))
		_, err := p.run(b, "reload")
		must(b, err)
		some(700 * time.Millisecond)
		stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
		must(b, err)
		defer stats.Close()
		before := p.runTimes(b)
		connections := some(1500 * time.Millisecond)
		for name, after := range p.runTimes(b) {
			d := runTime{(after.ns - before[name].ns) / connections, (after.calls - before[name].calls) / connections}
			parts[more+" "+name] = append(parts[more+" "+name], d)
			ns += d.ns
		}
		return ns
	}
	some(5 * time.Second) // what is learned first
	var base, moreUsual, moreAuto []float64
	for range b.N {
		for i := range turns {
			order := []string{off, usual, auto}
			if i%2 != 0 {
				slices.Reverse(order)
			}
			cost := map[string]float64{}
			for _, adapt := range order {
				cost[adapt] = measure(adapt)
			}
			base = append(base, cost[off])
			moreUsual, moreAuto = append(moreUsual, cost[usual]-cost[off]), append(moreAuto, cost[auto]-cost[off])
			b.Logf("turn %d: %.0f ns without, %+.0f ns with the default, %+.0f ns with auto", i, cost[off], cost[usual]-cost[off], cost[auto]-cost[off])
		}
	}
	for _, f := range ask[api.Explanation](b, p, "explain", w.remotes[0].Addr4.String()).Fields {
		b.Logf("%s %d: %s", f.Field, f.Value, f.Why)
	}
	b.ReportMetric(0, "ns/op")
	for name, runs := range parts {
		var ns, calls []float64
		for _, r := range runs {
			ns, calls = append(ns, r.ns), append(calls, r.calls)
		}
		b.Logf("learn: {}%s: %.2f calls, %.0f ns a connection (medians)", name, median(calls), median(ns))
	}
	b.ReportMetric(median(base), "ns-bpf/conn")
	publish(b, moreUsual, "ns-more-default/conn")
	publish(b, moreAuto, "ns-more-auto/conn")
}

// BenchmarkCostDaemon reads the daemon's memory and CPU with 10,000 learned
// paths and nothing to do.
func BenchmarkCostDaemon(b *testing.B) {
	const paths = 10_000
	w, _, _ := newChurn(b)
	must(b, w.star.Spread(w.remotes[0].Host))
	to := make([]string, paths)
	for i := range to {
		to[i] = fmt.Sprintf("%s:%d", topology.SpreadAddr(i, false), churnPort)
	}
	// Lease and interval are tcpilot's defaults.
	p := startTcpilot(b, w, settings{lease: "10s", interval: "5s",
		rules: "  - {name: lab, match: {remote: [10.0.0.0/8], direction: outgoing}, learn: {arms: [cubic, bbr, reno]}}\n"})
	report := func(name string) {
		b.ReportMetric(float64(p.rss(b))/(1<<20), "MB-rss-"+name)
	}
	report("empty")
	for range b.N {
		r, err := w.client.Churn(b.Context(), load.ChurnSpec{To: to, Count: paths,
			Duration: 2 * time.Minute, Workers: 8, Request: 64 << 10})
		must(b, err)
		if r.Errors > 0 {
			b.Fatalf("%d connections failed: %s", r.Errors, r.FirstError)
		}
	}
	time.Sleep(10 * time.Second) // by then the policies are written and the beliefs saved
	if n := p.status(b).Totals.Paths; n < paths {
		b.Errorf("%d paths are learned, want %d", n, paths)
	}
	report("10k-paths")
	idle := 20 * time.Second
	before := p.cpu(b)
	time.Sleep(idle)
	b.ReportMetric(100*(p.cpu(b)-before).Seconds()/idle.Seconds(), "%cpu-idle")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkCostDaemonBusy reads the daemon's CPU while connections are made as fast as
// possible, with both ends tuned, as a share of one core at 10,000 connections a second.
func BenchmarkCostDaemonBusy(b *testing.B) {
	w, server, to := newChurn(b)
	p := startTcpilot(b, w, settings{lease: "10s", interval: "5s",
		rules: "  - {name: lab, match: {remote: [10.0.0.0/8]}, learn: {arms: [cubic, bbr, reno]}}\n"})
	block(b, w, server, to, time.Second) // warm up
	var shares []float64
	for range b.N {
		for range 5 {
			before, begun := p.cpu(b), time.Now()
			s := block(b, w, server, to, 4*time.Second)
			share := (p.cpu(b) - before).Seconds() / time.Since(begun).Seconds()
			b.Logf("%.0f connections a second, daemon %.2f %%", s.perSecond(), 100*share)
			shares = append(shares, 100*share*10_000/s.perSecond())
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(shares), "%cpu-daemon/10k")
}

// publish reports the median and the quartiles of ratios.
func publish(b *testing.B, ratios []float64, unit string) {
	slices.Sort(ratios)
	n := len(ratios)
	b.ReportMetric(median(ratios), unit)
	b.Logf("%s: median %.3f, quartiles %.3f to %.3f, %d pairs", unit, median(ratios), ratios[n/4], ratios[n*3/4], n)
}

func median(x []float64) float64 {
	s := slices.Sorted(slices.Values(x))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// machineBusy is the CPU time that the whole machine has used.
func machineBusy(b testing.TB) (busy time.Duration) {
	stat, err := os.ReadFile("/proc/stat")
	must(b, err)
	line, _, _ := strings.Cut(string(stat), "\n")
	for i, f := range strings.Fields(line)[1:] {
		if i == 3 || i == 4 || i > 6 { // idle, iowait; steal and guest
			continue
		}
		ticks, err := strconv.ParseInt(f, 10, 64)
		must(b, err)
		busy += time.Duration(ticks) * tick
	}
	return busy
}

// tick is the unit of /proc: USER_HZ is 100 on every architecture of Linux.
const tick = 10 * time.Millisecond

// cpu is the CPU time that the daemon has used.
func (p *tcpilot) cpu(b *testing.B) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	must(b, err)
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, err := strconv.ParseInt(f[11], 10, 64)
	must(b, err)
	system, err := strconv.ParseInt(f[12], 10, 64)
	must(b, err)
	return time.Duration(user+system) * tick
}

// rss is the daemon's resident memory in bytes.
func (p *tcpilot) rss(b *testing.B) int64 {
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	must(b, err)
	pages, err := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64)
	must(b, err)
	return pages * int64(os.Getpagesize())
}

type runTime struct{ ns, calls float64 }

// TestRootRunTimes: congestion controls are pinned beside the links, and are excluded.
func TestRootRunTimes(t *testing.T) {
	t.Parallel()
	w := newPlainWorld(t, "far")
	p := startTcpilot(t, w, settings{rules: "  - {name: lab, match: {remote: [10.0.0.0/8]}, set: {cc: tcpilot_bbr3}}\n"})
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	must(t, err)
	defer stats.Close()
	if got := cc(t, w); got != "tcpilot_bbr3" {
		t.Errorf("a connection starts with %s", got)
	}
	calls := 0.0
	for _, one := range p.runTimes(t) {
		calls += one.calls
	}
	if calls == 0 {
		t.Error("no call of tcpilot's programs was counted")
	}
}

// runTimes reads the kernel's statistics of the programs that tcpilot's pinned
// links run.
func (p *tcpilot) runTimes(b testing.TB) map[string]runTime {
	b.Helper()
	times := map[string]runTime{}
	must(b, filepath.WalkDir(filepath.Join(p.dir, "bpf"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		l, err := link.LoadPinnedLink(path, nil)
		if err != nil {
			return nil // a map or a program
		}
		defer l.Close()
		info, err := l.Info()
		if err != nil {
			return err
		}
		if info.Program == 0 {
			return nil // a congestion control: its link holds a map
		}
		prog, err := ebpf.NewProgramFromID(info.Program)
		if err != nil {
			return err
		}
		defer prog.Close()
		stats, err := prog.Stats()
		if err != nil {
			return err
		}
		times[e.Name()] = runTime{float64(stats.Runtime.Nanoseconds()), float64(stats.RunCount)}
		return nil
	}))
	if len(times) == 0 {
		b.Fatal("no pinned link was found, so nothing was measured")
	}
	return times
}
