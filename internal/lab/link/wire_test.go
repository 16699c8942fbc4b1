package link

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/lab/topology"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"golang.org/x/sys/unix"
)

// newPair is two hosts and the wire between them, with cubic and windows for
// 5 Gbit/s at 20 ms.
func newPair(t testing.TB) (a, b *topology.End) {
	t.Helper()
	testenv.Root(t)
	n, err := topology.New()
	must(t, err)
	stop := n.CloseOnSignal()
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
	if err := HasNetem(); err == nil {
		all = append(all, Netem)
	} else if !errors.Is(err, ErrNoNetem) {
		t.Fatal(err)
	}
	for _, b := range all {
		t.Run(string(b), func(t *testing.T) { test(t, b) })
	}
}

// slack is what a delay may be too long by: 0.5 ms, or emulated.
func slack(t testing.TB) time.Duration {
	t.Helper()
	cpus, err := os.ReadFile("/proc/cpuinfo")
	must(t, err)
	if strings.Contains(string(cpus), "QEMU TCG") {
		return emulated
	}
	return 500 * time.Microsecond
}

// emulated is the slack where processors are emulated by one of the machine's:
// each may stand still for tens of milliseconds.
const emulated = 40 * time.Millisecond

// between fails the test if a time is not in a range.
func between(t testing.TB, what string, got, low, high time.Duration) {
	t.Helper()
	if got < low || got > high {
		t.Errorf("%s: %s, want %s to %s", what, got, low, high)
	}
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

// flight is what a packet of a stream met with.
type flight struct {
	seq   int
	delay time.Duration // from write to read
	at    time.Time     // of the read
}

// frame is what a packet of a stream has on the wire: Ethernet, IPv4, UDP.
func frame(payload int) int { return 14 + 20 + 8 + payload }

// stream sends count UDP packets, a gap apart, and returns those that arrive, in
// the order of arrival. during, if any, runs halfway.
func stream(t testing.TB, from, to *topology.End, count, payload int, gap time.Duration, during func() error) []flight {
	t.Helper()
	var in net.PacketConn
	must(t, to.Host.Do(func() (err error) {
		in, err = net.ListenPacket("udp4", netip.AddrPortFrom(to.Addr4.Addr(), 9).String())
		return err
	}))
	defer in.Close()
	raw, err := in.(*net.UDPConn).SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 512<<20)
	}))
	sent := make([]time.Time, count)
	done := make(chan []flight)
	last := make(chan struct{})
	go func() { done <- arrivals(in, sent, last) }()
	err = from.Host.Do(func() error { return send(to, sent, payload, gap, during) })
	close(last)
	all := <-done
	must(t, err)
	return all
}

// quiet ends a stream: longer than any gap between arrivals in the tests.
const quiet = 400 * time.Millisecond

func arrivals(in net.PacketConn, sent []time.Time, last <-chan struct{}) (all []flight) {
	buf := make([]byte, 2048)
	for len(all) < len(sent) {
		in.SetReadDeadline(time.Now().Add(quiet))
		n, _, err := in.ReadFrom(buf)
		if err != nil {
			select {
			case <-last:
				return all
			default:
				continue
			}
		}
		if n >= 4 {
			now := time.Now()
			seq := int(binary.BigEndian.Uint32(buf))
			all = append(all, flight{seq, now.Sub(sent[seq]), now})
		}
	}
	return all
}

func send(to *topology.End, sent []time.Time, payload int, gap time.Duration, during func() error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 64<<20); err != nil {
		return err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: to.Addr4.Addr().As4()}); err != nil {
		return err
	}
	packet := make([]byte, payload)
	begin := time.Now()
	for i := range sent {
		if during != nil && i == len(sent)/2 {
			if err := during(); err != nil {
				return err
			}
		}
		// Behind its time it does not sleep; it never spins, which on an emulated
		// processor would stop the others.
		time.Sleep(time.Until(begin.Add(time.Duration(i) * gap)))
		binary.BigEndian.PutUint32(packet, uint32(i))
		sent[i] = time.Now()
		if _, err := unix.Write(fd, packet); err != nil && err != unix.ENOBUFS {
			return err
		}
	}
	return nil
}

// complete fails the test if packets of a stream are missing.
func complete(t testing.TB, all []flight, count int) {
	t.Helper()
	if len(all) != count {
		t.Errorf("%d of %d packets arrived", len(all), count)
	}
}

// overtaken counts packets that came after one that was sent later.
func overtaken(all []flight) (n int) {
	last := 0
	for _, f := range all {
		if f.seq < last {
			n++
		}
		last = max(last, f.seq)
	}
	return n
}

// inOrder fails the test if a packet was overtaken. Emulated processors stand
// still in turns, each with a backlog of its own, so that some always are.
func inOrder(t testing.TB, all []flight, slack time.Duration) {
	t.Helper()
	if n := overtaken(all); n > 0 && slack < emulated {
		t.Errorf("%d of %d packets were overtaken", n, len(all))
	}
}

// delays sorts what the packets of a stream took.
func delays(all []flight) []time.Duration {
	var d []time.Duration
	for _, f := range all {
		d = append(d, f.delay)
	}
	slices.Sort(d)
	return d
}

func median[T any](sorted []T) T { return sorted[len(sorted)/2] }

// rtt is the median time of a connect: kernel to kernel, but for the wake-up.
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
				return errors.Join(errors.New("somebody listens"), c.Close())
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

// transfer sends for d over TCP and returns what arrived per second, in bits.
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

// about says whether got is within a share of want.
func about(got, want, share float64) bool { return got >= want*(1-share) && got <= want*(1+share) }
