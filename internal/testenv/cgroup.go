package testenv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/cgroup"
)

// CG is a cgroup v2 directory that lives as long as its test.
type CG struct {
	Path string // absolute
	ID   uint64 // kn->id, as BPF programs see it
}

var cgroups atomic.Uint32

// CgroupRoot is where cgroup2 is mounted.
func CgroupRoot(t testing.TB) string {
	t.Helper()
	root, err := cgroup.Root()
	if err != nil {
		Missing(t, err.Error())
	}
	return root
}

// Cgroup creates a child of the cgroup2 root and moves this process there until the test
// ends. Sockets stay in the cgroup in which they were created.
func Cgroup(t testing.TB) *CG {
	t.Helper()
	Root(t)
	root := CgroupRoot(t)
	removeCgroupsOfKilled(t, root)
	before := ownCgroup(t)
	c := makeCgroup(t, root)
	join(t, c.Path)
	t.Cleanup(func() { join(t, filepath.Join(root, before)) })
	return c
}

// Child creates a cgroup below c; no process is moved.
func (c *CG) Child(t testing.TB) *CG {
	t.Helper()
	return makeCgroup(t, c.Path)
}

// Do runs f with this process in c, and then moves the process back. This affects every
// goroutine of the test binary.
func (c *CG) Do(t testing.TB, f func()) {
	t.Helper()
	before := filepath.Join(CgroupRoot(t), ownCgroup(t))
	join(t, c.Path)
	defer join(t, before)
	f()
}

func makeCgroup(t testing.TB, parent string) *CG {
	t.Helper()
	path := filepath.Join(parent, fmt.Sprintf("%s-%d", owner(os.Getpid()), cgroups.Add(1)))
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeCgroup(t, path) })
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return &CG{Path: path, ID: info.Sys().(*syscall.Stat_t).Ino}
}

// removeCgroup waits until the last processes in the cgroup have exited.
func removeCgroup(t testing.TB, path string) {
	t.Helper()
	var err error
	for range 100 {
		err = os.Remove(path)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("remove cgroup: %v", err)
}

// ownCgroup is this process's cgroup2, relative to the root.
func ownCgroup(t testing.TB) string {
	t.Helper()
	path, err := cgroup.OfProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func join(t testing.TB, path string) {
	t.Helper()
	procs := filepath.Join(path, "cgroup.procs")
	if err := os.WriteFile(procs, []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		t.Errorf("join cgroup: %v", err)
	}
}
