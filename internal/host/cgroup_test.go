package host

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

const hybrid = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:10 master:3 - cgroup2 cgroup2 rw
`

// cgroup2In are the mounts of cgroup2 in the text of a mountinfo.
func cgroup2In(t *testing.T, text string) []*mountinfo.Info {
	t.Helper()
	mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(text), mountinfo.FSTypeFilter("cgroup2"))
	if err != nil {
		t.Fatal(err)
	}
	return mounts
}

func TestCgroupRoot(t *testing.T) {
	all := func(string) bool { return true }
	for _, c := range []struct {
		name, mountinfo string
		visible         func(string) bool
		want            string
	}{
		{"hybrid", hybrid, all, "/sys/fs/cgroup/unified"},
		{"unified", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", all, "/sys/fs/cgroup"},
		{"blank in path", `30 23 0:26 / /mnt/a\040b rw - cgroup2 none rw`, all, "/mnt/a b"},
		{"whole before part", "30 23 0:26 /pod /pod rw - cgroup2 none rw\n" + hybrid, all, "/sys/fs/cgroup/unified"},
		{"part only", "30 23 0:26 /pod /sys/fs/cgroup rw - cgroup2 none rw\n", all, "/sys/fs/cgroup"},
		{"hidden", "30 23 0:26 / /hidden rw - cgroup2 none rw\n" + hybrid,
			func(dir string) bool { return dir != "/hidden" }, "/sys/fs/cgroup/unified"},
	} {
		got, err := cgroupRoot(cgroup2In(t, c.mountinfo), c.visible)
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
	for _, none := range []string{"", "31 23 0:28 / /a rw - tmpfs tmpfs rw\n"} {
		if _, err := cgroupRoot(cgroup2In(t, none), all); !errors.Is(err, errNoCgroup2) {
			t.Errorf("%q: %v, want errNoCgroup2", none, err)
		}
	}
}

func TestCgroupDir(t *testing.T) {
	for path, want := range map[string]string{
		"/":                   "/cg",
		"":                    "/cg",
		"a.slice/b":           "/cg/a.slice/b",
		"/a.slice":            "/cg/a.slice",
		"/cg":                 "/cg",
		"/cg/a.slice":         "/cg/a.slice",
		"/cgother":            "/cg/cgother",
		"../../etc":           "/cg/etc",
		"/cg/../../../etc/pw": "/cg/etc/pw",
	} {
		if got := cgroupDir("/cg", path); got != want {
			t.Errorf("cgroupDir(%q) is %q, want %q", path, got, want)
		}
	}
}

func TestRootCgroup(t *testing.T) {
	parent := testenv.Cgroup(t)
	child := parent.Child(t)
	root, err := CgroupRoot()
	if err != nil || root != testenv.CgroupRoot(t) {
		t.Fatalf("CgroupRoot is %q, %v", root, err)
	}
	rel := strings.TrimPrefix(child.Path, root)

	t.Run("id is the kernel's handle", func(t *testing.T) {
		handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, child.Path, 0)
		if err != nil {
			t.Fatal(err)
		}
		want := binary.NativeEndian.Uint64(handle.Bytes())
		for _, path := range []string{child.Path, rel, strings.TrimPrefix(rel, "/")} {
			if got, err := CgroupID(path); err != nil || got != want {
				t.Errorf("CgroupID(%q) is %d, %v; want %d", path, got, err, want)
			}
		}
	})
	t.Run("of process", func(t *testing.T) {
		got, err := ProcessCgroup(os.Getpid())
		if want := (Cgroup{filepath.Dir(rel), parent.ID}); err != nil || got != want {
			t.Errorf("ProcessCgroup is %v, %v; want %v", got, err, want)
		}
	})
}

func TestRootCgroupErrors(t *testing.T) {
	testenv.Root(t)
	if id, err := CgroupID("/no-such.slice"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("CgroupID of no cgroup is %d, %v", id, err)
	}
	if id, err := CgroupID("/cgroup.procs"); err == nil {
		t.Errorf("CgroupID of a file is %d", id)
	}
	if id, err := cgroupID(t.TempDir()); err == nil {
		t.Errorf("cgroupID outside the hierarchy is %d", id)
	}
	if _, err := ProcessCgroup(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ProcessCgroup of no process: %v", err)
	}
}
