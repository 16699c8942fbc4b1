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
	vnetns "github.com/vishvananda/netns"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/sysctl"
)

// Host is one network namespace of a Net.
type Host struct {
	Name      string
	Namespace string // name under /run/netns
	net       *Net
	ns        vnetns.NsHandle
	link      *netlink.Handle
}

// Netlink returns a netlink handle of the namespace.
func (h *Host) Netlink() *netlink.Handle { return h.link }

// Path is the file through which any process can open the namespace.
func (h *Host) Path() string { return filepath.Join(netns.Dir, h.Namespace) }

// Do runs f in the namespace, on another thread. Goroutines that f starts run outside of
// the namespace; sockets that f opens stay in it.
func (h *Host) Do(f func() error) error {
	entered := false
	err := netns.Do(int(h.ns), func() error { entered = true; return f() })
	if !entered {
		return fmt.Errorf("host %s: %w", h.Name, err)
	}
	return err
}

// Start starts cmd in the namespace. Close kills it if it still runs, and the kernel
// kills it if this process dies. The terminal's Ctrl-C does not reach it, so the
// caller has to stop it.
func (h *Host) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	name := filepath.Base(cmd.Path)
	if err := h.onStartThread(cmd.Start); err != nil {
		return fmt.Errorf("start %s in %s: %w", name, h.Name, err)
	}
	process := cmd.Process // keeps no reference to cmd, which may hold the output
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

// Run runs a command in the namespace until it ends and returns its output.
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
		if err := sysctl.Write(key, value); err != nil {
			return fmt.Errorf("set sysctl %s of %s: %w", key, h.Name, err)
		}
		return nil
	})
}

// Sysctl reads a net.* sysctl of the namespace.
func (h *Host) Sysctl(key string) (value string, err error) {
	err = h.Do(func() error {
		var err error
		if value, err = sysctl.Read(key); err != nil {
			return fmt.Errorf("read sysctl %s of %s: %w", key, h.Name, err)
		}
		return nil
	})
	return value, err
}
