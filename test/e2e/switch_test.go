package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
)

// running is the congestion controls of connections to a remote, by local port.
func (w *world) running(t *testing.T, r *remote) map[string]string {
	t.Helper()
	out, err := w.star.Client.Run("ss", "-tinHO", "state", "established", "dst", r.Addr4.String())
	must(t, err)
	ccs := map[string]string{}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 6 {
			continue
		}
		local := f[2]
		for _, cc := range f[4:] { // options, such as timer:(on,...), come before it
			if !strings.ContainsAny(cc, ":(") && cc != "ts" && cc != "sack" && cc != "ecn" && cc != "ecnseen" {
				ccs[local[strings.LastIndexByte(local, ':')+1:]] = cc
				break
			}
		}
	}
	return ccs
}

// cookie is the kernel's number of the client's socket with a local port.
func (w *world) cookie(t *testing.T, port string) (n uint64) {
	t.Helper()
	out, err := w.star.Client.Run("ss", "-teHO", "src", ":"+port)
	must(t, err)
	_, after, ok := strings.Cut(out, "sk:")
	if !ok {
		t.Fatalf("ss does not show the cookie of port %s: %s", port, out)
	}
	n, err = strconv.ParseUint(strings.Fields(after)[0], 16, 64)
	must(t, err)
	return n
}

// keepsArm reports whether the connection of a socket is the one in 16 that is not switched (switch.bpf.h).
func keepsArm(cookie uint64) bool { return cookie*0x9e3779b97f4a7c15>>60 == 0 }

// On a lossy path, running connections of cubic get bbr as soon as others have shown that it is better. tcpilot shows what becomes of
// them, and of one that keeps its arm.
func TestRootRunningConnectionsAreCompared(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "far")
	r := w.remotes[0]
	must(t, r.way.Set(link.Spec{Delay: 20*time.Millisecond - delay, Rate: 100e6, Queue: link.Queue{Bytes: 250e3}, Loss: 0.03}))
	p := startTcpilot(t, w, settings{lease: "10s",
		rules: "  - {name: lab, match: {remote: [10.77.0.0/16]}, learn: {arms: [cubic, bbr], switch: true, hold_out: 0}}\n"})
	begin := w.hold(t, r) // before the path is known
	others := func() { bulk(t, w.client, load.BulkSpec{To: at(r.Addr4), Duration: 300 * time.Millisecond}) }
	eventually(t, 3*time.Minute, "bbr for new connections", func() error {
		others()
		s := p.path(t, "10.77.1.0/24")
		if s != nil && slices.ContainsFunc(s.Arms, func(a engine.PathArm) bool { return a.CC == tcp.CCOf("bbr") && a.Weight >= 0.75 }) {
			return nil
		}
		return fmt.Errorf("%+v", s)
	})
	begin()
	var got *engine.Switched
	eventually(t, 3*time.Minute, "a comparison", func() error {
		others() // they show the difference, until it is certain enough for running connections
		if got = p.path(t, "10.77.1.0/24").Switched; got == nil || got.Kept.Connections == 0 || got.Switched.Connections == 0 {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	t.Logf("%+v", got)
	if got.To != tcp.CCOf("bbr") || got.Kept.Connections != 1 || got.Switched.Connections != 1 || got.Switched.Goodput < 2*got.Kept.Goodput || got.Kept.Retrans == 0 {
		t.Errorf("%+v", got)
	}
	if out, err := p.run(t, "explain", r.Addr4.String()); err != nil || !strings.Contains(string(out), "connections get bbr: 1 did (") || !strings.Contains(string(out), "1 kept their arm (") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestMeasureRunningConnectionIsSwitched: a path of 50 ms turns lossy (1 %) while a long connection
// runs, and others of half a second, one after the other. The long one has the better arm within
// 10 s, or had it before; another one, whose application chose cubic, keeps it. The path was known for 45 s: what its
// connections met while the long ones began is a small part of that.
func TestMeasureRunningConnectionIsSwitched(t *testing.T) {
	const known, within = 45 * time.Second, 10 * time.Second
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		w := newWorld(t, "far")
		r := w.remotes[0]
		must(t, r.way.Set(link.Spec{Delay: 50*time.Millisecond - delay, Rate: 100e6, Queue: link.Queue{Bytes: 625e3}}))
		p := startTcpilot(t, w, settings{interval: "5s", lease: "10s",
			rules: "  - {name: lab, match: {remote: [10.77.0.0/16]}, learn: {switch: true, hold_out: 0}}\n"})
		samples := p.follow(t)
		var wg sync.WaitGroup
		ctx, end := context.WithCancel(t.Context())
		defer end()
		done := make(chan struct{})
		begin := func(s load.BulkSpec) (port string) {
			t.Helper()
			s.To, s.Duration, s.Abort = at(r.Addr4), known+30*time.Second, true
			for {
				before := w.running(t, r)
				ctx, end := context.WithCancel(ctx)
				t.Cleanup(end)
				wg.Go(func() { w.client.Bulk(ctx, s) }) // until it is cancelled
				eventually(t, 5*time.Second, "a long connection", func() error {
					for p := range w.running(t, r) {
						if _, old := before[p]; !old {
							port = p
							return nil
						}
					}
					return errors.New("it is not there")
				})
				if !keepsArm(w.cookie(t, port)) {
					return port
				}
				end()
			}
		}
		long, chosen := begin(load.BulkSpec{}), begin(load.BulkSpec{CC: "cubic", Limit: 500e3})
		wg.Go(func() { // the other traffic
			for {
				select {
				case <-done:
					return
				default:
					bulk(t, w.client, load.BulkSpec{To: at(r.Addr4), Duration: 500 * time.Millisecond})
				}
			}
		})
		time.Sleep(known)
		before := w.running(t, r)
		w.setLoss(t, r, 0.01)
		turned := time.Now()
		switched := map[string]time.Duration{}
		for time.Since(turned) < 22*time.Second {
			for port, cc := range w.running(t, r) {
				if (port == long || port == chosen) && cc != before[port] && switched[port] == 0 {
					switched[port] = time.Since(turned)
					t.Logf("after %.1f s port %s has %s instead of %s", time.Since(turned).Seconds(), port, cc, before[port])
				}
			}
			time.Sleep(200 * time.Millisecond)
		}
		after := w.running(t, r)
		close(done)
		end()
		wg.Wait()
		if s := p.path(t, "10.77.1.0/24"); s != nil {
			for _, a := range s.Arms {
				t.Logf("arm %s: share %.3f, %d connections, mean %.2f, sd %.2f, goodput %.1f Mbit/s", a.CC, a.Weight, a.Count, a.Mean, a.StdDev, float64(a.Recent.Goodput)*8/1e6)
			}
		}
		t.Logf("the long connection is %s, the one with a choice %s; before the loss %v, at the end %v; decisions %v", long, chosen, before, after, p.status(t).Counters.Decisions)
		samples.mu.Lock()
		for _, x := range samples.samples {
			if x.Kind == "interval" && strconv.Itoa(int(x.Local.Port())) == long {
				t.Logf("walk %.1f s after the change: the long connection has %s, %.1f Mbit/s", x.At.Sub(turned).Seconds(), x.CC, float64(x.BytesAcked)*8/1e6/x.Duration.Seconds())
			}
		}
		samples.mu.Unlock()
		took, ok := switched[long]
		if !ok && strings.Contains(before[long], "bbr") { // it was switched while the path was clean: 0 s
			ok = after[long] == before[long]
		}
		m.Holds("the long connection has the better arm within 10 s, s", "at most 10", ok && took <= within, fmt.Sprintf("%.1f", took.Seconds()))
		_, ok = switched[chosen]
		m.Holds("the one whose application chose keeps its arm", "cubic", !ok, after[chosen])
	})
}
