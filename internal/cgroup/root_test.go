package cgroup_test

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/cgroup"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestRootCgroup(t *testing.T) {
	parent := testenv.Cgroup(t)
	child := parent.Child(t)
	root, err := cgroup.Root()
	if err != nil {
		t.Fatal(err)
	}
	rel := strings.TrimPrefix(child.Path, root)

	t.Run("id is the kernel's handle", func(t *testing.T) {
		handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, child.Path, 0)
		if err != nil {
			t.Fatal(err)
		}
		want := binary.NativeEndian.Uint64(handle.Bytes())
		for _, path := range []string{child.Path, rel, strings.TrimPrefix(rel, "/")} {
			if got, err := cgroup.ID(path); err != nil || got != want {
				t.Errorf("ID(%q) is %d, %v; want %d", path, got, err, want)
			}
		}
	})
	t.Run("ids by pattern", func(t *testing.T) {
		other := parent.Child(t)
		id := func(path string) uint64 {
			id, err := cgroup.ID(path)
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
		both := []uint64{id(child.Path), id(other.Path)}
		slices.Sort(both)
		above := filepath.Dir(rel)
		for pattern, want := range map[string][]uint64{
			rel: {id(child.Path)}, above + "/*": both, parent.Path + "/*": both, above + "/*/*": nil, above + "/[": nil, above + "/cgroup.*": nil, above + "/no-such": nil,
			"/*/" + filepath.Base(rel): {id(child.Path)}, above + "/" + filepath.Base(rel)[:1] + "*": both,
		} {
			got := cgroup.IDs(pattern)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("IDs(%q) are %d, want %d", pattern, got, want)
			}
		}
	})
	t.Run("of process", func(t *testing.T) {
		got, err := cgroup.OfProcess(os.Getpid())
		if want := filepath.Dir(rel); err != nil || got != want {
			t.Errorf("OfProcess is %q, %v; want %q", got, err, want)
		}
	})
}

func TestRootCgroupErrors(t *testing.T) {
	testenv.Root(t)
	if id, err := cgroup.ID("/no-such.slice"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ID of no cgroup is %d, %v", id, err)
	}
	if id, err := cgroup.ID("/cgroup.procs"); err == nil {
		t.Errorf("ID of a file is %d", id)
	}
	if _, err := cgroup.OfProcess(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OfProcess of no process: %v", err)
	}
}
