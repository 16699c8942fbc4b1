package link

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/topology"
	"golang.org/x/sys/unix"
)

// newPair is two hosts and the wire between them, with cubic and windows for
// 5 Gbit/s at 20 ms.
func newPair(t testing.TB) (a, b *topology.End) {
	t.Helper()
	testenv.Root(t)
	n, err := topology.New()
	must(t, err)
	stop := testenv.CloseOnSignal(n)
	t.Cleanup(func() {
		stop()
		must(t, n.Close())
	})
	var hosts [2]*topology.Host
	for i, name := range []string{"left", "right"} {
		hosts[i], err = n.Host(name)
		must(t, err)
		must(t, hosts[i].SetCongestion("cubic"))
		must(t, hosts[i].SetSysctl("net.ipv4.tcp_rmem", "4096 131072 67108864"))
		must(t, hosts[i].SetSysctl("net.ipv4.tcp_wmem", "4096 131072 67108864"))
	}
	a, b, err = n.Wire(
		topology.EndSpec{Host: hosts[0], Device: "eth0",
			Addr4: netip.MustParsePrefix("10.78.0.1/24"), Addr6: netip.MustParsePrefix("fd78::1/64")},
		topology.EndSpec{Host: hosts[1], Device: "eth0",
			Addr4: netip.MustParsePrefix("10.78.0.2/24"), Addr6: netip.MustParsePrefix("fd78::2/64")})
	must(t, err)
	return a, b
}

// onBackends runs a test with each backend that this kernel has.
func onBackends(t *testing.T, test func(*testing.T, Backend)) {
	t.Helper()
	all := []Backend{Emulator}
	if err := hasNetem(); err == nil {
		all = append(all, Netem)
	} else if !errors.Is(err, errNoNetem) {
		t.Fatal(err)
	}
	for _, b := range all {
		t.Run(string(b), func(t *testing.T) { test(t, b) })
	}
}

// slack is by how much a delay may exceed the Spec in a measurement: 1 ms, plus how late
// one sleep in twenty ends on this machine now.
func slack(t testing.TB) time.Duration {
	t.Helper()
	cpus, err := os.ReadFile("/proc/cpuinfo")
	must(t, err)
	if strings.Contains(string(cpus), "QEMU TCG") {
		return emulated
	}
	return min(time.Millisecond+oversleeps(60)[56], emulated-time.Millisecond)
}

// oversleeps returns how late so many sleeps of 1 ms end, the least first. A delay that
// is made by waking up in time cannot be more accurate than that.
func oversleeps(count int) []time.Duration {
	all := make([]time.Duration, count)
	for i := range all {
		begin := time.Now()
		time.Sleep(time.Millisecond)
		all[i] = time.Since(begin) - time.Millisecond
	}
	slices.Sort(all)
	return all
}

// loose is by how much a delay may exceed the Spec in a test: other work on the same
// processor adds some ms to many packets. TestMeasure* check what a quiet machine does.
const loose = 2 * time.Second

// emulated is the slack if one processor of the machine emulates several: each may
// stall for tens of milliseconds.
const emulated = 40 * time.Millisecond

// between fails the test if a time is not in a range.
func between(t testing.TB, what string, got, low, high time.Duration) {
	t.Helper()
	if err := outside(what, got, low, high); err != nil {
		t.Error(err)
	}
}

// mostEarly is how much before its time a packet may leave: the worker wakes up early
// because sleeps last longer than asked, and releases packets that are due soon together.
func mostEarly(s Spec) time.Duration { return oversleep + early(s) }

// outside returns an error if a time is not in a range.
func outside(what string, got, low, high time.Duration) error {
	if got < low || got > high {
		return fmt.Errorf("%s: %s, want %s to %s", what, got, low, high)
	}
	return nil
}

// shape shapes packets from one end to the other until the test ends.
func shape(t testing.TB, from, to *topology.End, s Spec, b Backend) *Direction {
	t.Helper()
	d, err := Shape(Ends{from, to}, s, b)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func counters(t testing.TB, d *Direction) Counters {
	t.Helper()
	c, err := d.Counters()
	must(t, err)
	return c
}

// sane fails the test if the emulation itself dropped packets.
func sane(t testing.TB, d *Direction) {
	t.Helper()
	c := counters(t, d)
	if c.Failed > 0 {
		t.Errorf("the emulation dropped %d packets", c.Failed)
	}
	if c.Late > 0 {
		t.Logf("%d of %d packets were more than %s late", c.Late, c.Passed, lateness)
	}
}

// backlogDrops counts, from now on, the packets that the machine dropped before the
// link because a processor's backlog was full.
func backlogDrops(t testing.TB) (drops func() int) {
	count := func() (n int) {
		stat, err := os.ReadFile("/proc/net/softnet_stat")
		must(t, err)
		for line := range strings.Lines(string(stat)) {
			var processed, dropped int
			_, err := fmt.Sscanf(line, "%x %x", &processed, &dropped)
			must(t, err)
			n += dropped
		}
		return n
	}
	before := count()
	return func() int { return count() - before }
}

// rtt is the median time of a connect: kernel to kernel, plus the wake-up.
func rtt(t testing.TB, from *topology.End, to netip.Addr) time.Duration {
	t.Helper()
	return median(rtts(t, from, to, 15))
}

func rtts(t testing.TB, from *topology.End, to netip.Addr, count int) []time.Duration {
	t.Helper()
	const closed = 7 // a port where nobody listens: refused after one round trip
	var all []time.Duration
	must(t, from.Host.Do(func() error {
		for range count {
			begin := time.Now()
			c, err := net.Dial("tcp", netip.AddrPortFrom(to, closed).String())
			all = append(all, time.Since(begin))
			if err == nil {
				return errors.Join(errors.New("a process listens there"), c.Close())
			}
			if !errors.Is(err, unix.ECONNREFUSED) {
				return err
			}
		}
		return nil
	}))
	slices.Sort(all)
	return all
}

// transfer sends for d over TCP and returns the goodput in bit/s.
func transfer(t testing.TB, from, to *topology.End, addr netip.Addr, d time.Duration) float64 {
	t.Helper()
	var l net.Listener
	must(t, to.Host.Do(func() (err error) { l, err = net.Listen("tcp", netip.AddrPortFrom(addr, 5001).String()); return }))
	defer l.Close()
	received := make(chan float64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			received <- 0
			return
		}
		defer c.Close()
		buf := make([]byte, 1<<20)
		start, total := time.Now(), 0
		for {
			n, err := c.Read(buf)
			total += n
			if err != nil || time.Since(start) > d {
				break
			}
		}
		received <- float64(total) * 8 / time.Since(start).Seconds()
		io.Copy(io.Discard, c)
	}()
	var c net.Conn
	must(t, from.Host.Do(func() (err error) { c, err = net.Dial("tcp", l.Addr().String()); return }))
	c.SetWriteDeadline(time.Now().Add(d + 200*time.Millisecond))
	buf := make([]byte, 256<<10)
	for {
		if _, err := c.Write(buf); err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(err)
			}
			break
		}
	}
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
	return <-received
}

// about reports whether got is within a share of want.
func about(got, want, share float64) bool { return got >= want*(1-share) && got <= want*(1+share) }
