package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// errNoCgroup2 is returned if no cgroup2 hierarchy is mounted.
var errNoCgroup2 = errors.New("no cgroup2 hierarchy is mounted (mount -t cgroup2 none /sys/fs/cgroup)")

// Root finds where the cgroup2 hierarchy is mounted. It is not always
// /sys/fs/cgroup: beside v1 controllers it is often /sys/fs/cgroup/unified.
func Root() (string, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup2"))
	if err != nil {
		return "", fmt.Errorf("find cgroup2: read mounts: %w", err)
	}
	return wholeBeforePart(mounts, isCgroup2)
}

// wholeBeforePart returns the mount point of a mount of the whole hierarchy; if there is none, of a
// bind mount of a part. It ignores mounts that another one hides.
func wholeBeforePart(mounts []*mountinfo.Info, visible func(dir string) bool) (string, error) {
	part := ""
	for _, m := range mounts {
		if !visible(m.Mountpoint) {
			continue
		}
		if m.Root == "/" {
			return m.Mountpoint, nil
		}
		if part == "" {
			part = m.Mountpoint
		}
	}
	if part == "" {
		return "", errNoCgroup2
	}
	return part, nil
}

func isCgroup2(dir string) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) == nil && int64(s.Type) == unix.CGROUP2_SUPER_MAGIC
}

// IsWhole reports whether the directory of a cgroup is the root of the whole hierarchy.
// A process in a cgroup namespace of its own sees only a part of the hierarchy. The top directory
// of that part looks like the root, but has files that the root does not have.
func IsWhole(dir string) (bool, error) {
	if _, err := idOf(dir); err != nil {
		return false, err
	}
	// cgroup.type exists in all cgroups except the root (cgroup-v2.rst, "Core
	// Interface Files").
	_, err := os.Lstat(filepath.Join(dir, "cgroup.type"))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// ID is the id of a cgroup as BPF programs see it (kn->id). path is its directory below the mount or, as in
// /proc/PID/cgroup, below the hierarchy's root.
func ID(path string) (uint64, error) {
	root, err := Root()
	if err != nil {
		return 0, err
	}
	return idOf(dirOf(root, path))
}

// IDs are the ids of the existing cgroups that a path names, or that a pattern (path.Match) matches. Without any of
// *, ? and [ it is a path: a backslash alone does not make a pattern, because names of systemd units have some.
func IDs(pattern string) (ids []uint64) {
	if !strings.ContainsAny(pattern, "*?[") {
		if id, err := ID(pattern); err == nil {
			ids = append(ids, id)
		}
		return ids
	}
	root, err := Root()
	if err != nil {
		return nil
	}
	// A bad pattern matches nothing; the configuration refuses it.
	found, _ := fs.Glob(os.DirFS(root), strings.TrimPrefix(strings.TrimPrefix(pattern, root), "/"))
	for _, name := range found {
		if id, err := idOf(filepath.Join(root, name)); err == nil { // an error: it is a file, or has gone
			ids = append(ids, id)
		}
	}
	return ids
}

// Dir is the directory of a cgroup given as for ID.
func Dir(path string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	return dirOf(root, path), nil
}

func dirOf(root, path string) string {
	path = filepath.Clean("/" + path)
	if path == root || strings.HasPrefix(path, root+"/") {
		return path
	}
	return filepath.Join(root, path)
}

// idOf is the directory's inode number, which is kn->id since Linux 5.5.
func idOf(dir string) (uint64, error) {
	if !isCgroup2(dir) {
		if _, err := os.Stat(dir); err != nil {
			return 0, fmt.Errorf("find cgroup: %w", err)
		}
		return 0, fmt.Errorf("find cgroup: %s is not in a cgroup2 hierarchy", dir)
	}
	var s unix.Stat_t
	if err := unix.Stat(dir, &s); err != nil {
		return 0, fmt.Errorf("find cgroup: %w", &fs.PathError{Op: "stat", Path: dir, Err: err})
	}
	if s.Mode&unix.S_IFMT != unix.S_IFDIR {
		return 0, fmt.Errorf("find cgroup: %s is a file of a cgroup", dir)
	}
	return s.Ino, nil
}

// OfProcess is the cgroup of a process, below the hierarchy's root, which is "/".
func OfProcess(pid int) (path string, err error) {
	lines, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", fmt.Errorf("find cgroup of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(lines)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSuffix(path, "\n"), nil
		}
	}
	return "", fmt.Errorf("find cgroup of process %d: %w", pid, errNoCgroup2)
}

// Processes are the processes in a cgroup and those below it, by id: usually in the order in which they began.
func Processes(dir string) (pids []int, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return ignoreGone(err)
		}
		text, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for line := range strings.Lines(string(text)) {
			// 0 is a process that this PID namespace does not show.
			if pid, err := strconv.Atoi(strings.TrimSuffix(line, "\n")); err == nil && pid != 0 {
				pids = append(pids, pid)
			}
		}
		return ignoreGone(err)
	})
	if err != nil {
		return nil, fmt.Errorf("list processes of cgroup: %w", err)
	}
	slices.Sort(pids)
	return pids, nil
}

// ignoreGone ignores errors of a cgroup that has ended, or that has no list of processes because it consists of threads.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}
