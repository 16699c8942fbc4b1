package daemon

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// A rule with the peer option: both ends of connections send it, and what they told is shown.
func TestRootPeerOption(t *testing.T) {
	p := newPlace(t)
	p.rules(t, `rules:
  - {name: all, match: {remote: [127.0.0.0/8]}, learn: {arms: [cubic], hold_out: 0}, adapt: [peer_option]}`)
	d := p.start(t)
	exchange(t, 30)
	d.awaitSamples(t, 60)
	d.awaitPath(t, "127.0.0.0/24", 20)
	n := d.status(t).Counters.Peer
	if n.Sent < 60 || n.Seen != n.Sent || n.Resent != 0 || n.Omitted != 0 {
		t.Errorf("counted are %+v", n)
	}
	e, err := d.Explain(ctx, api.ExplainRequest{Remote: netip.MustParseAddr("127.0.0.1"), Cgroup: p.cgroup.Path})
	if err != nil {
		t.Fatal(err)
	}
	if e.Path == nil || e.Path.Peer == nil || e.Path.Peer.Delack != 40*time.Millisecond || e.Path.Peer.Receive == 0 {
		t.Errorf("path is %+v", e.Path)
	}
	if !slices.ContainsFunc(e.Fields, func(f api.FieldWhy) bool { return f.Field == "peer_option" && f.Applied }) {
		t.Errorf("fields are %+v", e.Fields)
	}
}

// Once a connection is established, neither of its ends is asked for options any more.
func TestRootPeerOptionOnlyInHandshakes(t *testing.T) {
	p := newPlace(t)
	p.rules(t, `rules: [{name: all, match: {remote: [127.0.0.0/8]}, learn: {hold_out: 0}, adapt: [peer_option]}]`)
	asked := testenv.CountCallbacks(t, p.cgroup.Path, unix.BPF_SOCK_OPS_HDR_OPT_LEN_CB, 0)
	p.start(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer c.Close()
	s, err := l.Accept()
	must(t, err)
	defer s.Close()
	established := asked()
	for range 50 {
		for _, ends := range [][2]net.Conn{{c, s}, {s, c}} {
			_, err := ends[0].Write([]byte("hello"))
			must(t, err)
			_, err = io.ReadFull(ends[1], make([]byte, 5))
			must(t, err)
		}
	}
	// The first packet of an end may come before the program is told that it is established.
	if n := asked() - established; established < 2 || n > 2 {
		t.Errorf("options were asked for %d times in the handshake, and %d times after it", established, n)
	}
}

// Listeners that are older than the daemon are asked for the option while it runs, and not any more after it.
func TestRootListenersLoseTheirFlag(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			defer l.Close()
			connect := func() {
				t.Helper()
				c, err := net.Dial("tcp", l.Addr().String())
				must(t, err)
				s, err := l.Accept()
				must(t, err)
				c.Close()
				s.Close()
			}
			asked := testenv.CountCallbacks(t, p.cgroup.Path, unix.BPF_SOCK_OPS_HDR_OPT_LEN_CB, 0)
			connect()
			if n := asked(); n != 0 {
				t.Fatalf("before the daemon, options were asked for %d times", n)
			}
			p.rules(t, `rules: [{name: all, match: {remote: [127.0.0.0/8], direction: incoming}, learn: {hold_out: 0}, adapt: [peer_option]}]`)
			text, err := os.ReadFile(p.config)
			must(t, err)
			must(t, os.WriteFile(p.config, bytes.Replace(text, []byte("interval: 0"), []byte("interval: 1s"), 1), 0o600)) // walks
			d := p.start(t, func(o *Options) { o.KeepAttached = end.keep })
			for until := time.Now().Add(20 * time.Second); asked() == 0; time.Sleep(50 * time.Millisecond) {
				connect()
				if s := d.status(t); slices.ContainsFunc(s.Features, func(f api.Feature) bool { return !f.Active && f.Why != "" && f.Wanted }) {
					d.stop(t)
					testenv.Missing(t, "TCP_BPF_SOCK_OPS_CB_FLAGS (Linux 6.12)")
				}
				if time.Now().After(until) {
					t.Fatal("the listener is not asked for options")
				}
			}
			end.undo(t, p, d)
			before := asked()
			connect()
			if n := asked(); n != before {
				t.Errorf("after the daemon, options were asked for %d times", n-before)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
