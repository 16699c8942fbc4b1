package cc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// script is how the path changes while the connections of TestRootBBR3States send. until
// are the steps that end a scene. The return path always has a delay of 10 ms.
var script = []struct {
	name  string
	lasts time.Duration // at least
	link  link.Spec
	until []step // 0: any reason
}{
	{"long: the clock says when to probe", 2 * time.Second,
		link.Spec{Rate: 20e6, Delay: 50 * time.Millisecond, Queue: link.Queue{Bytes: 150_000}},
		[]step{{startup, drain, 0}, {drain, down, 0}, {down, cruise, drained}, {cruise, refill, probeTime},
			{refill, up, refilled}, {up, down, 0}, {probeRTT, down, probedRTT}}},
	{"short: Reno's time says so", 2 * time.Second,
		link.Spec{Rate: 30e6, Delay: 10 * time.Millisecond, Queue: link.Queue{Bytes: 75_000}},
		[]step{{cruise, refill, renoTime}}},
	{"lossy, with little room", 2 * time.Second,
		link.Spec{Rate: 30e6, Delay: 10 * time.Millisecond, Queue: link.Queue{Bytes: 20_000}, Loss: 0.01}, nil},
	{"marking", 2 * time.Second,
		link.Spec{Rate: 30e6, Delay: 10 * time.Millisecond, Queue: link.Queue{Bytes: 150_000}, ECN: 15_000}, nil},
}

// TestRootBBR3States: on a scripted path two connections, one of which pauses, change
// modes as in the draft's state machine. Every mode that the path leads to is reached.
func TestRootBBR3States(t *testing.T) {
	requireControls(t)
	ring := tracedBBR3(t, "test_trace")
	path := newPath(t)
	bulk, pausing := path.connect(t, "test_trace"), path.connect(t, "test_trace")
	go func() { _, _ = io.Copy(bulk, content()) }()
	go sendBursts(pausing)
	port := bulk.LocalAddr().(*net.TCPAddr).Port
	var windows []window
	var trace []transition
	for _, scene := range script {
		must(t, path.there.Set(scene.link))
		from, begin := len(trace), time.Now()
		for missing := scene.until; time.Since(begin) < scene.lasts || len(missing) > 0; {
			windows = append(windows, watch(t, bulk, 200*time.Millisecond)...)
			trace = append(trace, readTrace(t, ring, time.Millisecond)...)
			seen := count(of(trace[from:], port))
			missing = slices.DeleteFunc(slices.Clone(missing), func(s step) bool { return seen.has(s) })
			if time.Since(begin) > time.Minute {
				t.Fatalf("%s: within a minute, none of the steps %v: %v", scene.name, missing, seen)
			}
		}
	}
	must(t, errors.Join(bulk.Close(), pausing.Close()))
	trace = append(trace, readTrace(t, ring, 100*time.Millisecond)...)
	for _, complaint := range draft().check(trace) {
		t.Error(complaint)
	}
	if err := checkRandomLoss(trace, port); err != nil {
		t.Error(err)
	}
	probes := checkFloor(t, trace, port, windows)
	if probes == 0 {
		t.Error("no ProbeRTT has a sample")
	}
	t.Logf("%d transitions, %d ProbeRTT with samples: %v", len(trace), probes, count(trace))
}

const policed = 20e6 // bit/s

var policer = link.Spec{Rate: 5 * policed, Delay: 10 * time.Millisecond, Queue: link.Queue{Bytes: 250_000},
	Policer: link.Policer{Rate: policed, Burst: 100_000}}

// TestRootBBR3Policed: the bucket's rate is forgotten before the first probe.
func TestRootBBR3Policed(t *testing.T) {
	requireControls(t)
	trace := traceOver(t, tracedBBR3(t, "test_trace"), policer, refill)
	for _, complaint := range draft().check(trace) {
		t.Error(complaint)
	}
	if one := trace[len(trace)-1]; 8*float64(one.BW) > 2.5*policed {
		t.Errorf("refills at %.1f Mbit/s behind a policer of %.0f: %s", 8*float64(one.BW)/1e6, policed/1e6, one)
	}
}

// TestMeasureBBR3Policed: Startup ends in the round in which the bucket runs empty, and
// at the first probe only the policer's rate is known.
func TestMeasureBBR3Policed(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		requireControls(t)
		trace := traceOver(t, tracedBBR3(t, "test_trace"), policer, refill)
		for _, one := range trace {
			if one.From == startup {
				m.Holds("Startup ends for", highLoss.String(), one.Why == highLoss, one.Why.String())
				testenv.AtMost(m, "lost of delivered in Startup", float64(one.Lost)/float64(max(1, one.Delivered)), 1)
			}
		}
		testenv.AtMost(m, "refills at, of the policer's rate", 8*float64(trace[len(trace)-1].BW)/policed, 1.25)
	})
}

var marking = link.Spec{Rate: 30e6, Delay: 10 * time.Millisecond, Queue: link.Queue{Bytes: 300_000}, ECN: 15_000}

// TestRootBBR3Marked: marks end Startup. If a machine pauses, ACKs that arrive together can
// show the path's rate before there is a queue, and Startup ends because bandwidth has
// stopped growing. On emulated machines this happens in one connection of ten. Such a
// connection must not have had more marks than a round trip may have without an answer.
func TestRootBBR3Marked(t *testing.T) {
	requireControls(t)
	ring := tracedBBR3(t, "test_trace")
	acks := observeArrivals(t)
	const connections = 5
	marked := 0
	for range connections {
		trace := traceOver(t, ring, marking, startup)
		one := trace[len(trace)-1]
		t.Log(one)
		if one.Why == highECN {
			marked++
			continue
		}
		// The answer is to more than half of what was delivered in a round trip, which is
		// at most the window.
		if n := readArrivals(t, acks, one.LocalPort).marked(one.At); n > one.Cwnd/2 {
			t.Errorf("Startup ends for another reason than %d marks: %s", n, one)
		}
	}
	if marked <= connections/2 {
		t.Errorf("marks ended Startup in %d of %d connections", marked, connections)
	}
}

// TestMeasureBBR3Marked: it ends in the round trip in which the marks arrive, not in the
// next, when the queue is twice as long.
func TestMeasureBBR3Marked(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		requireControls(t)
		trace := traceOver(t, tracedBBR3(t, "test_trace"), marking, startup)
		one := trace[len(trace)-1]
		testenv.AtMost(m, "round trip of the least at Startup's end", float64(one.SRTT)/float64(one.MinRTT), 1.75) // the round after: 2.1
	})
}

// TestMeasureBBR3Shares: beside Cubic in a queue of a BDP the clock starts the probes. At
// Reno's time there would be a dozen or more, and Cubic would have 28 % instead of 35 to
// 43.
func TestMeasureBBR3Shares(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		requireControls(t)
		ring := tracedBBR3(t, "test_trace")
		path := newPath(t)
		must(t, path.there.Set(link.Spec{Rate: 50e6, Delay: 10 * time.Millisecond, Queue: link.Queue{Bytes: 125_000}}))
		ours := []net.Conn{path.connect(t, "test_trace"), path.connect(t, "test_trace")}
		theirs := []net.Conn{path.connect(t, "cubic"), path.connect(t, "cubic")}
		for _, c := range slices.Concat(ours, theirs) {
			go func() { _, _ = io.Copy(c, content()) }()
		}
		time.Sleep(10 * time.Second)
		bytesOf := func(conns []net.Conn) (n float64) {
			for _, c := range conns {
				n += float64(tcpInfo(t, c).Bytes_acked)
				must(t, c.Close())
			}
			return n
		}
		theirBytes, ourBytes := bytesOf(theirs), bytesOf(ours)
		early, clock := 0, 0
		for edge, n := range count(readTrace(t, ring, 100*time.Millisecond)) {
			switch edge.why {
			case renoTime, probeSafe:
				early += n
			case probeTime:
				clock += n
			}
		}
		testenv.AtLeast(m, "Cubic's share", theirBytes/(theirBytes+ourBytes), 0.33)
		testenv.AtLeast(m, "probes by the clock", clock, 2)
		testenv.AtMost(m, "others", early, 2)
	})
}

// TestMeasureBBR3Startup: an object of 1 MB that has the path to itself takes as long as with bbr. With the draft's gains
// it took 1.02 times as long.
func TestMeasureBBR3Startup(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		requireControls(t)
		tracedBBR3(t, "test_trace")
		path := newPath(t)
		must(t, path.there.Set(link.Spec{Rate: 100e6, Delay: 40 * time.Millisecond, Queue: link.Queue{Bytes: 625_000}}))
		took := map[string][]time.Duration{}
		for range 5 {
			for _, cc := range []string{"bbr", "test_trace"} {
				c, begin := path.connect(t, cc), time.Now()
				go func() { _, _ = io.CopyN(c, content(), 1_000_000) }()
				for tcpInfo(t, c).Bytes_acked < 1_000_000 && time.Since(begin) < 10*time.Second {
					time.Sleep(time.Millisecond)
				}
				took[cc] = append(took[cc], time.Since(begin))
				must(t, c.Close())
			}
		}
		slices.Sort(took["bbr"])
		slices.Sort(took["test_trace"])
		testenv.AtMost(m, "median time, of bbr's", took["test_trace"][2].Seconds()/took["bbr"][2].Seconds(), 1.01)
	})
}

// traceOver traces one connection that sends over a link until it leaves a mode.
func traceOver(t *testing.T, ring *ringbuf.Reader, over link.Spec, leaves mode) (trace []transition) {
	t.Helper()
	path := newPath(t)
	must(t, path.there.Set(over))
	c := path.connect(t, "test_trace")
	go func() { _, _ = io.Copy(c, content()) }()
	defer func() { must(t, c.Close()) }()
	port := c.LocalAddr().(*net.TCPAddr).Port
	for begin := time.Now(); time.Since(begin) < time.Minute; {
		for _, one := range of(readTrace(t, ring, 100*time.Millisecond), port) {
			if trace = append(trace, one); one.From == leaves {
				return trace
			}
		}
	}
	t.Fatalf("did not leave %s within a minute: %v", leaves, trace)
	return nil
}

// tracedBBR3 registers bbr3 with its trace on, for as long as the test runs.
func tracedBBR3(t *testing.T, cc string) *ringbuf.Reader {
	t.Helper()
	return traced(t, "tcpilot_bbr3", cc, "bbr3_transitions")
}

// traced registers one of tcpilot's own as cc with its trace on, for as long as the test
// runs.
func traced(t *testing.T, ours, cc, transitions string) *ringbuf.Reader {
	t.Helper()
	o := *find(embedded(), ours)
	o.knobs = map[string]any{"trace_transitions": true}
	spec, ops, err := o.specFor(cc)
	must(t, err)
	spec.Maps[transitions].MaxEntries = 1 << 20 // for the whole trace: it is read at the end
	coll, err := ebpf.NewCollection(spec)
	must(t, err)
	t.Cleanup(coll.Close)
	l, err := attach(coll.Maps[ops])
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	ring, err := ringbuf.NewReader(coll.Maps[transitions])
	must(t, err)
	t.Cleanup(func() { must(t, ring.Close()) })
	return ring
}

// readTrace reads the transitions so far, and those that arrive within a time.
func readTrace(t *testing.T, ring *ringbuf.Reader, within time.Duration) (trace []transition) {
	t.Helper()
	ring.SetDeadline(time.Now().Add(within))
	for {
		r, err := ring.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return trace
		}
		must(t, err)
		var raw traceBbr3Transition
		must(t, binary.Read(bytes.NewReader(r.RawSample), binary.NativeEndian, &raw))
		trace = append(trace, raw.transition())
	}
}

// path is two hosts and a link between them that can be shaped.
type path struct {
	left, right *topology.End
	there       *link.Direction
	l           net.Listener
}

func newPath(t *testing.T) *path {
	t.Helper()
	n, err := topology.New()
	must(t, err)
	stop := testenv.CloseOnSignal(n)
	t.Cleanup(func() {
		stop()
		must(t, n.Close())
	})
	p := &path{}
	var ends [2]topology.EndSpec
	for i, host := range []string{"left", "right"} {
		h, err := n.Host(host)
		must(t, err)
		must(t, h.SetSysctl("net.ipv4.tcp_ecn", "1"))
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, 1, byte(i + 1)}), 24)
		ends[i] = topology.EndSpec{Host: h, Device: "eth0", Addr4: prefix}
	}
	p.left, p.right, err = n.Wire(ends[0], ends[1])
	must(t, err)
	p.there = shapePath(t, p.left, p.right, script[0].link)
	shapePath(t, p.right, p.left, link.Spec{Delay: 10 * time.Millisecond})
	must(t, p.right.Host.Do(func() (err error) {
		p.l, err = net.Listen("tcp4", netip.AddrPortFrom(p.right.Addr4.Addr(), 0).String())
		return err
	}))
	t.Cleanup(func() { must(t, p.l.Close()) })
	return p
}

func shapePath(t *testing.T, from, to *topology.End, s link.Spec) *link.Direction {
	t.Helper()
	d, err := link.Shape(link.Ends{From: from, To: to}, s, link.Auto)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

// connect makes a connection under a control; its other end discards what arrives.
func (p *path) connect(t *testing.T, cc string) (c net.Conn) {
	t.Helper()
	must(t, p.left.Host.Do(func() (err error) {
		c, err = dialer(cc).DialContext(t.Context(), "tcp4", p.l.Addr().String())
		return err
	}))
	s, err := p.l.Accept()
	must(t, err)
	must(t, errors.Join(c.(*net.TCPConn).SetLinger(0), s.(*net.TCPConn).SetLinger(0)))
	go func() { _, _ = io.Copy(io.Discard, s) }()
	t.Cleanup(func() { _, _ = c.Close(), s.Close() })
	return c
}

// sendBursts leaves the connection idle between bursts, until it is closed.
func sendBursts(c net.Conn) {
	for {
		if _, err := io.CopyN(c, content(), 300_000); err != nil {
			return
		}
		time.Sleep(400 * time.Millisecond)
	}
}

// window is the congestion window of a connection between two times, by the clock of
// bpf_ktime_get_ns.
type window struct {
	after, before uint64
	packets       uint32
	timeout       bool // set by the kernel after a retransmission timeout
}

func watch(t *testing.T, c net.Conn, d time.Duration) (out []window) {
	t.Helper()
	const lossState = 4 // TCP_CA_Loss
	for begin := time.Now(); time.Since(begin) < d; time.Sleep(10 * time.Millisecond) {
		w := window{after: monotonic(t)}
		info := tcpInfo(t, c)
		w.packets, w.timeout = info.Snd_cwnd, info.Ca_state == lossState
		w.before = monotonic(t)
		out = append(out, w)
	}
	return out
}

func monotonic(t *testing.T) uint64 {
	t.Helper()
	var ts unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts))
	return uint64(ts.Nano())
}

// checkFloor checks that in no ProbeRTT the window was below the draft's, and returns how
// many ProbeRTT have samples.
func checkFloor(t *testing.T, trace []transition, port int, windows []window) (probes int) {
	t.Helper()
	var enter transition
	for _, one := range trace {
		if int(one.LocalPort) != port {
			continue
		}
		if one.From != probeRTT {
			enter = one
			continue
		}
		least := uint32(noBound)
		for _, w := range windows {
			if w.after > enter.At && w.before < one.At && !w.timeout {
				least = min(least, w.packets)
			}
		}
		if least == noBound {
			continue
		}
		probes++
		if want := floor(enter, one); least < want {
			t.Errorf("a window of %d packets in ProbeRTT, the floor is %d: %s", least, want, enter)
		}
		if least > enter.Cwnd/2+enter.bdp()/2 {
			t.Errorf("a window of %d packets in ProbeRTT does not drain the path: %s", least, enter)
		}
	}
	return probes
}

// checkRandomLoss checks that a connection allows its path 2 % of losses up to its first
// probe, and then nothing, because the path had no losses so far. The other connection's
// queue may end the allowance in Cruise.
func checkRandomLoss(trace []transition, port int) error {
	const allowance = 20 // LOSS_THRESH
	for _, one := range trace {
		if int(one.LocalPort) != port {
			continue
		}
		if one.From == refill {
			if one.RandomLoss != 0 {
				return fmt.Errorf("allows %d/1024 after the first probe began: %s", one.RandomLoss, one)
			}
			return nil
		}
		if one.RandomLoss != allowance && (one.From != cruise || one.RandomLoss != 0) {
			return fmt.Errorf("allows %d/1024 before the first probe, want %d: %s", one.RandomLoss, allowance, one)
		}
	}
	return errors.New("no probe")
}

// step is an edge of the state machine and the reason to take it.
type step struct {
	from, to mode
	why      why
}

func (s step) String() string { return fmt.Sprintf("%s to %s (%s)", s.from, s.to, s.why) }

// of returns the transitions of the connection from a port.
func of(trace []transition, port int) (its []transition) {
	for _, one := range trace {
		if int(one.LocalPort) == port {
			its = append(its, one)
		}
	}
	return its
}

type steps map[step]int

func count(trace []transition) steps {
	out := steps{}
	for _, one := range trace {
		out[step{one.From, one.To, one.Why}]++
	}
	return out
}

// has reports whether a step was taken, for its reason if it gives one.
func (s steps) has(want step) bool {
	for one := range s {
		if one.from == want.from && one.to == want.to && (want.why == 0 || one.why == want.why) {
			return true
		}
	}
	return false
}
