package topology

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Host is one network namespace of a Net.
type Host struct {
	Name      string
	Namespace string // name under /run/netns
	net       *Net
	ns        netns.NsHandle
	link      *netlink.Handle
}

// Netlink is a handle that works inside the namespace.
func (h *Host) Netlink() *netlink.Handle { return h.link }

// Path opens to the namespace from any process.
func (h *Host) Path() string { return filepath.Join(netnsDir, h.Namespace) }

func lockThread() { runtime.LockOSThread() }

// Do runs f in the namespace, on a thread of its own. Goroutines that f starts
// are not in the namespace; sockets that f makes stay in it.
func (h *Host) Do(f func() error) error {
	done := make(chan error)
	go func() { done <- h.do(f) }()
	return <-done
}

func (h *Host) do(f func() error) error {
	lockThread()
	back, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer back.Close()
	if err := netns.Set(h.ns); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter %s: %w", h.Name, err)
	}
	err = f()
	if back := netns.Set(back); back != nil {
		// The thread stays locked, and ends with this goroutine.
		return errors.Join(err, fmt.Errorf("leave %s: %w", h.Name, back))
	}
	runtime.UnlockOSThread()
	return err
}

// Start starts cmd in the namespace. Close kills it if it still runs then, and
// the kernel does if this process dies. The terminal's Ctrl-C does not reach it:
// whoever started it ends it.
func (h *Host) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := parent(func() error { return h.do(cmd.Start) }); err != nil {
		return fmt.Errorf("start %s in %s: %w", filepath.Base(cmd.Path), h.Name, err)
	}
	h.net.onClose(func() error {
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("kill %s: %w", filepath.Base(cmd.Path), err)
		}
		return nil
	})
	return nil
}

// parent runs f on the thread that starts all processes. To the kernel a process
// is the child of a thread: Pdeathsig comes when that one ends, and the threads of
// a Go program end when a goroutine returns that was locked to its own.
func parent(f func() error) error {
	done := make(chan error)
	startThread() <- func() { done <- f() }
	return <-done
}

// startThread is the way to that thread, which lives as long as this process.
var startThread = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		lockThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// Run runs a command in the namespace to its end and returns what it printed.
func (h *Host) Run(name string, args ...string) (string, error) {
	var out strings.Builder
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := h.Start(cmd); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("run %s in %s: %w: %s", name, h.Name, err, strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}

// SetSysctl writes a net.* sysctl of the namespace.
func (h *Host) SetSysctl(key, value string) error {
	return h.Do(func() error {
		if err := os.WriteFile(sysctlPath(key), []byte(value), 0); err != nil {
			return fmt.Errorf("set sysctl %s of %s: %w", key, h.Name, err)
		}
		return nil
	})
}

// Sysctl reads a net.* sysctl of the namespace.
func (h *Host) Sysctl(key string) (value string, err error) {
	err = h.Do(func() error {
		b, err := os.ReadFile(sysctlPath(key))
		if err != nil {
			return fmt.Errorf("read sysctl %s of %s: %w", key, h.Name, err)
		}
		value = strings.TrimSpace(string(b))
		return nil
	})
	return value, err
}

func sysctlPath(key string) string {
	return filepath.Join("/proc/sys", strings.ReplaceAll(key, ".", "/"))
}

// Cookie is the namespace's cookie, as samples and rules name it.
func (h *Host) Cookie() (cookie uint64, err error) {
	err = h.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open socket: %w", err)
		}
		defer unix.Close(fd)
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	return cookie, err
}
