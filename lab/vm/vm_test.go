package vm

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

const lib = "# which kernels there are\nKERNELS=(6.1 6.12)\n"

// scripts are test/vm with a different run; its fetch finds every kernel in the cache.
func scripts(run string) fstest.MapFS {
	return fstest.MapFS{
		"lib.sh": {Data: []byte(lib)},
		"fetch":  {Data: []byte("#!/bin/bash\n")},
		"run":    {Data: []byte("#!/bin/bash\n" + run)},
	}
}

// fetching are scripts with a different fetch; their run prints "run".
func fetching(fetch string) fs.FS {
	s := scripts("echo run")
	s["fetch"].Data = []byte("#!/bin/bash\n" + fetch)
	return s
}

// commandsHere sets PATH to a directory with only commands of these names and those that
// the scripts of the tests need.
func commandsHere(t *testing.T, names ...string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"bash", "sleep", "cat", "dirname"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

func allCommands(t *testing.T) {
	var names []string
	for _, c := range commands {
		if c.name != "bash" {
			names = append(names, c.name)
		}
	}
	commandsHere(t, names...)
}

func TestRunsTheScript(t *testing.T) {
	allCommands(t)
	var out, errs bytes.Buffer
	m := Machine{
		Scripts: scripts(`printf '<%s>' "$@"; cat "$(dirname "$0")/lib.sh" >&2; exit 7`),
		Kernel:  "6.12", VirtualTime: true, Writable: []string{"/a", "/b c"}, Limit: 90 * time.Second, Fetch: time.Minute,
	}
	exit, err := m.Run(t.Context(), []string{"tcpilot", "lab", "run -x"}, &out, &errs)
	if exit != 7 || err != nil {
		t.Errorf("exit %d, %v; want the command's own 7", exit, err)
	}
	want := "<-k><6.12><-t><90><-i><-r></a><-r></b c><--><tcpilot><lab><run -x>"
	if out.String() != want || errs.String() != lib {
		t.Errorf("out %q, errors %q; want %q, %q", &out, &errs, want, lib)
	}
}

// Problems with the machine are errors that say what to do.
func TestReportsProblems(t *testing.T) {
	for _, c := range []struct {
		name, kernel, run string
		here              []string
		exit              int
		want              []string
	}{
		{"no such kernel", "5.4", "", []string{"qemu-system-x86_64"}, 125, []string{`"5.4"`, "6.1, 6.12"}},
		{"no QEMU", "6.1", "", []string{"busybox", "cpio", "depmod", "xz", "zstd", "setpriv"}, 125,
			[]string{"apt-get install qemu-system-x86"}},
		{"nothing", "6.1", "", nil, 125, []string{"qemu-system-x86 busybox-static cpio kmod xz-utils zstd util-linux"}},
		{"time is up", "6.1", "exit 124", nil, 124, []string{"not done after 3s"}},
		{"panic", "6.1", "exit 125", nil, 125, []string{"machine failed"}},
		{"killed", "6.1", "kill -KILL $$", nil, 125, []string{"signal: killed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.run != "" {
				allCommands(t)
			} else {
				commandsHere(t, c.here...)
			}
			m := Machine{Scripts: scripts(c.run), Kernel: c.kernel, Limit: 3 * time.Second, Fetch: time.Minute}
			exit, err := m.Run(t.Context(), []string{"true"}, nil, nil)
			if exit != c.exit || err == nil {
				t.Fatalf("exit %d, %v; want %d and an error", exit, err, c.exit)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not contain %q", err, w)
				}
			}
		})
	}
}

// A kernel is fetched first, within its own time limit.
func TestFetches(t *testing.T) {
	for _, c := range []struct {
		name, fetch string
		within      time.Duration
		ran         bool
		want        string // in the error
	}{
		{"longer than the limit", `sleep 1.2; echo "<$*>"`, time.Minute, true, ""},
		{"too long", "sleep 60; echo late", 500 * time.Millisecond, false, "fetch kernel 6.12: not done after 500ms"},
		{"fails", "echo no keyring >&2; exit 125", time.Minute, false, "fetch kernel 6.12: the cause is above"},
	} {
		t.Run(c.name, func(t *testing.T) {
			allCommands(t)
			var out, errs bytes.Buffer
			m := Machine{Scripts: fetching(c.fetch), Kernel: "6.12", Limit: time.Second, Fetch: c.within}
			began := time.Now()
			exit, err := m.Run(t.Context(), []string{"true"}, &out, &errs)
			if c.want == "" && (err != nil || exit != 0) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || exit != 125) {
				t.Errorf("exit %d, %v; want %q", exit, err, c.want)
			}
			if ran := out.String() == "run\n"; ran != c.ran {
				t.Errorf("out %q", &out)
			}
			if printed := errs.String(); c.ran && printed != "<-q 6.12>\n" || strings.Contains(printed, "late") {
				t.Errorf("fetch printed %q", printed)
			}
			if took := time.Since(began); took > patience/2 {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// Cancelling takes effect at once: the script may clean up, and everything that it waits
// for ends too.
func TestCancel(t *testing.T) {
	allCommands(t)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		if n, err := out.Read(make([]byte, 16)); n == 0 {
			t.Errorf("the script did not start: %v", err)
		}
		cancel()
	}()
	var cleaned bytes.Buffer
	// bash runs the trap only when the command that it waits for has ended. That command
	// prints "here" when it can be stopped: a new child ignores signals for a moment.
	m := Machine{Kernel: "6.1", Limit: time.Minute, Fetch: time.Minute,
		Scripts: scripts(`trap 'echo cleaned >&2; exit 143' TERM; bash -c "echo here; exec sleep 60"; echo late >&2`)}
	began := time.Now()
	exit, err := m.Run(ctx, []string{"true"}, in, &cleaned)
	in.Close()
	if !errors.Is(err, context.Canceled) || exit != 125 {
		t.Errorf("exit %d, %v; want the context's error", exit, err)
	}
	if took := time.Since(began); took > patience/2 {
		t.Errorf("it took %v", took)
	}
	if printed := cleaned.String(); !strings.HasSuffix(printed, "cleaned\n") || strings.Contains(printed, "late") {
		t.Errorf("the script printed %q; want that it cleaned up, and nothing after", printed)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestKernels(t *testing.T) {
	if got, err := Kernels(scripts("")); err != nil || !slices.Equal(got, []string{"6.1", "6.12"}) {
		t.Errorf("%q, %v", got, err)
	}
	for _, broken := range []fs.FS{fstest.MapFS{}, fstest.MapFS{"lib.sh": {Data: []byte("KERNELS=\n")}}} {
		if got, err := Kernels(broken); err == nil {
			t.Errorf("%q from scripts without a list", got)
		}
	}
}
