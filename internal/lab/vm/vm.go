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
	// Writable are the directories that the command may change; what it writes
	// elsewhere is lost.
	Writable []string
	Limit    time.Duration // for all, in whole seconds
}

// What the script run exits with when it is not the command's own.
const (
	timedOut = 124
	broken   = 125
)

// patience is how long the machine may take to end when it is told to; the
// script gives QEMU 5 s.
const patience = 15 * time.Second

// Run runs argv, as root, in the current directory and with the current
// environment, and returns what it exits with. The error is about the machine:
// it could not start, its time was up, or ctx ended, upon which it is stopped.
// A command that exits with 124 or 125 is mistaken for such.
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
	args := []string{"-k", m.Kernel, "-t", strconv.Itoa(int(max(1, m.Limit.Seconds())))}
	for _, w := range m.Writable {
		args = append(args, "-r", w)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "run"), append(append(args, "--"), argv...)...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// The group has what the script waits for, such as a download.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = patience
	// The parent's death is that of the thread which started the script.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	if ctx.Err() != nil {
		return broken, fmt.Errorf("run under kernel %s: %w", m.Kernel, context.Cause(ctx))
	}
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		return broken, fmt.Errorf("run under kernel %s: %w", m.Kernel, err)
	}
	switch exit = cmd.ProcessState.ExitCode(); exit {
	case timedOut:
		return exit, fmt.Errorf("run under kernel %s: not done after %v", m.Kernel, m.Limit)
	case broken:
		return exit, fmt.Errorf("run under kernel %s: the emulated machine failed; what it said is above", m.Kernel)
	case -1:
		return broken, fmt.Errorf("run under kernel %s: %v", m.Kernel, cmd.ProcessState)
	}
	return exit, nil
}

// check finds what keeps the machine from starting, and says what to do.
func (m Machine) check() error {
	kernels, err := Kernels(m.Scripts)
	if err != nil {
		return err
	}
	if !slices.Contains(kernels, m.Kernel) {
		return fmt.Errorf("no kernel %q to run under; there are %s", m.Kernel, strings.Join(kernels, ", "))
	}
	var packages []string
	for _, c := range commands {
		if _, err := exec.LookPath(c.name); err != nil {
			packages = append(packages, c.of)
		}
	}
	if len(packages) > 0 {
		return fmt.Errorf("run under kernel %s: an emulated machine needs packages that are not here; "+
			"on Debian and Ubuntu: apt-get install %s", m.Kernel, strings.Join(packages, " "))
	}
	return nil
}

// commands are those that the scripts call, and the packages of Debian that have
// them.
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

// kernelsLine is where the scripts say which kernels there are.
var kernelsLine = regexp.MustCompile(`(?m)^KERNELS=\(([^)]*)\)$`)

// Kernels lists the kernels that the scripts know.
func Kernels(scripts fs.FS) ([]string, error) {
	lib, err := fs.ReadFile(scripts, "lib.sh")
	if err != nil {
		return nil, fmt.Errorf("list kernels: %w", err)
	}
	line := kernelsLine.FindSubmatch(lib)
	if line == nil {
		return nil, errors.New("list kernels: lib.sh does not say KERNELS=(...)")
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
