package cc

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// bench is an emulated link for tests to send on.
type bench struct {
	t        testing.TB
	l        *net.TCPListener
	to       string
	emulated *emulatedLink
}

// onLink runs f in a namespace with an emulated link in it.
func onLink(t testing.TB, sh shape, f func(b *bench)) {
	t.Helper()
	testenv.NetNS(t).Do(t, func() {
		l, err := net.Listen("tcp4", "0.0.0.0:0")
		must(t, err)
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		emulated, err := openEmulatedLink(uint16(port), sh)
		must(t, err)
		defer func() { must(t, emulated.close()) }()
		f(&bench{t, l.(*net.TCPListener), net.JoinHostPort(remoteAddress, fmt.Sprint(port)), emulated})
	})
}

// flow is one connection that sends as fast as it can.
type flow struct {
	c, s    net.Conn
	arrived atomic.Int64
}

// flow starts a flow with a congestion control.
func (b *bench) flow(cc string) *flow {
	b.t.Helper()
	c, err := dialer(cc).DialContext(b.t.Context(), "tcp4", b.to)
	must(b.t, err)
	s, err := b.l.Accept()
	must(b.t, err)
	must(b.t, errors.Join(c.(*net.TCPConn).SetLinger(0), s.(*net.TCPConn).SetLinger(0)))
	f := &flow{c: c, s: s}
	go func() { _, _ = io.Copy(c, content()) }()
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := s.Read(buf)
			if err != nil {
				return
			}
			f.arrived.Add(int64(n))
		}
	}()
	b.t.Cleanup(f.stop)
	return f
}

func (f *flow) stop() { _, _ = f.c.Close(), f.s.Close() }

// watch samples a flow every 20 ms for a while. It returns the bytes per second that
// arrived, and the kernel's figures of each sample.
func (f *flow) watch(t testing.TB, d time.Duration) (rate float64, infos []*unix.TCPInfo) {
	t.Helper()
	before, begin := f.arrived.Load(), time.Now()
	for time.Since(begin) < d {
		time.Sleep(20 * time.Millisecond)
		infos = append(infos, tcpInfo(t, f.c))
	}
	return float64(f.arrived.Load()-before) / time.Since(begin).Seconds(), infos
}

// bloated is a link whose buffer is more than three times the delay that tcpilot_ledbat
// may add.
var bloated = shape{rate: 2_500_000, delay: 10 * time.Millisecond, buffer: 500_000}

// TestRootLedbatAlone: alone it uses the path, and keeps its queue far below the 200 ms
// that the buffer holds.
func TestRootLedbatAlone(t *testing.T) {
	ledbat := registerLedbat(t)
	share, queue := ledbatAlone(t, ledbat)
	t.Logf("%.2f of the rate, %s of queue", share, queue)
	if share < 0.2 || queue > 150*time.Millisecond {
		t.Errorf("it used %.2f of the path and added %s to it", share, queue)
	}
}

// The queue that it keeps is about its target of 60 ms.
func TestMeasureLedbatAlone(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		share, queue := ledbatAlone(t, registerLedbat(t))
		testenv.AtLeast(m, "share of the path", share, 0.7)
		testenv.Between(m, "queue", queue, 30*time.Millisecond, 90*time.Millisecond)
	})
}

func ledbatAlone(t *testing.T, ledbat string) (share float64, queue time.Duration) {
	onLink(t, bloated, func(b *bench) {
		f := b.flow(ledbat)
		f.watch(t, 3*time.Second) // slow start and the first slowdown
		rate, infos := f.watch(t, 2*time.Second)
		share = rate / float64(bloated.rate)
		queue = time.Duration(median(infos, func(i *unix.TCPInfo) uint32 { return i.Rtt - i.Min_rtt })) * time.Microsecond
	})
	return share, queue
}

// TestRootLedbatGivesWay: it backs off when another connection begins. Two connections of
// the same control would share equally.
func TestRootLedbatGivesWay(t *testing.T) {
	ledbat := registerLedbat(t)
	foreground, background := ledbatGivesWay(t, ledbat)
	t.Logf("foreground has %.2f of the rate, background %.2f", foreground, background)
	if background > foreground/2 {
		t.Errorf("the foreground has %.2f of the rate, the background still %.2f", foreground, background)
	}
}

// TestMeasureLedbatGivesWay: it backs off to its smallest window.
func TestMeasureLedbatGivesWay(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		foreground, background := ledbatGivesWay(t, registerLedbat(t))
		testenv.AtLeast(m, "foreground's share", foreground, 0.8)
		testenv.AtMost(m, "background's share", background, 0.05)
	})
}

func ledbatGivesWay(t *testing.T, ledbat string) (foreground, background float64) {
	onLink(t, bloated, func(b *bench) {
		behind := b.flow(ledbat)
		behind.watch(t, time.Second)
		front := b.flow("cubic")
		front.watch(t, 2*time.Second)
		before, begin := behind.arrived.Load(), time.Now()
		rate, _ := front.watch(t, 2*time.Second)
		left := float64(behind.arrived.Load()-before) / time.Since(begin).Seconds()
		foreground, background = rate/float64(bloated.rate), left/float64(bloated.rate)
	})
	return foreground, background
}

func registerLedbat(t testing.TB) string {
	t.Helper()
	r := newRig(t)
	r.known = renamedEmbedded()
	r.restart(t)
	must(t, r.Load(t.Context(), "test_ledbat"))
	return "test_ledbat"
}

func median(infos []*unix.TCPInfo, of func(*unix.TCPInfo) uint32) uint32 {
	all := make([]uint32, len(infos))
	for i := range infos {
		all[i] = of(infos[i])
	}
	slices.Sort(all)
	return all[len(all)/2]
}
