package e2e

import (
	"cmp"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/lab/load"
)

// reno makes every tuned connection start with reno, so that each one shows
// whether it was tuned.
const reno = "  - {name: lab, match: {remote: [10.77.0.0/16]}, set: {cc: reno}}\n"

// cc is the congestion control that a new connection of the tuned client starts with.
func cc(t testing.TB, w *world) string {
	t.Helper()
	return bulk(t, w.client, load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: 20 * time.Millisecond}).CCStart
}

func TestRootApplicationChoiceIsKept(t *testing.T) {
	t.Parallel()
	w, r := lossy(t)
	p := startTcpilot(t, w, settings{})
	f := p.follow(t)
	for range 12 { // enough for tcpilot to learn that bbr is best
		bulk(t, w.client, load.BulkSpec{To: at(r.Addr4), Duration: length()})
	}
	for range 5 {
		c := bulk(t, w.client, load.BulkSpec{To: at(r.Addr4), Duration: 100 * time.Millisecond, CC: "reno"})
		if c.CCStart != "reno" || c.CCEnd != "reno" {
			t.Errorf("application chose reno and got %s, then %s", c.CCStart, c.CCEnd)
		}
		if s := f.await(t, of(c)); !strings.Contains(strings.Join(s.Flags, " "), "app-cc") {
			t.Errorf("sample has flags %q, want app-cc", s.Flags)
		}
	}
}

func TestRootListenersChoiceIsInherited(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "far")
	server := w.agent(t, w.remotes[0].Host, w.cgroup)
	_, err := server.Listen(t.Context(), load.ListenSpec{Address: "[::]:5202", CC: "bbr"})
	must(t, err)
	startTcpilot(t, w, settings{rules: reno})
	to := w.remotes[0].Addr4.String() + ":5202"
	r := bulk(t, w.beside, load.BulkSpec{To: to, Duration: 100 * time.Millisecond, Download: true})
	if r.CCStart != "bbr" {
		t.Errorf("accepted socket of a listener with bbr has %s", r.CCStart)
	}
}

func TestRootAdministratorsSysctlIsKept(t *testing.T) {
	t.Parallel()
	w, r := lossy(t)
	p := startTcpilot(t, w, settings{})
	s := newSeries(t, p, r, length())
	s.many(t, w, 12)
	must(t, w.star.Client.SetCongestion("reno"))
	eventually(t, 15*time.Second, "status shows the yield", func() error {
		for _, y := range p.status(t).Yields {
			if y.Sysctl == "net.ipv4.tcp_congestion_control" && y.Before == "cubic" && y.After == "reno" {
				return nil
			}
		}
		return fmt.Errorf("yields are %+v", p.status(t).Yields)
	})
	eventually(t, 15*time.Second, "new connections have the administrator's reno", func() error {
		if got := cc(t, w); got != "reno" {
			return fmt.Errorf("one starts with %s", got)
		}
		return nil
	})
	for range 8 {
		if got := cc(t, w); got != "reno" {
			t.Errorf("after the administrator set reno a connection starts with %s", got)
		}
	}
}

func TestRootKilledDaemonLeavesKernelDefaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "far")
	p := startTcpilot(t, w, settings{rules: reno})
	if got := cc(t, w); got != "reno" {
		t.Fatalf("connection starts with %s, want reno by rule", got)
	}
	p.kill()
	// The lease is 2 s.
	eventually(t, 15*time.Second, "kernel defaults return", func() error {
		if got := cc(t, w); got != "cubic" {
			return fmt.Errorf("a connection starts with %s", got)
		}
		return nil
	})
	p.start(t)
	if !p.status(t).Adopted {
		t.Error("the next daemon did not adopt what the killed one left attached")
	}
	eventually(t, 15*time.Second, "the rule acts again", func() error {
		if got := cc(t, w); got != "reno" {
			return fmt.Errorf("a connection starts with %s", got)
		}
		return nil
	})
	p.stop(t)
	if got := cc(t, w); got != "cubic" {
		t.Errorf("after an orderly end a connection starts with %s", got)
	}
}

func TestRootLearnedIsKeptAcrossRestarts(t *testing.T) {
	t.Parallel()
	w, r := lossy(t)
	p := startTcpilot(t, w, settings{})
	newSeries(t, p, r, length()).until(t, w, "bbr")
	const prefix = "10.77.1.0/24"
	before := scored(p.path(t, prefix))
	p.stop(t)
	for range 4 {
		if got := cc(t, w); got != "cubic" {
			t.Errorf("while tcpilot is stopped a connection starts with %s", got)
		}
	}
	p.start(t)
	after := p.path(t, prefix)
	if n := scored(after); n < before || n == 0 {
		t.Fatalf("%d scored connections are known after a restart, %d before", n, before)
	}
	if best := slices.MaxFunc(after.Arms, func(a, b engine.PathArm) int { return cmp.Compare(a.Weight, b.Weight) }); best.CC.String() != "bbr" {
		t.Errorf("after a restart %s has the greatest share: %+v", best.CC, after.Arms)
	}
}

func TestRootOnlyTheSocketsOwnersAreServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "far")
	p := startTcpilot(t, w, settings{})
	cmd := exec.Command(p.bin, "status", "--socket", p.socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "permission denied") {
		t.Errorf("status as nobody: %v: %s; want permission denied", err, out)
	}
	// Nothing listens on TCP unless metrics are asked for.
	listening, err := w.star.Client.Run("cat", "/proc/net/tcp", "/proc/net/tcp6")
	must(t, err)
	for line := range strings.Lines(listening) {
		if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" {
			t.Errorf("a TCP socket listens in the daemon's namespace: %s", line)
		}
	}
	if c, err := net.Dial("unix", p.socket); err != nil {
		t.Errorf("root cannot connect: %v", err)
	} else {
		c.Close()
	}
}
