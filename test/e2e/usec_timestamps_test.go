package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/load"
)

// newRoutedWorld is a world without emulated links whose client has a route of its own to the remote, and the host
// profile for that.
func newRoutedWorld(t *testing.T) (w *world, profile string) {
	t.Helper()
	w = newPlainWorld(t, "near")
	to := w.remotes[0].Addr4
	out, err := w.star.Client.Run("ip", "route", "get", to.String()) // ADDRESS via GATEWAY dev DEVICE ...
	must(t, err)
	f := strings.Fields(out)
	_, err = w.star.Client.Run("ip", append([]string{"route", "replace", to.String(), "initcwnd", "20"}, f[1:5]...)...)
	must(t, err)
	return w, fmt.Sprintf("host: {usec_timestamps: [%v]}\n", netip.PrefixFrom(to, 32))
}

// usesMicroseconds opens a connection from the client to the remote, and one from there, and reports what the client's kernel
// says of their timestamps.
func (w *world) usesMicroseconds(t *testing.T) (outgoing, incoming bool) {
	t.Helper()
	var listener net.Listener
	must(t, w.star.Client.Do(func() (err error) {
		c, err := net.Dial("tcp", at(w.remotes[0].Addr4))
		if err != nil {
			return err
		}
		defer c.Close()
		outgoing = inMicroseconds(t, c)
		listener, err = net.Listen("tcp", netip.AddrPortFrom(c.LocalAddr().(*net.TCPAddr).AddrPort().Addr(), 0).String())
		return err
	}))
	defer listener.Close()
	must(t, w.remotes[0].Host.Do(func() error {
		c, err := net.Dial("tcp", listener.Addr().String())
		if err == nil {
			err = c.Close()
		}
		return err
	}))
	c, err := listener.Accept()
	must(t, err)
	defer c.Close()
	return outgoing, inMicroseconds(t, c)
}

func inMicroseconds(t *testing.T, c net.Conn) (is bool) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			t.Error(err)
			return
		}
		const usec = 64 // TCPI_OPT_USEC_TS
		is = info.Options&usec != 0
	}))
	return is
}

// Connections by a route of the host profile use timestamps in microseconds while tcpilot runs. The route is what it was at
// the end, after a crash at the next start, and by detach.
func TestRootUsecTimestamps(t *testing.T) {
	t.Parallel()
	w, profile := newRoutedWorld(t)
	shown := func() string {
		out, err := w.star.Client.Run("ip", "-4", "-d", "route", "show", "table", "all")
		must(t, err)
		return out
	}
	before := shown()
	p := startTcpilot(t, w, settings{keys: profile, rules: objectiveRules})
	want := func(when string, uses bool) {
		t.Helper()
		if out, in := w.usesMicroseconds(t); out != uses || in != uses {
			t.Errorf("%s timestamps in microseconds: outgoing %v, incoming %v, want %v", when, out, in, uses)
		}
		if after := shown(); !uses && after != before {
			t.Errorf("%s the routes are\n%s, before\n%s", when, after, before)
		}
	}
	want("with tcpilot", true)
	name := netip.PrefixFrom(w.remotes[0].Addr4, 32).String()
	if s := p.status(t).HostRoutes; len(s) != 1 || s[0].NetNS != "" || !slices.Equal(s[0].Routes, []string{name}) || len(s[0].Left) != 0 {
		t.Errorf("status shows %+v", s)
	}
	p.stop(t)
	want("after the end", false)

	p.start(t)
	p.kill()
	want("after a crash", true)
	if out, err := p.run(t, "detach", "--config", p.config); err != nil || !strings.Contains(string(out), "timestamps in microseconds of the route to "+name) {
		t.Errorf("detach: %s, %v", out, err)
	}
	want("after detach", false)

	p.start(t)
	p.kill()
	p.configure(t, settings{rules: objectiveRules})
	p.start(t)
	want("after a crash, without the profile,", false)
	p.stop(t)
}

var (
	receiverRTT = regexp.MustCompile(` rcv_rtt:([0-9.]+)`)
	receiverMax = regexp.MustCompile(`skmem:\(r[0-9]+,rb([0-9]+)`)
)

// TestMeasureUsecTimestamps compares a receiver of a download with and without timestamps in microseconds, over a pair of
// devices whose round-trip time is far below a millisecond: how large its receive buffer may become, and the throughput.
func TestMeasureUsecTimestamps(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		w, profile := newRoutedWorld(t)
		figure := func(text string, what *regexp.Regexp) float64 {
			found := what.FindStringSubmatch(text)
			if found == nil {
				t.Fatalf("ss shows %q", text)
			}
			v, err := strconv.ParseFloat(found[1], 64)
			must(t, err)
			return v
		}
		measure := func(when string) (buffer, goodput float64) {
			done := make(chan float64)
			go func() {
				done <- bulk(t, w.client, load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: 4 * time.Second, Download: true}).Goodput
			}()
			time.Sleep(3 * time.Second)
			text, err := w.star.Client.Run("ss", "-tmiH", "state", "established", "dst", w.remotes[0].Addr4.String())
			goodput = <-done
			must(t, err)
			buffer = figure(text, receiverMax)
			m.Holds(when+": round-trip time of the receiver, ms; limit of its buffer, MB; Gbit/s", "", true,
				fmt.Sprintf("%g;%.1f;%.1f", figure(text, receiverRTT), buffer/1e6, goodput/1e9))
			return buffer, goodput
		}
		p := startTcpilot(t, w, settings{keys: profile, rules: objectiveRules})
		buffer, goodput := measure("microseconds")
		p.stop(t)
		bufferMS, goodputMS := measure("milliseconds")
		testenv.AtMost(m, "limit of the buffer, of that with milliseconds", buffer/bufferMS, 0.5)
		testenv.AtMost(m, "throughput with milliseconds, of that with microseconds", goodputMS/goodput, 1.1)
	})
}
