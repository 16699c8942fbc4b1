package testenv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// ownerPrefix begins the names of what a test leaves in the kernel if it is killed.
const ownerPrefix = "tcpilot-test-"

// owner names a process in a cgroup's name or a mount's source: its PID, and the PID namespace
// in which it has it.
func owner(pid int) string { return fmt.Sprintf("%s%d-%d", ownerPrefix, pidNamespace(), pid) }

// pidNamespace is the inode of this process's PID namespace.
var pidNamespace = sync.OnceValue(func() uint64 {
	link, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		panic(err)
	}
	var inode uint64
	if _, err := fmt.Sscanf(link, "pid:[%d]", &inode); err != nil {
		panic(err)
	}
	return inode
})

// ownerIsGone reports whether name is that of a process of this PID namespace that no longer
// exists.
func ownerIsGone(name string) bool {
	var namespace uint64
	var pid int
	if _, err := fmt.Sscanf(name, ownerPrefix+"%d-%d", &namespace, &pid); err != nil || namespace != pidNamespace() {
		return false
	}
	return errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

// MountBPFFS mounts a BPF file system on dir until the test ends. It first removes those of
// killed tests, whose pins keep programs attached and congestion controls registered.
func MountBPFFS(t testing.TB, dir string) {
	t.Helper()
	Root(t)
	removeBPFFSOfKilled(t)
	if err := unix.Mount(owner(os.Getpid()), dir, "bpf", 0, ""); err != nil {
		t.Fatalf("mount a BPF file system on %s: %v", dir, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

func removeBPFFSOfKilled(t testing.TB) {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("bpf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if !ownerIsGone(m.Source) {
			continue
		}
		t.Logf("%s is of a test that was killed: unmounting it", m.Mountpoint)
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	}
}

// removeCgroupsOfKilled removes the empty cgroups below root that killed tests left.
func removeCgroupsOfKilled(t testing.TB, root string) {
	t.Helper()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ownerPrefix) || !ownerIsGone(e.Name()) {
			continue
		}
		children, _ := filepath.Glob(filepath.Join(root, e.Name(), ownerPrefix+"*"))
		for _, dir := range append(children, filepath.Join(root, e.Name())) {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Logf("a test that was killed left %s: %v", dir, err)
			}
		}
	}
}
