package topology

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// runRoot is where directories of a run are made.
const runRoot = "/run"

// Dir makes a directory that exists as long as the Net, for the files of programs
// that run in the network.
func (n *Net) Dir(name string) (string, error) {
	path := filepath.Join(runRoot, n.id.name(name))
	if err := os.Mkdir(path, 0o755); err != nil {
		return "", fmt.Errorf("make directory: %w", err)
	}
	if err := n.onClose(func() error { return removeDir(path) }); err != nil {
		return "", fmt.Errorf("make directory: %w", err)
	}
	return path, nil
}

// BPFFS mounts a BPF file system in a directory of the run. Its pins are gone when
// Close unmounts it.
func (n *Net) BPFFS(dir string) (string, error) {
	path := filepath.Join(dir, "bpf")
	if err := os.Mkdir(path, 0o755); err != nil {
		return "", fmt.Errorf("make mount point: %w", err)
	}
	if err := unix.Mount("bpf", path, "bpf", 0, ""); err != nil {
		return "", errors.Join(fmt.Errorf("mount bpffs: %w", err), os.Remove(path))
	}
	return path, nil
}

// removeDir unmounts the file systems in a directory of a run, and removes it.
func removeDir(path string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
	if err != nil {
		return fmt.Errorf("remove directory: read mounts: %w", err)
	}
	var errs []error
	for _, m := range slices.Backward(mounts) { // a mount below another comes after it in the list
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", m.Mountpoint, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err // RemoveAll must not delete files of a file system that is still mounted
	}
	return os.RemoveAll(path)
}
