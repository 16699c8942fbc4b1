package daemon

import (
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/sysctl"
)

const fixesAll = "rules: [{name: all, set: {cc: reno, user_timeout: 12345ms, syn_rto: 100ms, init_rwnd: 40}}]"

// userTimeout reads TCP_USER_TIMEOUT, which only the rule sets.
func userTimeout(t *testing.T, c net.Conn) (ms int) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { ms, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return ms
}

// treated counts the connections of n pairs, both ends, that have what fixesAll gives. Each pair
// is in a network of its own: a slice of time is drawn for each network.
func treated(t *testing.T, n int) (with int) {
	t.Helper()
	for i := range n {
		client, server := pairAt(t, fmt.Sprintf("127.0.%d.1", i))
		for _, c := range []net.Conn{client, server} {
			cc, ms := ccOf(t, c), userTimeout(t, c)
			if (cc == "reno") != (ms == 12345) {
				t.Errorf("half treated: %s and %d ms", cc, ms)
			}
			if cc == "reno" {
				with++
			}
		}
		client.Close()
		server.Close()
	}
	return with
}

func decided(s api.Status, reason string) (n uint64) {
	for _, d := range s.Counters.Decisions {
		if d.Reason == reason {
			n += d.Count
		}
	}
	return n
}

// In mode observe the kernel changes no connection, but samples are reported. A reload
// starts tuning, and another one ends it. A rollout applies to its share.
func TestRootObserveAndRollout(t *testing.T) {
	if def, err := sysctl.Read("net.ipv4.tcp_congestion_control"); err != nil || def == "reno" {
		t.Fatalf("default %s, %v", def, err)
	}
	p := newPlace(t)
	p.rules(t, "mode: observe\n"+fixesAll)
	d := p.start(t)
	if n := treated(t, 20); n != 0 {
		t.Errorf("observed: %d of 40 ends are treated", n)
	}
	d.awaitSamples(t, 40)
	s := d.status(t)
	if s.Mode != engine.ModeObserve || decided(s, "hold-out") != 40 {
		t.Errorf("mode %s, decisions %+v", s.Mode, s.Counters.Decisions)
	}
	e, err := d.Explain(ctx, api.ExplainRequest{Remote: netip.MustParseAddr("127.0.0.1"), Cgroup: p.cgroup.Path})
	if err != nil || e.Mode != engine.ModeObserve || len(e.Fields) != 3 || e.Fields[0].Applied || !strings.Contains(e.Fields[0].Why, "would set it") || len(e.Arms) != 1 {
		t.Errorf("explained: %+v, %v", e, err)
	}

	p.rules(t, fixesAll)
	if r, err := d.Reload(ctx); err != nil || r.Mode != engine.ModeTune || len(r.Warnings) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if n := treated(t, 20); n != 40 {
		t.Errorf("tuned: %d of 40 ends are treated", n)
	}
	if s := d.status(t); s.Mode != engine.ModeTune || decided(s, "hold-out") != 40 {
		t.Errorf("mode %s, decisions %+v", s.Mode, s.Counters.Decisions)
	}

	p.rules(t, strings.Replace(fixesAll, "set:", "rollout: 25%, set:", 1))
	if r, err := d.Reload(ctx); err != nil || len(r.Changed) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if n := treated(t, 200); n < 50 || n > 150 { // of 400: 100, standard deviation 12 (both ends of a pair share a draw)
		t.Errorf("rolled out to 25%%: %d of 400 ends are treated", n)
	}
	if s := d.status(t); len(s.Rollouts) != 1 || s.Rollouts[0].Rule != "all" || s.Rollouts[0].Share != 0.25 {
		t.Errorf("%+v", s.Rollouts)
	}
	if r, err := d.SetRollout(ctx, api.RolloutRequest{Rule: "all", Share: 0}); err != nil || r.By != engine.ByOperator || r.Configured != 0.25 {
		t.Errorf("%+v, %v", r, err)
	}
	if n := treated(t, 20); n != 0 {
		t.Errorf("taken back: %d of 40 ends are treated", n)
	}

	p.rules(t, "mode: observe\n"+fixesAll)
	if r, err := d.Reload(ctx); err != nil || r.Mode != engine.ModeObserve {
		t.Errorf("%+v, %v", r, err)
	}
	if n := treated(t, 20); n != 0 {
		t.Errorf("observed again: %d of 40 ends are treated", n)
	}
}

// By default only root can use the administrators' socket; the other one allows no
// changes.
func TestRootSockets(t *testing.T) {
	p := newPlace(t)
	d := p.start(t)
	for name, mode := range map[string]fs.FileMode{"tcpilot.sock": 0o600, "tcpilot-read.sock": 0o660} {
		if fi, err := os.Lstat(p.path("run", name)); err != nil || fi.Mode() != fs.ModeSocket|mode {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	c := api.NewClient(p.path("run", "tcpilot-read.sock"))
	defer c.Close()
	if _, err := c.Status(ctx); err != nil {
		t.Error(err)
	}
	if err := c.Detach(ctx); err == nil || !strings.Contains(err.Error(), "for reading only") {
		t.Errorf("detach by the read-only socket: %v", err)
	}
	if _, err := d.Reload(ctx); err != nil {
		t.Error(err)
	}
	if !strings.Contains(d.log.String(), "API request refused") || !strings.Contains(d.log.String(), `request="POST /v1/reload"`) {
		t.Errorf("not logged:\n%s", d.log)
	}
	d.stop(t)
	p.nothing(t)
}
