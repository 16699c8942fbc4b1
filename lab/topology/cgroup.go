package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tcpilot/tcpilot/internal/cgroup"
)

// Cgroup is a cgroup v2 directory that exists as long as its Net.
type Cgroup struct {
	Path string
	dir  *os.File
}

// Cgroup makes a child of the cgroup2 root. Net.Close kills the processes in it.
func (n *Net) Cgroup(name string) (*Cgroup, error) {
	root, err := cgroup.Root()
	if err != nil {
		return nil, err
	}
	return n.addCgroup(filepath.Join(root, n.id.name(name)))
}

// Child makes a cgroup in the cgroup, as a pod's is in its node's.
func (c *Cgroup) Child(n *Net, name string) (*Cgroup, error) {
	return n.addCgroup(filepath.Join(c.Path, name))
}

func (n *Net) addCgroup(path string) (*Cgroup, error) {
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil, fmt.Errorf("add cgroup: %w", err)
	}
	if err := n.onClose(func() error { return killCgroup(path) }); err != nil {
		return nil, fmt.Errorf("add cgroup: %w", err)
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	if err := n.onClose(dir.Close); err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	return &Cgroup{Path: path, dir: dir}, nil
}

// Put makes cmd start in the cgroup; call it before Host.Start.
func (c *Cgroup) Put(cmd *exec.Cmd) {
	if c == nil {
		return
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD = true
	cmd.SysProcAttr.CgroupFD = int(c.dir.Fd())
}

// CPU is the processor time that the cgroup's processes have used, and those of its children
// (usage_usec of cpu.stat, which is there without the cpu controller as well).
func (c *Cgroup) CPU() (time.Duration, error) {
	stat, err := os.ReadFile(filepath.Join(c.Path, "cpu.stat"))
	if err != nil {
		return 0, fmt.Errorf("read cgroup's processor time: %w", err)
	}
	var us int64
	if _, err := fmt.Sscanf(string(stat), "usage_usec %d", &us); err != nil {
		return 0, fmt.Errorf("read cgroup's processor time: %s/cpu.stat: %w", c.Path, err)
	}
	return time.Duration(us) * time.Microsecond, nil
}

// killCgroup kills a cgroup's processes and removes it.
func killCgroup(path string) error {
	// Before Linux 5.14 there is no such file; a process that is left then makes the
	// removal fail with EBUSY.
	os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0)
	return removeCgroup(path)
}

// removeCgroup removes a cgroup and its children. It waits up to 2 s for processes
// that are exiting.
func removeCgroup(path string) error {
	below, _ := filepath.Glob(filepath.Join(path, "*", "cgroup.procs"))
	for _, procs := range below {
		if err := removeCgroup(filepath.Dir(procs)); err != nil {
			return err
		}
	}
	var err error
	for range 100 {
		if err = os.Remove(path); err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("remove cgroup: %w", err)
}
