package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// MountBPFFS returns a writable bpffs: the one at system if there is one, otherwise a
// private one at dir. A private bpffs that an earlier process left is used again, with
// its pins. undo unmounts a private one, which drops all its pins, and removes dir. undo
// may be called twice.
func MountBPFFS(system, dir string) (path string, undo func() error, err error) {
	if IsBPFFS(system) && unix.Access(system, unix.W_OK) == nil {
		return system, func() error { return nil }, nil
	}
	undo = func() error { return unmountBPFFS(dir) }
	if IsBPFFS(dir) {
		return dir, undo, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("mount bpffs: %w", err)
	}
	err = unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700")
	if err != nil {
		err = fmt.Errorf("mount bpffs at %s: %w", dir, err)
		return "", nil, errors.Join(err, ignoreNotEmpty(os.Remove(dir)))
	}
	return dir, undo, nil
}

// IsBPFFS reports whether dir is in a mounted BPF file system.
func IsBPFFS(dir string) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) == nil && int64(s.Type) == unix.BPF_FS_MAGIC
}

func unmountBPFFS(dir string) error {
	if IsBPFFS(dir) {
		if err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount bpffs at %s: %w", dir, err)
		}
	}
	return ignoreNotEmpty(os.Remove(dir))
}

// ignoreNotEmpty accepts that the directory is gone already, or has files that are not
// tcpilot's.
func ignoreNotEmpty(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return err
}
