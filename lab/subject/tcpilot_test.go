package subject

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/lab/load"
	"golang.org/x/sys/unix"
)

// traffic lets every sender make n short bulk connections to the receiver.
func traffic(t *testing.T, w World, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	receiver := w.Layout.Hosts["receiver1"]
	server, err := load.StartAgent(receiver, nil)
	must(t, err)
	defer server.Close()
	at, err := server.Listen(ctx, load.ListenSpec{Address: "0.0.0.0:0"})
	must(t, err)
	to := netip.AddrPortFrom(w.Layout.Addr(receiver, false), at.Port()).String()
	for _, h := range w.Tuned {
		client, err := load.StartAgent(h, w.Cgroups[h.Name])
		must(t, err)
		defer client.Close()
		for range n {
			_, err := client.Bulk(ctx, load.BulkSpec{To: to, Duration: 50 * time.Millisecond})
			must(t, err)
		}
	}
}

// sampled is how many connections tcpilot knows of, by host.
func sampled(t *testing.T, s Subject) map[string]uint64 {
	t.Helper()
	raw, err := s.State(t.Context())
	must(t, err)
	var all map[string]struct {
		Paths []struct{ Samples uint64 }
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	counts := map[string]uint64{}
	for host, state := range all {
		counts[host] = 0
		for _, p := range state.Paths {
			counts[host] += p.Samples
		}
	}
	return counts
}

func tcpilotWorld(t *testing.T) World {
	t.Helper()
	w := newWorld(t)
	var err error
	w.Binary, err = build()
	must(t, err)
	// Only what the path bounds is scored, and makes a path.
	for _, h := range w.Tuned {
		links, err := h.Netlink().LinkList()
		must(t, err)
		for _, l := range links {
			if l.Type() == "veth" {
				_, err := h.Run("tc", "qdisc", "add", "dev", l.Attrs().Name, "root", "tbf", "rate", "100mbit", "burst", "64k", "limit", "256k")
				must(t, err)
			}
		}
	}
	return w
}

func TestRootTcpilotKeepsWhatItLearned(t *testing.T) {
	w := tcpilotWorld(t)
	before := look(t, w)
	s := newSubject(t, Spec{Kind: Tcpilot}, w)
	if !s.Learns() || s.Forgets() {
		t.Error("it is not taken to learn, or to keep what it learned")
	}
	if state, err := s.State(t.Context()); state != nil || err != nil {
		t.Errorf("before the start its state is %s, %v", state, err)
	}
	must(t, s.Start(t.Context()))
	traffic(t, w, 10)
	var learned map[string]uint64
	for range 300 { // the daemon reads samples in batches
		if learned = sampled(t, s); learned["sender1"] == 10 && learned["sender2"] == 10 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	must(t, s.Stop(t.Context()))
	unchanged(t, w, before)

	traffic(t, w, 3) // another's round
	must(t, s.Start(t.Context()))
	kept := sampled(t, s)
	must(t, s.Stop(t.Context()))
	unchanged(t, w, before)
	if len(kept) != 2 {
		t.Errorf("it ran on %d hosts", len(kept))
	}
	for host, n := range kept {
		if n != 10 {
			t.Errorf("%s had seen %d connections, and knows of %d after another's round", host, learned[host], n)
		}
	}
	must(t, s.Close())
	if left := outputs(t, w, "*"); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
}

// In a fresh world nothing stays from one start to the next.
func TestRootTcpilotFresh(t *testing.T) {
	w := tcpilotWorld(t)
	w.Fresh = true
	s := newSubject(t, Spec{Kind: Tcpilot}, w)
	if !s.Learns() || !s.Forgets() {
		t.Error("it is not taken to learn, or not to forget")
	}
	must(t, s.Start(t.Context()))
	traffic(t, w, 5)
	for range 300 { // the daemon reads samples in batches
		if learned := sampled(t, s); learned["sender1"] == 5 && learned["sender2"] == 5 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	must(t, s.Stop(t.Context()))
	must(t, s.Start(t.Context()))
	for host, n := range sampled(t, s) {
		if n != 0 {
			t.Errorf("%s knows of %d connections of the start before", host, n)
		}
	}
	must(t, s.Stop(t.Context()))
}

func TestRootTcpilotConfig(t *testing.T) {
	w := tcpilotWorld(t)
	const good = "rules:\n  - name: clamp\n    set: {cwnd_clamp: 5}\n"
	s := newSubject(t, Spec{Kind: Tcpilot, Config: good}, w)
	must(t, s.Start(t.Context()))
	sub := s.(*subject).tuner.(*tcpilot)
	out, err := sub.run(t.Context(), "rules", "--json", "--socket", outputs(t, w, "tcpilot.sock")[0])
	must(t, err)
	if !strings.Contains(string(out), "clamp") {
		t.Errorf("its rules are %s", out)
	}
	must(t, s.Stop(t.Context()))

	const bad = "rules:\n  - name: clamp\n    set: {cwnd_clamp: many}\n"
	_, err = New(Spec{Name: "bad", Kind: Tcpilot, Config: bad}, w)
	if err == nil || !strings.Contains(err.Error(), "config:3:") {
		t.Errorf("a mistake in line 3 is found as: %v", err)
	}
}

func TestRootTcpilotThatDies(t *testing.T) {
	w := tcpilotWorld(t)
	before := look(t, w)
	s := newSubject(t, Spec{Kind: Tcpilot}, w)
	must(t, s.Start(t.Context()))
	victim := s.(*subject).tuner.(*tcpilot).sites[0].process
	must(t, unix.Kill(victim.cmd.Process.Pid, unix.SIGKILL))
	<-victim.exited
	if _, err := s.State(t.Context()); err == nil || !strings.Contains(err.Error(), "tcpilot on sender1 ended by itself") {
		t.Errorf("state: %v", err)
	}
	err := s.Stop(t.Context())
	if err == nil || !strings.Contains(err.Error(), "tcpilot on sender1 ended by itself: signal: killed") || !strings.Contains(err.Error(), "tcpilot runs") {
		t.Errorf("stop: %v", err)
	}
	unchanged(t, w, before)
	for host, cg := range w.Cgroups {
		if left, err := programsOf(cg.Path); err != nil || len(left) > 0 {
			t.Errorf("%s: left are %v, %v", host, left, err)
		}
	}
	must(t, s.Start(t.Context())) // and it goes on
	must(t, s.Stop(t.Context()))
}

func TestRootTcpilotThatCannotStart(t *testing.T) {
	w := tcpilotWorld(t)
	before := look(t, w)
	s := newSubject(t, Spec{Kind: Tcpilot, CC: "cubic"}, w)
	s.(*subject).tuner.(*tcpilot).binary = "/bin/false"
	err := s.Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "ended by itself: exit status 1") {
		t.Errorf("start: %v", err)
	}
	unchanged(t, w, before)
	must(t, s.Stop(t.Context()))

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(fmt.Errorf("interrupted"))
	s.(*subject).tuner.(*tcpilot).binary = w.Binary
	if err := s.Start(ctx); err == nil {
		t.Error("it starts although the run has ended")
	}
	unchanged(t, w, before)
}
