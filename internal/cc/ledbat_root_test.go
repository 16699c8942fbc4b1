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

// bench is a line that tests send on.
type bench struct {
	t    testing.TB
	l    *net.TCPListener
	to   string
	line *line
}

// onLine runs f in a namespace with a line in it.
func onLine(t testing.TB, sh shape, f func(b *bench)) {
	t.Helper()
	testenv.NetNS(t).Do(t, func() {
		l, err := net.Listen("tcp4", "0.0.0.0:0")
		must(t, err)
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		line, err := openLine(uint16(port), sh)
		must(t, err)
		defer func() { must(t, line.close()) }()
		f(&bench{t, l.(*net.TCPListener), net.JoinHostPort(lineThere, fmt.Sprint(port)), line})
	})
}

// flow is one connection that sends as fast as it can.
type flow struct {
	c, s    net.Conn
	arrived atomic.Int64
}

// flow begins one with a congestion control.
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

// watch samples a flow every 20 ms for a while: bytes per second that arrived, and
// what the kernel said each time.
func (f *flow) watch(t testing.TB, d time.Duration) (rate float64, infos []*unix.TCPInfo) {
	t.Helper()
	before, begin := f.arrived.Load(), time.Now()
	for time.Since(begin) < d {
		time.Sleep(20 * time.Millisecond)
		infos = append(infos, tcpInfo(t, f.c))
	}
	return float64(f.arrived.Load()-before) / time.Since(begin).Seconds(), infos
}

// bloated is a line whose queue is more than three times what the scavenger may add.
var bloated = shape{rate: 2_500_000, delay: 10 * time.Millisecond, buffer: 500_000}

// TestRootLedbatAlone: alone it uses the path, and the queue that it keeps is about
// its target of 60 ms, far from the 200 ms that there is room for.
func TestRootLedbatAlone(t *testing.T) {
	ledbat := registerLedbat(t)
	onLine(t, bloated, func(b *bench) {
		f := b.flow(ledbat)
		f.watch(t, 3*time.Second) // slow start and the first slowdown
		testenv.OnceMore(t, func() error {
			rate, infos := f.watch(t, 3*time.Second)
			share := rate / float64(bloated.rate)
			queue := median(infos, func(i *unix.TCPInfo) uint32 { return i.Rtt - i.Min_rtt })
			t.Logf("%.2f of the rate, %d us of queue, %d retransmits", share, queue, infos[len(infos)-1].Total_retrans)
			if share < 0.7 {
				return fmt.Errorf("used %.2f of the path", share)
			}
			if queue < 30_000 || queue > 90_000 {
				return fmt.Errorf("added %d us to the path, the target is 60000", queue)
			}
			return nil
		})
	})
}

// TestRootLedbatYields: when somebody comes it goes, to its least window.
func TestRootLedbatYields(t *testing.T) {
	ledbat := registerLedbat(t)
	onLine(t, bloated, func(b *bench) {
		background := b.flow(ledbat)
		background.watch(t, 2*time.Second)
		foreground := b.flow("cubic")
		foreground.watch(t, 3*time.Second)
		testenv.OnceMore(t, func() error {
			before := background.arrived.Load()
			rate, _ := foreground.watch(t, 3*time.Second)
			left := float64(background.arrived.Load()-before) / 3
			t.Logf("foreground has %.2f of the rate, background %.2f", rate/float64(bloated.rate), left/float64(bloated.rate))
			if left > rate/4 {
				return fmt.Errorf("the foreground has %.0f bytes/s, the background still %.0f", rate, left)
			}
			return nil
		})
	})
}

func registerLedbat(t testing.TB) string {
	t.Helper()
	r := newRig(t)
	r.known = embeddedAside()
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
