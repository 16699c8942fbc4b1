package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Machine is where a command runs.
type Machine struct {
	// Scripts are the files of test/vm.
	Scripts fs.FS
	Kernel  string // one of Kernels
	// VirtualTime makes the machine's clock count instructions, 1 ns for each, and skip idle time.
	VirtualTime bool
	// Writable are the directories that the command may change; what it writes
	// elsewhere is lost.
	Writable []string
	Limit    time.Duration // for the machine, in whole seconds, from its start to its end
	// Fetch is how long fetching a kernel that is not in the cache may take; it comes
	// before Limit starts.
	Fetch time.Duration
}

// Exit codes of the script run that are not the command's own.
const (
	timedOut = 124
	broken   = 125
)

// patience is how long the machine may take to stop when it is told to; the script gives
// QEMU 5 s.
const patience = 15 * time.Second

// Run runs argv, as root, in the current directory and with the current environment, and
// returns its exit code. The error is about the machine: its kernel could not be fetched,
// it could not start, its time limit expired, or ctx ended, which stops it. A command that exits
// with 124 or 125 is taken for such an error.
func (m Machine) Run(ctx context.Context, argv []string, stdout, stderr io.Writer) (exit int, err error) {
	if err := m.check(); err != nil {
		return broken, err
	}
	dir, err := os.MkdirTemp("", "tcpilot-vm-")
	if err != nil {
		return broken, fmt.Errorf("unpack scripts: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := unpack(m.Scripts, dir); err != nil {
		return broken, err
	}
	if err := m.fetch(ctx, dir, stderr); err != nil {
		return broken, err
	}
	args := []string{"-k", m.Kernel, "-t", strconv.Itoa(int(max(1, m.Limit.Seconds())))}
	if m.VirtualTime {
		args = append(args, "-i")
	}
	for _, w := range m.Writable {
		args = append(args, "-r", w)
	}
	exit, err = script(ctx, filepath.Join(dir, "run"), append(append(args, "--"), argv...), stdout, stderr)
	switch {
	case err != nil:
	case exit == timedOut:
		err = fmt.Errorf("not done after %v", m.Limit)
	case exit == broken:
		err = errors.New("the emulated machine failed; its output is above")
	}
	if err != nil {
		return exit, fmt.Errorf("run under kernel %s: %w", m.Kernel, err)
	}
	return exit, nil
}

// fetch fetches the kernel if it is not in the cache.
func (m Machine) fetch(ctx context.Context, dir string, stderr io.Writer) error {
	ctx, cancel := context.WithTimeoutCause(ctx, m.Fetch, fmt.Errorf("not done after %v", m.Fetch))
	defer cancel()
	exit, err := script(ctx, filepath.Join(dir, "fetch"), []string{"-q", m.Kernel}, stderr, stderr)
	if err == nil && exit != 0 {
		err = errors.New("the cause is above")
	}
	if err != nil {
		return fmt.Errorf("fetch kernel %s: %w", m.Kernel, err)
	}
	return nil
}

// script runs a script and returns its exit code. If ctx ends, the script is stopped with
// all processes that it started.
func script(ctx context.Context, name string, args []string, stdout, stderr io.Writer) (exit int, err error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// The process group includes what the script waits for, such as a download.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = patience
	// The kernel sends Pdeathsig when the thread that started the script ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	if ctx.Err() != nil {
		return broken, context.Cause(ctx)
	}
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		return broken, err
	}
	if exit = cmd.ProcessState.ExitCode(); exit < 0 {
		return broken, errors.New(cmd.ProcessState.String())
	}
	return exit, nil
}

// check returns an error that says what to do if the machine cannot start.
func (m Machine) check() error {
	kernels, err := Kernels(m.Scripts)
	if err != nil {
		return err
	}
	if !slices.Contains(kernels, m.Kernel) {
		return fmt.Errorf("unknown kernel %q; there are %s", m.Kernel, strings.Join(kernels, ", "))
	}
	var packages []string
	for _, c := range commands {
		if _, err := exec.LookPath(c.name); err != nil {
			packages = append(packages, c.of)
		}
	}
	if len(packages) > 0 {
		return fmt.Errorf("run under kernel %s: packages for the emulated machine are missing: "+
			"on Debian and Ubuntu, apt-get install %s", m.Kernel, strings.Join(packages, " "))
	}
	return nil
}

// commands are those that the scripts call, with the Debian packages that contain them.
var commands = []struct{ name, of string }{
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"busybox", "busybox-static"},
	{"cpio", "cpio"},
	{"depmod", "kmod"},
	{"xz", "xz-utils"},
	{"zstd", "zstd"},
	{"setpriv", "util-linux"},
	{"bash", "bash"},
}

// kernelsLine is the line of lib.sh that lists the kernels.
var kernelsLine = regexp.MustCompile(`(?m)^KERNELS=\(([^)]*)\)$`)

// Kernels lists the kernels that the scripts know.
func Kernels(scripts fs.FS) ([]string, error) {
	lib, err := fs.ReadFile(scripts, "lib.sh")
	if err != nil {
		return nil, fmt.Errorf("list kernels: %w", err)
	}
	line := kernelsLine.FindSubmatch(lib)
	if line == nil {
		return nil, errors.New("list kernels: lib.sh has no line KERNELS=(...)")
	}
	return strings.Fields(string(line[1])), nil
}

// unpack writes the scripts into a directory, to be executed.
func unpack(scripts fs.FS, dir string) error {
	entries, err := fs.ReadDir(scripts, ".")
	if err != nil {
		return fmt.Errorf("unpack scripts: %w", err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		data, err := fs.ReadFile(scripts, e.Name())
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, e.Name()), data, 0o755)
		}
		if err != nil {
			return fmt.Errorf("unpack scripts: %w", err)
		}
	}
	return nil
}
