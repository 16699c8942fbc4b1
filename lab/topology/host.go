package topology

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/thread"
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

// Do runs f in the namespace, on a thread of its own. Goroutines that f starts
// are not in the namespace; sockets that f makes stay in it.
func (h *Host) Do(f func() error) error {
	return thread.Apart(func() error {
		if err := h.enter(); err != nil {
			return err
		}
		return f()
	})
}

// enter moves the calling thread into the namespace.
func (h *Host) enter() error {
	if err := netns.Set(h.ns); err != nil {
		return fmt.Errorf("enter %s: %w", h.Name, err)
	}
	return nil
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
	name := filepath.Base(cmd.Path)
	if err := h.parent(cmd.Start); err != nil {
		return fmt.Errorf("start %s in %s: %w", name, h.Name, err)
	}
	process := cmd.Process // without what it prints: that goes with cmd
	err := h.net.onClose(func() error {
		if err := process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("kill %s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		cmd.Wait()
		return fmt.Errorf("start %s in %s: %w", name, h.Name, err)
	}
	return nil
}

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
