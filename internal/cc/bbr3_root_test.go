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

	"github.com/tcpilot/tcpilot/internal/lab/link"
	"github.com/tcpilot/tcpilot/internal/lab/topology"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// script is what becomes of the path while the connections of TestRootBBR3States
// send. Back from there is always 10 ms.
var script = []struct {
	name  string
	lasts time.Duration
	link  link.Spec
}{
	{"long: the clock says when to probe", 9 * time.Second,
		link.Spec{Rate: 20e6, Delay: 50 * time.Millisecond, Queue: link.Queue{Bytes: 150_000}}},
	{"short: Reno's time says so", 5 * time.Second,
		link.Spec{Rate: 30e6, Delay: 10 * time.Millisecond, Queue: link.Queue{Bytes: 75_000}}},
	{"lossy, with little room", 3 * time.Second,
		link.Spec{Rate: 30e6, Delay: 10 * time.Millisecond, Queue: link.Queue{Bytes: 20_000}, Loss: 0.01}},
	{"marking", 3 * time.Second,
		link.Spec{Rate: 30e6, Delay: 10 * time.Millisecond, Queue: link.Queue{Bytes: 150_000}, ECN: 15_000}},
}

// TestRootBBR3States: on a scripted path two connections, one of which pauses, change
// their modes as the draft's state machine does. A machine with an edge less than it
// took is found to differ.
func TestRootBBR3States(t *testing.T) {
	takesControls(t)
	ring := tracedBBR3(t, "test_trace")
	testenv.OnceMore(t, func() error { return playScript(t, ring) })
}

// playScript judges the rules of the machine at once; what the path was to bring about,
// and a machine that stood still may have kept from happening, is in the error.
func playScript(t *testing.T, ring *ringbuf.Reader) error {
	t.Helper()
	path := newPath(t)
	bulk, pausing := path.connect(t, "test_trace"), path.connect(t, "test_trace")
	go func() { _, _ = io.Copy(bulk, content()) }()
	go sendNowAndThen(pausing)
	var windows []window
	for _, scene := range script {
		must(t, path.there.Set(scene.link))
		windows = append(windows, watch(t, bulk, scene.lasts)...)
	}
	must(t, errors.Join(bulk.Close(), pausing.Close()))
	trace := readTrace(t, ring)
	for _, complaint := range draft().check(trace) {
		t.Error(complaint)
	}
	missed := []error{checkRandomLoss(trace, bulk.LocalAddr().(*net.TCPAddr).Port)}
	probes := checkFloor(t, trace, bulk.LocalAddr().(*net.TCPAddr).Port, windows)
	seen := count(trace)
	t.Logf("%d transitions, %d ProbeRTT with samples: %v", len(trace), probes, seen)
	for _, want := range []struct {
		from, to mode
		why      why
	}{
		{startup, drain, 0}, {drain, down, 0}, {down, cruise, drained}, {cruise, refill, probeTime}, {cruise, refill, renoTime},
		{refill, up, refilled}, {up, down, 0}, {probeRTT, down, probedRTT},
	} {
		if !seen.has(want.from, want.to, want.why) {
			missed = append(missed, fmt.Errorf("never went from %s to %s (%s): the path was to make it", want.from, want.to, want.why))
		}
	}
	if probes == 0 {
		missed = append(missed, errors.New("no ProbeRTT of which a sample was taken"))
	}
	for edge := range seen {
		broken := draft()
		delete(broken, [2]mode{edge.from, edge.to})
		if len(broken.check(trace)) == 0 {
			t.Errorf("a machine without %s to %s allows the same trace", edge.from, edge.to)
		}
	}
	return errors.Join(missed...)
}

// TestRootBBR3Policed: Startup ends in the round in which the bucket is empty, and by the
// first probe the bucket's rate is forgotten: all that is known is the policer's.
func TestRootBBR3Policed(t *testing.T) {
	takesControls(t)
	ring := tracedBBR3(t, "test_trace")
	const policed = 20e6
	testenv.OnceMore(t, func() error {
		policer := link.Spec{Rate: 5 * policed, Delay: 10 * time.Millisecond, Queue: link.Queue{Bytes: 250_000},
			Policer: link.Policer{Rate: policed, Burst: 100_000}}
		var full transition
		for _, one := range traceOver(t, ring, policer, 4*time.Second) { // the time to probe comes after 3 at most
			switch {
			case one.From == startup:
				full = one
			case one.From == refill:
				t.Logf("%s; %s", full, one)
				if full.Why != highLoss || full.Lost > full.Delivered {
					return fmt.Errorf("Startup lost %d and delivered %d packets: %s", full.Lost, full.Delivered, full)
				}
				if rate := 8 * float64(one.BW); rate > 1.25*policed {
					return fmt.Errorf("refills at %.1f Mbit/s: %s", rate/1e6, one)
				}
				return nil
			}
		}
		return errors.New("no probe")
	})
}

// TestRootBBR3Marked: Startup ends in the round trip in which the marks come back, not in
// the next, when the queue is twice as long.
func TestRootBBR3Marked(t *testing.T) {
	takesControls(t)
	ring := tracedBBR3(t, "test_trace")
	testenv.OnceMore(t, func() error {
		marking := link.Spec{Rate: 30e6, Delay: 10 * time.Millisecond, Queue: link.Queue{Bytes: 300_000}, ECN: 15_000}
		for _, one := range traceOver(t, ring, marking, time.Second) {
			if one.From != startup {
				continue
			}
			if one.Why != highECN || one.SRTT > one.MinRTT*7/4 { // the round after: 2.1
				return errors.New(one.String())
			}
			t.Log(one)
			return nil
		}
		return errors.New("Startup has no end")
	})
}

// TestRootBBR3Shares: beside Cubic in a queue of a BDP probes come by the clock. At Reno's
// time there would be a dozen and more, and Cubic would have 28 % instead of 35 to 43; that
// is the lab's to measure (own-bbr3).
func TestRootBBR3Shares(t *testing.T) {
	takesControls(t)
	ring := tracedBBR3(t, "test_trace")
	testenv.OnceMore(t, func() error {
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
		seen := count(readTrace(t, ring))
		early, clock := 0, 0
		for edge, n := range seen {
			switch edge.why {
			case renoTime, probeSafe:
				early += n
			case probeTime:
				clock += n
			}
		}
		share := theirBytes / (theirBytes + ourBytes)
		t.Logf("Cubic has %.2f; probes by the clock %d, others %d", share, clock, early)
		if clock < 2 || early > 2 {
			return fmt.Errorf("Cubic has %.2f; probes by the clock %d, others %d", share, clock, early)
		}
		return nil
	})
}

// traceOver is that of one connection that sends for some time over a link.
func traceOver(t *testing.T, ring *ringbuf.Reader, over link.Spec, lasts time.Duration) []transition {
	t.Helper()
	path := newPath(t)
	must(t, path.there.Set(over))
	c := path.connect(t, "test_trace")
	go func() { _, _ = io.Copy(c, content()) }()
	time.Sleep(lasts)
	must(t, c.Close())
	return readTrace(t, ring)
}

// tracedBBR3 registers bbr3 with its trace on, for as long as the test runs.
func tracedBBR3(t *testing.T, cc string) *ringbuf.Reader {
	t.Helper()
	o := *find(embedded(), "tcpilot_bbr3")
	o.knobs = map[string]any{"trace_transitions": true}
	spec, ops, err := o.specFor(cc)
	must(t, err)
	spec.Maps["bbr3_transitions"].MaxEntries = 1 << 20 // all of it: it is read at the end
	coll, err := ebpf.NewCollection(spec)
	must(t, err)
	t.Cleanup(coll.Close)
	l, err := attach(coll.Maps[ops])
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	ring, err := ringbuf.NewReader(coll.Maps["bbr3_transitions"])
	must(t, err)
	t.Cleanup(func() { must(t, ring.Close()) })
	return ring
}

func readTrace(t *testing.T, ring *ringbuf.Reader) (trace []transition) {
	t.Helper()
	ring.SetDeadline(time.Now().Add(100 * time.Millisecond))
	for {
		r, err := ring.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return trace
		}
		must(t, err)
		var one transition
		must(t, binary.Read(bytes.NewReader(r.RawSample), binary.NativeEndian, &one))
		trace = append(trace, one)
	}
}

// path is two hosts and a wire between them that can be shaped.
type path struct {
	left, right *topology.End
	there       *link.Direction
	l           net.Listener
}

func newPath(t *testing.T) *path {
	t.Helper()
	n, err := topology.New()
	must(t, err)
	stop := n.CloseOnSignal()
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

// connect makes a connection under a control whose other end takes all that comes.
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

// sendNowAndThen leaves the connection idle between bursts, until it is closed.
func sendNowAndThen(c net.Conn) {
	for {
		if _, err := io.CopyN(c, content(), 300_000); err != nil {
			return
		}
		time.Sleep(400 * time.Millisecond)
	}
}

// window is what a connection's window was at a time between two, by the clock of
// bpf_ktime_get_ns.
type window struct {
	after, before uint64
	packets       uint32
	timeout       bool // the kernel has set it, after a retransmission timeout
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

// checkFloor sees that in no ProbeRTT the window was below the draft's, and returns
// how many there were with samples.
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

// checkRandomLoss sees that a connection allows its path 2 % of losses up to its first
// probe, and then, as the path had none so far, nothing. The other connection's queue may
// end that while it cruises.
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

// step is an edge with the reason for which it was taken.
type step struct {
	from, to mode
	why      why
}

func (s step) String() string { return fmt.Sprintf("%s to %s (%s)", s.from, s.to, s.why) }

type steps map[step]int

func count(trace []transition) steps {
	out := steps{}
	for _, one := range trace {
		out[step{one.From, one.To, one.Why}]++
	}
	return out
}

// has reports whether an edge was taken, for a reason if one is given.
func (s steps) has(from, to mode, w why) bool {
	for one := range s {
		if one.from == from && one.to == to && (w == 0 || one.why == w) {
			return true
		}
	}
	return false
}
