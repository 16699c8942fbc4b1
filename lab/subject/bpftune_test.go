package subject

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

func TestRootBpftuneThatIsNotInstalled(t *testing.T) {
	w := newWorld(t)
	t.Setenv(BpftuneEnv, "/nonesuch/bpftune")
	if _, err := New(Spec{Name: "b", Kind: Bpftune}, w); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), BpftuneEnv) {
		t.Errorf("not installed: %v", err)
	}
	refuses := filepath.Join(t.TempDir(), "bpftune")
	must(t, os.WriteFile(refuses, []byte("#!/bin/sh\necho bpftune is not supported\nexit 1\n"), 0o755))
	t.Setenv(BpftuneEnv, refuses)
	if _, err := New(Spec{Name: "b", Kind: Bpftune}, w); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "bpftune is not supported") {
		t.Errorf("not supported: %v", err)
	}
}

// standInEnv makes this test's binary behave as bpftune does, without a choice: as
// Debian trixie's, which opens the cgroup's directory and then mounts cgroup2 there,
// or as sid's, which mounts first and so finds the root of its cgroup namespace.
const standInEnv = "TCPILOT_TEST_BPFTUNE"

func runIfStandIn() {
	suite := os.Getenv(standInEnv)
	if suite == "" {
		return
	}
	if err := standIn(os.Args[3], suite == "sid", slices.Contains(os.Args, "-S")); err != nil {
		fmt.Fprintln(os.Stderr, "bpftune:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// standIn mounts cgroup2 where it is told, attaches a program to each hook without
// a link, and detaches them on SIGTERM only.
func standIn(cgroup string, mountFirst, support bool) error {
	dir, err := os.Open(cgroup)
	if err != nil {
		return err
	}
	if err := unix.Mount("none", cgroup, "cgroup2", 0, ""); err != nil || support {
		return err
	}
	if mountFirst {
		if dir, err = os.Open(cgroup); err != nil {
			return err
		}
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGTERM)
	var detach []func() error
	for _, kind := range []struct {
		program ebpf.ProgramType
		at      ebpf.AttachType
	}{{ebpf.CGroupSysctl, ebpf.AttachCGroupSysctl}, {ebpf.SockOps, ebpf.AttachCGroupSockOps}} {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind.program, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
		if err != nil {
			return err
		}
		err = link.RawAttachProgram(link.RawAttachProgramOptions{
			Target: int(dir.Fd()), Program: p, Attach: kind.at, Flags: unix.BPF_F_ALLOW_MULTI})
		if err != nil {
			return err
		}
		detach = append(detach, func() error {
			return link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(dir.Fd()), Program: p, Attach: kind.at})
		})
	}
	<-ended
	fmt.Fprintln(os.Stderr, "Summary")
	return errors.Join(detach[0](), detach[1]())
}

func TestRootBpftune(t *testing.T) {
	if _, err := FindBpftune(); err == nil {
		t.Run("itself", func(t *testing.T) { testBpftune(t, false) })
	}
	for _, suite := range []string{"trixie", "sid"} {
		t.Run("stand-in for "+suite, func(t *testing.T) {
			self, err := os.Executable()
			must(t, err)
			t.Setenv(BpftuneEnv, self)
			t.Setenv(standInEnv, suite)
			testBpftune(t, true)
		})
	}
}

// The one of tools/bpftune-root comes before the one in PATH, and the environment's
// before both. Without any, the message says how to get it.
func TestFindBpftune(t *testing.T) {
	cache, path := t.TempDir(), t.TempDir()
	t.Setenv(BpftuneCacheEnv, cache)
	t.Setenv("PATH", path)
	t.Setenv(BpftuneEnv, "")
	if _, err := FindBpftune(); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "tools/deps bpftune") {
		t.Errorf("there is none: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(path, "bpftune"), nil, 0o755))
	if at, err := FindBpftune(); err != nil || at != (Bpftuned{Binary: filepath.Join(path, "bpftune")}) {
		t.Errorf("in PATH: %+v, %v", at, err)
	}
	root := filepath.Join(cache, "1", "root")
	must(t, os.MkdirAll(root+"/usr/sbin", 0o755))
	must(t, os.WriteFile(root+"/usr/sbin/bpftune", nil, 0o755))
	if at, err := FindBpftune(); err != nil || at != (Bpftuned{Root: root, Binary: "/usr/sbin/bpftune"}) {
		t.Errorf("in a root directory: %+v, %v", at, err)
	}
	t.Setenv(BpftuneEnv, filepath.Join(path, "bpftune"))
	if at, err := FindBpftune(); err != nil || at.Root != "" {
		t.Errorf("named: %+v, %v", at, err)
	}
}

// attach attaches a program that is not bpftune's.
func attach(t *testing.T, cgroup string) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupSysctl, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
	must(t, err)
	defer p.Close()
	dir, err := os.Open(cgroup)
	must(t, err)
	defer dir.Close()
	must(t, link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: int(dir.Fd()), Program: p, Attach: ebpf.AttachCGroupSysctl, Flags: unix.BPF_F_ALLOW_MULTI}))
}

func testBpftune(t *testing.T, isStandIn bool) {
	w := newWorld(t)
	before := look(t, w)
	others := map[string]programs{}
	for host, cg := range w.Cgroups {
		attach(t, cg.Path)
		var err error
		others[host], err = programsOf(cg.Path)
		must(t, err)
		if len(others[host]) != 1 {
			t.Fatalf("%s has %v before", host, others[host])
		}
	}
	s := newSubject(t, Spec{Kind: Bpftune}, w)
	if !s.Learns() || !s.Forgets() {
		t.Error("it is not taken to learn, and to forget")
	}
	for _, kill := range []bool{false, true} {
		must(t, s.Start(t.Context()))
		for host, cg := range w.Cgroups {
			if on, err := programsOf(cg.Path); err != nil || len(on) < 2 {
				t.Errorf("%s has %v, %v", host, on, err)
			}
		}
		traffic(t, w, 8)
		must(t, w.Tuned[0].SetSysctl("net.ipv4.tcp_wmem", "4096 8192 16384")) // as its buffer tuner does
		if p := s.(*subject).tuner.(*bpftune).sites[0].process; kill {
			must(t, unix.Kill(p.cmd.Process.Pid, unix.SIGKILL))
			<-p.exited
		}
		err := s.Stop(t.Context())
		if died := err != nil && strings.Contains(err.Error(), "bpftune on sender1 ended by itself"); died != kill {
			t.Errorf("killed %v: %v", kill, err)
		}
		for host, cg := range w.Cgroups {
			if on, err := programsOf(cg.Path); err != nil || !maps.Equal(on, others[host]) {
				t.Errorf("%s is left with %v, %v; before it had %v", host, on, err, others[host])
			}
		}
		unchanged(t, w, before)
	}
	// What the real one writes at its end is its own affair.
	if n := strings.Count(s.Log(), "Summary"); isStandIn && n < 3 {
		t.Errorf("%d of 3 wrote their summary\n%s", n, s.Log())
	}
}
