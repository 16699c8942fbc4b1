package cgroup

import (
	"errors"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
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

func TestWholeBeforePart(t *testing.T) {
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
		got, err := wholeBeforePart(cgroup2In(t, c.mountinfo), c.visible)
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
	for _, none := range []string{"", "31 23 0:28 / /a rw - tmpfs tmpfs rw\n"} {
		if _, err := wholeBeforePart(cgroup2In(t, none), all); !errors.Is(err, errNoCgroup2) {
			t.Errorf("%q: %v, want errNoCgroup2", none, err)
		}
	}
}

func TestDir(t *testing.T) {
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
		if got := dirOf("/cg", path); got != want {
			t.Errorf("dirOf(%q) is %q, want %q", path, got, want)
		}
	}
}

func TestOutsideOfTheHierarchy(t *testing.T) {
	if id, err := idOf(t.TempDir()); err == nil {
		t.Errorf("the id of a directory elsewhere is %d", id)
	}
}
