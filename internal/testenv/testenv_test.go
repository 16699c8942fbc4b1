package testenv

import (
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
)

func TestMain(m *testing.M) { Main(m) }

func TestRootVeth(t *testing.T) {
	a, b := NetNS(t), NetNS(t)
	ea, eb := Veth(t, a, b)
	for _, addr := range []netip.Addr{eb.V4, eb.V6} {
		l := b.Listen(t, "tcp", netip.AddrPortFrom(addr, 0).String())
		go func() {
			c, err := l.Accept()
			if err == nil {
				io.WriteString(c, "hello")
				c.Close()
			}
		}()
		c := a.Dial(t, "tcp", l.Addr().String())
		got, err := io.ReadAll(c)
		if err != nil || string(got) != "hello" {
			t.Errorf("read from %s: %q, %v", addr, got, err)
		}
	}
	if out := a.Run(t, "cat", "/proc/net/dev"); !strings.Contains(out, ea.Name) {
		t.Errorf("a command did not run in the namespace: %s", out)
	}
}

func TestRootNetNSIsLeft(t *testing.T) {
	before, err := os.Readlink(netns.Own)
	if err != nil {
		t.Fatal(err)
	}
	n := NetNS(t)
	n.Do(t, func() {
		inside, _ := os.Readlink(netns.Own)
		viaPath, _ := os.Stat(n.Path())
		own, _ := os.Stat(netns.Own)
		if inside == before || !os.SameFile(viaPath, own) {
			t.Errorf("inside is %s, outside %s", inside, before)
		}
	})
	t.Run("entered", func(t *testing.T) {
		n.Enter(t)
		if now, _ := os.Readlink(netns.Own); now == before {
			t.Error("not entered")
		}
	})
	if after, _ := os.Readlink(netns.Own); after != before {
		t.Errorf("after is %s, before %s", after, before)
	}
}

func TestRootCgroupIsLeft(t *testing.T) {
	Root(t)
	before := ownCgroup(t)
	var path string
	t.Run("inside", func(t *testing.T) {
		c := Cgroup(t)
		path = c.Path
		if !strings.HasSuffix(c.Path, ownCgroup(t)) || c.ID == 0 {
			t.Errorf("own cgroup is %s, want %s (id %d)", ownCgroup(t), c.Path, c.ID)
		}
		child := c.Child(t)
		child.Do(t, func() {
			if !strings.HasSuffix(child.Path, ownCgroup(t)) {
				t.Errorf("own cgroup is %s, want %s", ownCgroup(t), child.Path)
			}
		})
	})
	if after := ownCgroup(t); after != before {
		t.Errorf("own cgroup is %s, was %s", after, before)
	}
	if _, err := os.Stat(path); err == nil {
		t.Errorf("%s still exists", path)
	}
}

func TestRootSysctl(t *testing.T) {
	const name = "net.ipv4.tcp_syn_retries"
	n := NetNS(t)
	before, outside := ReadSysctl(t, n, name), ReadSysctl(t, nil, name)
	t.Run("set", func(t *testing.T) {
		Sysctl(t, n, name, "3")
		if got := ReadSysctl(t, n, name); got != "3" {
			t.Errorf("read %q", got)
		}
		if got := ReadSysctl(t, nil, name); got != outside {
			t.Errorf("outside changed from %q to %q", outside, got)
		}
	})
	if got := ReadSysctl(t, n, name); got != before {
		t.Errorf("after: %q, before: %q", got, before)
	}
}

func TestLeakedFDs(t *testing.T) {
	before := openFDs()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if got := leakedFDs(before); len(got) != 2 {
		t.Errorf("two pipe ends are open, leaked: %q", got)
	}
	r.Close()
	w.Close()
	if got := leakedFDs(before); len(got) != 0 {
		t.Errorf("all is closed, leaked: %q", got)
	}
}

// What a killed test leaves in the kernel is removed by the next one; what a running one has
// there is not.
func TestRootKilledTestsLeaveNothing(t *testing.T) {
	root := CgroupRoot(t)
	killed := exec.Command("true")
	if err := killed.Run(); err != nil {
		t.Fatal(err)
	}
	left, used := owner(killed.ProcessState.Pid()), owner(os.Getpid())
	leftDir, usedDir, cgroup := t.TempDir(), t.TempDir(), filepath.Join(root, left+"-1")
	for dir, source := range map[string]string{leftDir: left, usedDir: used} {
		if err := unix.Mount(source, dir, "bpf", 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(cgroup, left+"-2"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Run("the next", func(t *testing.T) {
		Cgroup(t)
		MountBPFFS(t, t.TempDir())
	})
	if _, err := os.Stat(cgroup); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cgroup of a process that is gone: %v", err)
	}
	if err := unix.Unmount(leftDir, 0); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a process that is gone: unmount gives %v, want %v", err, unix.EINVAL)
	}
	if err := unix.Unmount(usedDir, 0); err != nil {
		t.Errorf("this process: %v", err)
	}
}
