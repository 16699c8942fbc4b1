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
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/lab/link"
	"github.com/tcpilot/tcpilot/internal/lab/topology"
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
			t.Errorf("never went from %s to %s (%s): the path was to make it", want.from, want.to, want.why)
		}
	}
	if probes == 0 {
		t.Error("no ProbeRTT of which a sample was taken")
	}
	for edge := range seen {
		broken := draft()
		delete(broken, [2]mode{edge.from, edge.to})
		if len(broken.check(trace)) == 0 {
			t.Errorf("a machine without %s to %s allows the same trace", edge.from, edge.to)
		}
	}
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
		must(t, control(c, func(fd int) error {
			info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			if err == nil {
				w.packets, w.timeout = info.Snd_cwnd, info.Ca_state == lossState
			}
			return err
		}))
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
