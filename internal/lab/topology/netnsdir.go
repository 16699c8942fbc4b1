package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// netnsDir is where `ip netns` keeps named namespaces.
const netnsDir = "/run/netns"

// prepareNetnsDir makes netnsDir a shared mount of its own, as the first
// `ip netns add` of a machine does. If that came later than our namespaces, it
// would hide their mounts under its own, and they could not be removed any more.
func prepareNetnsDir() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", netnsDir, err)
	}
	dir, err := os.Open(netnsDir)
	if err != nil {
		return fmt.Errorf("open %s: %w", netnsDir, err)
	}
	defer dir.Close() // unlocks
	// iproute2 takes the same lock.
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", netnsDir, err)
	}
	share := func() error { return unix.Mount("", netnsDir, "none", unix.MS_SHARED|unix.MS_REC, "") }
	if err = share(); errors.Is(err, unix.EINVAL) { // not a mount yet
		if err = unix.Mount(netnsDir, netnsDir, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = share()
		}
	}
	if err != nil {
		return fmt.Errorf("share %s: %w", netnsDir, err)
	}
	return nil
}

// errHidden says that a namespace's mount lies below another mount on netnsDir
// and cannot be reached; its file cannot be removed while it does.
var errHidden = errors.New("hidden below another mount of " + netnsDir)

// deleteNamespace undoes newNamed.
func deleteNamespace(name string) error {
	path := filepath.Join(netnsDir, name)
	var err error
	for err == nil { // once for each mount stacked there, which is one as a rule
		err = unix.Unmount(path, unix.MNT_DETACH)
	}
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount namespace %s: %w", name, err)
	}
	err = os.Remove(path)
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("remove namespace %s: %w", name, errHidden)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("remove namespace %s: %w", name, err)
	}
	return nil
}
