package link

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/lab/topology"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"golang.org/x/sys/unix"
)

// newPair is two hosts and the wire between them.
func newPair(t *testing.T) (a, b *topology.End) {
	t.Helper()
	testenv.Root(t)
	n, err := topology.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	left, err := n.Host("left")
	if err != nil {
		t.Fatal(err)
	}
	right, err := n.Host("right")
	if err != nil {
		t.Fatal(err)
	}
	a, b, err = n.Wire(
		topology.EndSpec{Host: left, Device: "eth0", Addr4: netip.MustParsePrefix("10.78.0.1/24")},
		topology.EndSpec{Host: right, Device: "eth0", Addr4: netip.MustParsePrefix("10.78.0.2/24")})
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

func newLoss(t *testing.T, at *topology.End) *Loss {
	t.Helper()
	l, err := NewLoss(at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close loss: %v", err)
		}
	})
	return l
}

// blast sends count small UDP packets from one end to the other.
func blast(t *testing.T, from, to *topology.End, count int) {
	t.Helper()
	err := from.Host.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: to.Addr4.Addr().As4()}); err != nil {
			return err
		}
		payload := make([]byte, 18)
		for range count {
			// ECONNREFUSED reports an earlier packet's ICMP, not this one's fate.
			if _, err := unix.Write(fd, payload); err != nil && err != unix.ECONNREFUSED && err != unix.ENOBUFS {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// discard opens a socket on the port that blast sends to, so that the host does
// not answer each packet with ICMP.
func discard(t *testing.T, at *topology.End) {
	t.Helper()
	var c net.PacketConn
	err := at.Host.Do(func() (err error) { c, err = net.ListenPacket("udp4", ":9"); return })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
}

func TestRootLossIsAccurate(t *testing.T) {
	a, b := newPair(t)
	l := newLoss(t, b)
	discard(t, b)
	for _, asked := range []float64{0.02, 0.10} {
		t.Run(fmt.Sprint(asked), func(t *testing.T) {
			if err := l.Set(asked); err != nil {
				t.Fatal(err)
			}
			before, err := l.Counters()
			if err != nil {
				t.Fatal(err)
			}
			// At 2 % and 400,000 packets 5 % relative are 4.5 standard deviations.
			const packets = 400_000
			blast(t, a, b, packets)
			after, err := l.Counters()
			if err != nil {
				t.Fatal(err)
			}
			got := after.Sub(before)
			if seen := got.Passed + got.Dropped; seen < packets*99/100 {
				t.Errorf("%d of %d packets arrived at the wire", seen, packets)
			}
			if rel := math.Abs(got.Loss()-asked) / asked; rel > 0.05 {
				t.Errorf("lost %.4f, asked %.4f: %.1f %% off", got.Loss(), asked, 100*rel)
			}
		})
	}
}

func TestRootLossIsOfOneDirection(t *testing.T) {
	a, b := newPair(t)
	l := newLoss(t, b)
	discard(t, a)
	if err := l.Set(1); err != nil {
		t.Fatal(err)
	}
	back := newLoss(t, a)
	blast(t, b, a, 1000)
	got, err := back.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if got.Dropped != 0 || got.Passed < 1000 {
		t.Errorf("against the lossy direction: %+v, want all 1000 passed", got)
	}
	blast(t, a, b, 1000)
	if got, err = l.Counters(); err != nil {
		t.Fatal(err)
	}
	if got.Passed != 0 || got.Dropped < 1000 {
		t.Errorf("in the lossy direction: %+v, want all 1000 dropped", got)
	}
}

func TestRootLossFallsBackToClsact(t *testing.T) {
	a, b := newPair(t)
	l := newLoss(t, b)
	if err := l.detach(); err != nil {
		t.Fatal(err)
	}
	if err := l.attachClsact(); err != nil {
		t.Fatal(err)
	}
	if l.How != "clsact" {
		t.Errorf("How = %s, want clsact", l.How)
	}
	if err := l.Set(1); err != nil {
		t.Fatal(err)
	}
	blast(t, a, b, 1000)
	got, err := l.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if got.Dropped < 1000 || got.Passed != 0 {
		t.Errorf("got %+v, want all 1000 dropped", got)
	}
}

func TestRootLossRefusesNonsense(t *testing.T) {
	_, b := newPair(t)
	l := newLoss(t, b)
	for _, p := range []float64{-0.1, 1.1, math.NaN()} {
		if err := l.Set(p); err == nil {
			t.Errorf("Set(%v) was taken", p)
		}
	}
}

// transfer sends for d over TCP and returns what arrived per second, in bits.
func transfer(t *testing.T, from, to *topology.End, d time.Duration) float64 {
	t.Helper()
	var l net.Listener
	at := netip.AddrPortFrom(to.Addr4.Addr(), 5001).String()
	if err := to.Host.Do(func() (err error) { l, err = net.Listen("tcp4", at); return }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	received := make(chan float64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			received <- 0
			return
		}
		defer c.Close()
		start := time.Now()
		n, _ := io.Copy(io.Discard, c)
		received <- float64(n) * 8 / time.Since(start).Seconds()
	}()
	var c net.Conn
	if err := from.Host.Do(func() (err error) { c, err = net.Dial("tcp4", at); return }); err != nil {
		t.Fatal(err)
	}
	c.SetWriteDeadline(time.Now().Add(d))
	buf := make([]byte, 64<<10)
	for {
		if _, err := c.Write(buf); err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(err)
			}
			break
		}
	}
	c.Close()
	return <-received
}

func TestRootOffloadsOffMakesOnePacketOneSegment(t *testing.T) {
	a, b := newPair(t)
	l := newLoss(t, b)
	transfer(t, a, b, 100*time.Millisecond)
	with, err := l.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if with.Aggregates == 0 {
		t.Error("no aggregate was seen with offloads on: the test shows nothing")
	}
	if err := OffloadsOff(a, b); err != nil {
		t.Fatal(err)
	}
	if tso, gso, gro, err := Offloads(a); err != nil || tso || gso || gro {
		t.Errorf("Offloads = %v %v %v, %v, want all off", tso, gso, gro, err)
	}
	transfer(t, a, b, 100*time.Millisecond)
	without, err := l.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if d := without.Sub(with); d.Aggregates != 0 || d.Passed == 0 {
		t.Errorf("with offloads off: %+v, want no aggregates", d)
	}
}

func TestRootRateIsKept(t *testing.T) {
	a, b := newPair(t)
	if err := OffloadsOff(a, b); err != nil {
		t.Fatal(err)
	}
	for _, mbit := range []float64{20, 200} {
		if err := SetRate(a, Rate{BitsPerSecond: uint64(mbit * 1e6)}); err != nil {
			t.Fatal(err)
		}
		// Of 1538 bytes on the wire 1448 are payload; tbf counts 1514 of them.
		want := mbit * 1e6 * 1448 / 1514
		got := transfer(t, a, b, time.Second)
		if got < 0.85*want || got > 1.10*want {
			t.Errorf("goodput %.1f Mbit/s at %.0f Mbit/s, want about %.1f", got/1e6, mbit, want/1e6)
		}
	}
	if err := Unshape(a); err != nil {
		t.Fatal(err)
	}
	if err := Unshape(a); err != nil {
		t.Errorf("second Unshape: %v", err)
	}
}

func TestRootMTU(t *testing.T) {
	a, b := newPair(t)
	if err := SetMTU(9000, a, b); err != nil {
		t.Fatal(err)
	}
	dev, err := b.Host.Netlink().LinkByIndex(b.Index)
	if err != nil {
		t.Fatal(err)
	}
	if dev.Attrs().MTU != 9000 {
		t.Errorf("MTU = %d, want 9000", dev.Attrs().MTU)
	}
}

// TestRootDelay accepts either outcome: a kernel with netem delays, one without
// says so by ErrNoNetem.
func TestRootDelay(t *testing.T) {
	a, b := newPair(t)
	err := SetDelay(a, 20*time.Millisecond)
	if errors.Is(err, ErrNoNetem) {
		t.Log(err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if took := handshake(t, a, b); took < 20*time.Millisecond {
		t.Errorf("connect took %s through 20 ms of delay", took)
	}
}

func TestRootQueueDelay(t *testing.T) {
	a, b := newPair(t)
	const delay = 20 * time.Millisecond
	q, err := NewDelay(a, delay) // what comes back to a waits
	if err != nil {
		t.Fatal(err)
	}
	var rtts []time.Duration
	for _, want := range []time.Duration{delay, 5 * time.Millisecond} {
		q.Set(want)
		for range 11 {
			rtts = append(rtts, handshake(t, a, b))
		}
		slices.Sort(rtts)
		if got := rtts[len(rtts)/2]; got < want || got > want+2*time.Millisecond {
			t.Errorf("median handshake took %s through %s of delay", got, want)
		}
		rtts = rtts[:0]
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if got := handshake(t, a, b); got > delay/2 {
		t.Errorf("handshake took %s after the delay was taken off", got)
	}
}

// handshake is the time of a connect.
func handshake(t *testing.T, from, to *topology.End) time.Duration {
	t.Helper()
	var l net.Listener
	at := netip.AddrPortFrom(to.Addr4.Addr(), 7).String()
	if err := to.Host.Do(func() (err error) { l, err = net.Listen("tcp4", at); return }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var c net.Conn
	start := time.Now()
	if err := from.Host.Do(func() (err error) { c, err = net.Dial("tcp4", at); return }); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return time.Since(start)
}
