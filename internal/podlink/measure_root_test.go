package podlink

import (
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// openFar opens programs at the other node, which routes like the first.
func (r *rig) openFar() *Links {
	t := r.t
	t.Helper()
	var links *Links
	r.far.Do(t, func() {
		var err error
		if links, err = Open(filepath.Join(filepath.Dir(r.dir), "far"), slog.New(slog.NewTextHandler(io.Discard, nil))); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { _ = links.Close() })
	return links
}

func (r *rig) farWanted() *Wanted {
	r.t.Helper()
	return &Wanted{Pods: []Pod{{Pod: record(r.t, r.c), Route: true}}, Devices: []string{"wire"}, Networks: []netip.Prefix{r.node.V4, r.node.V6}}
}

// stream is the throughput of one TCP connection, bit/s, and the CPU time of the whole machine for a byte, ns.
func stream(t *testing.T, from, to *testenv.NS, address netip.Addr) (rate, perByte float64) {
	t.Helper()
	server := to.Start(t, "iperf3", "-s", "-1", "-B", address.String())
	defer func() { _ = server.Wait() }()
	time.Sleep(100 * time.Millisecond)
	before := busyTime(t)
	out := from.Run(t, "iperf3", "-c", address.String(), "-t", "1", "-A", "0,1", "-J")
	spent := busyTime(t) - before
	var result struct {
		End struct {
			Received struct {
				Bytes float64 `json:"bytes"`
				Rate  float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil || result.End.Received.Bytes == 0 {
		t.Fatalf("%v: %s", err, out)
	}
	return result.End.Received.Rate, float64(spent) / result.End.Received.Bytes
}

var cpuTicks = regexp.MustCompile(`(?m)^cpu +(.*)$`)

// busyTime is the time that all CPUs were not idle, since the boot.
func busyTime(t *testing.T) time.Duration {
	t.Helper()
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(cpuTicks.FindStringSubmatch(string(stat))[1])
	var ticks int
	for i, f := range fields[:8] {
		if n, err := strconv.Atoi(f); err == nil && i != 3 && i != 4 { // idle, iowait
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100
}

// turns is how many requests of 1 byte are answered in a second on one connection, each end on a CPU of its own.
func turns(t testing.TB, from, to *testenv.NS, address netip.Addr) float64 {
	t.Helper()
	l := to.Listen(t, "tcp", netip.AddrPortFrom(address, 5002).String())
	defer l.Close()
	c := from.Dial(t, "tcp", l.Addr().String())
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	client, server := blocking(t, c), blocking(t, s)
	defer client.Close()
	defer server.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		onCPU(1)
		for b := make([]byte, 1); ; {
			if n, err := unix.Read(int(server.Fd()), b); n != 1 || err != nil {
				return
			}
			_, _ = unix.Write(int(server.Fd()), b)
		}
	}()
	n, spent := make(chan int), make(chan time.Duration, 1)
	go func() {
		onCPU(0)
		b, turns, begun := make([]byte, 1), 0, time.Now()
		for ; time.Since(begun) < 700*time.Millisecond; turns++ {
			_, _ = unix.Write(int(client.Fd()), b)
			_, _ = unix.Read(int(client.Fd()), b)
		}
		spent <- time.Since(begun)
		n <- turns
	}()
	rate := float64(<-n) / (<-spent).Seconds()
	_ = unix.Shutdown(int(client.Fd()), unix.SHUT_RDWR)
	<-ended
	return rate
}

// blocking is a descriptor of a connection that blocks its thread, without the poller of Go's runtime.
func blocking(t testing.TB, c net.Conn) *os.File {
	t.Helper()
	f, err := c.(*net.TCPConn).File()
	if err == nil {
		err = unix.SetNonblock(int(f.Fd()), false)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// onCPU keeps the goroutine on a thread that runs on one CPU, and ends with it.
func onCPU(cpu int) {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu % runtime.NumCPU())
	_ = unix.SchedSetaffinity(0, &set)
}

// TestMeasureRoute compares connections between pods of two nodes with connections between the nodes
// themselves, and with the nodes' stacks, without and with connection tracking there.
func TestMeasureRoute(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		r := newRig(t)
		r.open()
		far := r.openFar()
		route := func(w, farWanted *Wanted) {
			t.Helper()
			r.set(w)
			r.far.Do(t, func() {
				if _, err := far.Set(farWanted); err != nil {
					t.Fatal(err)
				}
			})
		}
		track := func(option string) {
			t.Helper()
			for _, n := range []*testenv.Node{r.node, r.far} {
				n.Run(t, "iptables-legacy", option, "FORWARD", "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT")
			}
		}
		none := func() {}
		off := func() { route(&Wanted{}, &Wanted{}) }
		off()
		ways := []struct {
			name          string
			from, to      *testenv.NS
			address       netip.Addr
			before, after func()
		}{
			{"host to host", r.node.NS, r.far.NS, netip.MustParseAddr("10.2.0.2"), none, none},
			{"stack", r.a.NS, r.c.NS, r.c.V4, none, none},
			{"stack with conntrack", r.a.NS, r.c.NS, r.c.V4, func() { track("-A") }, func() { track("-D") }},
			{"routed", r.a.NS, r.c.NS, r.c.V4, func() { route(r.wanted(), r.farWanted()) }, off},
		}
		var rate, perByte, turn [4][]float64
		for range 3 {
			for i, w := range ways {
				w.before()
				x, y := stream(t, w.from, w.to, w.address)
				rate[i], perByte[i] = append(rate[i], x), append(perByte[i], y)
				turn[i] = append(turn[i], turns(t, w.from, w.to, w.address))
				w.after()
			}
		}
		if got := r.counts(); got["pod-to-wire"] < 1000 {
			t.Errorf("not routed: %v", got)
		}
		for i, w := range ways {
			t.Logf("%-22s %6.2f Gbit/s %6.3f ns/B %8.0f turns/s", w.name, median(rate[i])/1e9, median(perByte[i]), median(turn[i]))
		}
		for i, w := range ways[:3] {
			least := 1.0
			if i == 0 {
				least = 0.90
			}
			testenv.AtLeast(m, "stream, routed / "+w.name, median(rate[3])/median(rate[i]), least)
			testenv.AtLeast(m, "turns, routed / "+w.name, median(turn[3])/median(turn[i]), least)
			testenv.AtMost(m, "CPU per byte, routed / "+w.name, median(perByte[3])/median(perByte[i]), 1.05)
		}
	})
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

var backlog = regexp.MustCompile(`backlog ([0-9]+)(K|M)?b`)

// TestMeasureBackPressure compares how much of a pod's connection waits in a slow queue of the node. A pod's
// socket knows of it (TCP small queues) only as long as packets belong to the socket, which ends
// in the host's stack (skb_orphan in ip_rcv).
func TestMeasureBackPressure(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		r := newRig(t)
		r.node.Run(t, "tc", strings.Fields("qdisc add dev wire root tbf rate 100mbit burst 64k limit 4m")...)
		waiting := func() float64 {
			t.Helper()
			server := r.c.Start(t, "iperf3", "-s", "-1", "-B", r.c.V4.String())
			defer func() { _ = server.Wait() }()
			time.Sleep(100 * time.Millisecond)
			client := r.a.Start(t, "iperf3", "-c", r.c.V4.String(), "-t", "3", "-C", "cubic")
			var seen []float64
			time.Sleep(time.Second)
			for range 30 {
				time.Sleep(50 * time.Millisecond)
				seen = append(seen, backlogBytes(t, r.node.Run(t, "tc", "-s", "qdisc", "show", "dev", "wire")))
			}
			_ = client.Wait()
			return median(seen)
		}
		stack := waiting()
		r.open()
		r.set(r.wanted())
		routed := waiting()
		t.Logf("median backlog: stack %.0f B, routed %.0f B", stack, routed)
		testenv.AtMost(m, "backlog, routed / stack", routed/max(stack, 1), 0.5)
	})
}

func backlogBytes(t *testing.T, shown string) float64 {
	t.Helper()
	found := backlog.FindStringSubmatch(shown)
	if found == nil {
		t.Fatal(shown)
	}
	n, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return n * map[string]float64{"": 1, "K": 1 << 10, "M": 1 << 20}[found[2]]
}
