package datapath

import (
	"bytes"
	"debug/elf"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// object writes an object file. The embedded objects serve as users' objects: the probe
// has one sock_ops program, the others have more, or none.
func object(t testing.TB, raw []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "user.o")
	must(t, os.WriteFile(name, raw, 0o600))
	return name
}

// invalid is the probe with a first instruction that the verifier refuses.
func invalid(t testing.TB) []byte {
	t.Helper()
	raw := bytes.Clone(_ProbeBytes)
	f, err := elf.NewFile(bytes.NewReader(raw))
	must(t, err)
	s := f.Section("sockops")
	if s == nil {
		t.Fatal("no section sockops")
	}
	copy(raw[s.Offset:], []byte{0x95, 0, 0, 0, 0, 0, 0, 0}) // exit, with nothing in R0
	return raw
}

func TestRootUserObjectRefused(t *testing.T) {
	r := newRig(t)
	good := object(t, _ProbeBytes)
	_, err := r.LoadUser("taken", good, r.cg.Path)
	must(t, err)
	dir := t.TempDir()
	for _, c := range []struct{ name, object, cgroup, want string }{
		{"x", filepath.Join(dir, "missing.o"), r.cg.Path, "no such file"},
		{"x", object(t, []byte("#!/bin/sh\n")), r.cg.Path, "not an eBPF ELF object"},
		{"x", object(t, nil), r.cg.Path, "not an eBPF ELF object"},
		{"x", "/proc/self/exe", r.cg.Path, "not an eBPF ELF object"},
		{"x", object(t, _AbiBytes), r.cg.Path, "0 programs"},
		{"x", object(t, _SockopsBytes), r.cg.Path, "7 programs"},
		{"x", object(t, _IterBytes), r.cg.Path, "3 programs"},
		{"x", object(t, bytes.ReplaceAll(_ProbeBytes, []byte("sockops\x00"), []byte("syscall\x00"))), r.cg.Path, "want sock_ops"},
		{"x", object(t, invalid(t)), r.cg.Path, "verifier refused it"},
		{"x", good, dir, "not a directory of a cgroup2 file system"},
		{"x", good, filepath.Join(dir, "none"), "no such file"},
		{"x", good, filepath.Join(r.cg.Path, "cgroup.procs"), "not a directory of a cgroup2 file system"},
		{"taken", good, r.cg.Path, "loaded already"},
		{"", good, r.cg.Path, "1 to 64 characters"},
		{"../escape", good, r.cg.Path, "1 to 64 characters"},
		{".hidden", good, r.cg.Path, "1 to 64 characters"},
		{"a b", good, r.cg.Path, "1 to 64 characters"},
		{strings.Repeat("x", 65), good, r.cg.Path, "1 to 64 characters"},
	} {
		u, err := r.LoadUser(c.name, c.object, c.cgroup)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q of %s on %s: %+v, %.300v; want %q", c.name, c.object, c.cgroup, u, err, c.want)
		}
	}
	if got := r.UserObjects(); len(got) != 1 || got[0].Name != "taken" {
		t.Errorf("loaded are %+v", got)
	}
	if left, _ := os.ReadDir(filepath.Join(r.opt.BPFFS, "tcpilot", userPins)); len(left) != 1 {
		t.Errorf("pins are %v", left)
	}
}

func TestRootUserObjectLifecycle(t *testing.T) {
	r := newRig(t)
	r.policy(t, arms(arm("reno", 1<<16)))
	file := object(t, _ProbeBytes)
	u, err := r.LoadUser("mine", file, r.cg.Path)
	must(t, err)
	if u.Name != "mine" || u.Object != file || u.Cgroup != r.cg.Path || u.Program != "tcpilot_probe" || u.ID == 0 || u.Since.IsZero() {
		t.Errorf("%+v", u)
	}
	child := r.cg.Child(t)
	_, err = r.LoadUser("another", file, child.Path)
	must(t, err)
	if got := r.UserObjects(); len(got) != 2 || got[0].Name != "another" || got[1] != u {
		t.Errorf("loaded are %+v", got)
	}
	if others := OtherSockops(r.cg.Path, r.ProgramIDs()); len(others) != 0 {
		t.Errorf("a user's object is listed as foreign: %v", others)
	}
	c, _ := r.pair(t, "127.0.0.1:0")
	if ccOf(t, c) != "reno" {
		t.Error("tcpilot's program does not run beside it")
	}
	r.crash(t)
	r.open(t)
	got := r.UserObjects()
	if len(got) != 2 || got[1].Name != "mine" || got[1].ID != u.ID || got[1].Program != "tcpilot_probe" {
		t.Errorf("after a restart loaded are %+v", got)
	}
	if _, err := r.LoadUser("mine", file, r.cg.Path); err == nil {
		t.Error("a name was given twice")
	}
	must(t, r.UnloadUser("mine"))
	eventually(t, func() error {
		if p, err := ebpf.NewProgramFromID(ebpf.ProgramID(u.ID)); err == nil {
			return errors.Join(errors.New("the program is still there"), p.Close())
		}
		return nil
	})
	if err := r.UnloadUser("mine"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("unload twice: %v", err)
	}
	_, err = r.LoadUser("mine", file, r.cg.Path)
	must(t, err)
}

// TestRootCallbackFlags: callbacks that another program requested still come with
// tcpilot's program, in either order.
func TestRootCallbackFlags(t *testing.T) {
	for _, first := range []bool{true, false} {
		r := newRig(t)
		var calls func() uint64
		if first {
			r.stop()
			must(t, r.Detach())
			calls = testenv.CountCallbacks(t, r.cg.Path, unix.BPF_SOCK_OPS_RTT_CB, unix.BPF_SOCK_OPS_RTT_CB_FLAG)
			r.open(t)
		} else {
			calls = testenv.CountCallbacks(t, r.cg.Path, unix.BPF_SOCK_OPS_RTT_CB, unix.BPF_SOCK_OPS_RTT_CB_FLAG)
		}
		tab := compileRules([]rule{{}}, 1)
		tab.Classes[0].Watch, tab.Classes[0].WatchShare = 7, 1<<16
		r.rules(t, tab)
		r.policy(t, arms(arm("reno", 1<<16)))
		c, s := r.pair(t, "127.0.0.1:0")
		for range 20 {
			exchange(t, c, s, 1000)
			exchange(t, s, c, 1000)
		}
		if n := calls(); n < 10 || ccOf(t, c) != "reno" {
			t.Errorf("the other program got %d callbacks, the connection %s", n, ccOf(t, c))
		}
		closeAll(t, c, s)
		eventually(t, func() error {
			got, err := r.Counters()
			if err != nil {
				return err
			}
			for _, e := range got.Events {
				if e.Name == "state" && e.Count > 0 {
					return nil
				}
			}
			return errors.New("tcpilot's callbacks did not come")
		})
	}
}

// A FIFO without a writer is refused, and neither the lease nor the end of the daemon
// waits for it.
func TestRootUserObjectFIFO(t *testing.T) {
	r := newRig(t)
	fifo := filepath.Join(t.TempDir(), "fifo.o")
	must(t, unix.Mkfifo(fifo, 0o600))
	refused := make(chan error, 1)
	go func() {
		_, err := r.LoadUser("x", fifo, r.cg.Path)
		refused <- err
	}()
	renewed := make(chan error, 1)
	go func() { renewed <- r.SetLease(time.Minute) }()
	for what, c := range map[string]chan error{"load": refused, "lease": renewed} {
		select {
		case err := <-c:
			if (what == "load") != (err != nil) || err != nil && !strings.Contains(err.Error(), "is a FIFO") {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%s: waits for the FIFO", what)
			w, err := os.OpenFile(fifo, os.O_WRONLY, 0) // so that the test ends
			must(t, err)
			w.Close()
		}
	}
	must(t, os.WriteFile(filepath.Join(filepath.Dir(fifo), "large.o"), nil, 0o600))
	must(t, os.Truncate(filepath.Join(filepath.Dir(fifo), "large.o"), maxObject+1))
	if _, err := r.LoadUser("x", filepath.Join(filepath.Dir(fifo), "large.o"), r.cg.Path); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a large object: %v", err)
	}
}

// A program whose load was under way when the datapath was closed is not left attached.
func TestRootUserObjectAfterClose(t *testing.T) {
	testenv.Root(t)
	cg := testenv.Cgroup(t)
	d, err := Open(Options{Cgroup: cg.Path, BPFFS: mountBPFFS(t), Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	must(t, d.Detach())
	if _, err := d.LoadUser("x", object(t, _ProbeBytes), cg.Path); err == nil || !strings.Contains(err.Error(), "stopping") {
		t.Errorf("error %v", err)
	}
	for range 200 { // the kernel frees a link some time later
		if len(OtherSockops(cg.Path, nil)) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("a program is left attached")
}
