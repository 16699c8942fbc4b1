package cc

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestReceive(t *testing.T) {
	const n = 300_000
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name  string
		ctx   context.Context
		send  func(w io.Writer)
		limit time.Duration
		want  string
	}{
		{"all", t.Context(), func(w io.Writer) { _, _ = io.CopyN(w, content(), n) }, time.Minute, ""},
		{"other data", t.Context(), func(w io.Writer) { _, _ = w.Write(make([]byte, n)) }, time.Minute, "differs from what was sent"},
		{"part", t.Context(), func(w io.Writer) { _, _ = io.CopyN(w, content(), n/2) }, time.Minute, "nothing arrived for 1.5s after 150000 of 300000 bytes"},
		{"slowly", t.Context(), func(w io.Writer) { _, _ = io.CopyN(w, content(), n) }, 0, "does not use the link"},
		{"ended", ended, func(w io.Writer) { _, _ = io.CopyN(w, content(), n) }, time.Minute, "canceled"},
	} {
		a, b := net.Pipe()
		go c.send(a)
		err := receive(c.ctx, b, n, c.limit)
		a.Close()
		b.Close()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestReceiveEnd(t *testing.T) {
	for _, c := range []struct {
		name string
		send func(w io.WriteCloser)
		want string
	}{
		{"ends", func(w io.WriteCloser) { _ = w.Close() }, ""},
		{"more data", func(w io.WriteCloser) { _, _ = w.Write([]byte{1}) }, "more bytes"},
		{"stays open", func(io.WriteCloser) {}, "did not end"},
	} {
		a, b := connected(t)
		c.send(a)
		err := receiveEnd(b)
		a.Close()
		b.Close()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// connected are the two ends of a connection over loopback.
func connected(t *testing.T) (net.Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	a, err := net.Dial("tcp4", l.Addr().String())
	must(t, err)
	b, err := l.Accept()
	must(t, err)
	return a, b
}

// An error of the function is returned.
func TestOnDescriptor(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	raw, err := l.(*net.TCPListener).SyscallConn()
	must(t, err)
	if err := onDescriptor(raw, func(int) error { return unix.EBUSY }); !errors.Is(err, unix.EBUSY) {
		t.Errorf("%v", err)
	}
	must(t, onDescriptor(raw, func(int) error { return nil }))
	must(t, l.Close())
	if err := onDescriptor(raw, func(int) error { return nil }); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

func TestJudge(t *testing.T) {
	st := stage{maxRetrans: 0.25}
	if err := st.judge(delivery{packets: 1000, retrans: 250}); err != nil {
		t.Error(err)
	}
	if err := st.judge(delivery{packets: 1000, retrans: 251}); err == nil {
		t.Error("too many retransmissions, and no error")
	}
	if err := st.judge(delivery{}); err != nil {
		t.Error(err)
	}
}

func TestBottleneck(t *testing.T) {
	l := &emulatedLink{shape: shape{rate: 1000, buffer: 2000}}
	now := time.Unix(100, 0)
	for i, want := range []time.Duration{1, 2, 3} { // 1000 bytes take a second; 2000 may wait
		at, ok := l.bottleneck(now, 1000)
		if got := at.Sub(now); !ok || got != want*time.Second {
			t.Errorf("packet %d passes after %s, %t, want %d s", i, got, ok, want)
		}
	}
	if _, ok := l.bottleneck(now, 1000); ok {
		t.Error("the full buffer accepted a packet")
	}
	later := now.Add(time.Minute)
	if at, ok := l.bottleneck(later, 500); !ok || at.Sub(later) != 500*time.Millisecond {
		t.Errorf("when it is idle a packet passes after %s, %t", at.Sub(later), ok)
	}
}
