package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/filelock"
	"github.com/tcpilot/tcpilot/internal/netns"
)

// prepareNetnsDir makes netns.Dir a shared mount of its own, as the first
// `ip netns add` of a machine does. If that came later than our namespaces, it
// would hide their mounts under its own, and they could not be removed any more.
func prepareNetnsDir() error {
	if err := os.MkdirAll(netns.Dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", netns.Dir, err)
	}
	dir, err := os.Open(netns.Dir)
	if err != nil {
		return fmt.Errorf("open %s: %w", netns.Dir, err)
	}
	defer dir.Close() // unlocks
	// iproute2 takes the same lock.
	if err := filelock.Wait(dir); err != nil {
		return err
	}
	share := func() error { return unix.Mount("", netns.Dir, "none", unix.MS_SHARED|unix.MS_REC, "") }
	if err = share(); errors.Is(err, unix.EINVAL) { // not a mount yet
		if err = unix.Mount(netns.Dir, netns.Dir, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = share()
		}
	}
	if err != nil {
		return fmt.Errorf("share %s: %w", netns.Dir, err)
	}
	return nil
}

// errHidden says that a namespace's mount lies below another mount on netns.Dir
// and cannot be reached; its file cannot be removed while it does.
var errHidden = errors.New("hidden below another mount of " + netns.Dir)

// deleteNamespace undoes newNamed.
func deleteNamespace(name string) error {
	path := filepath.Join(netns.Dir, name)
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

// killNamespace undoes newNamed and ends the processes in the namespace, those
// too that others in there started. Whoever is in there belongs to the run:
// nothing else gets in by chance.
func killNamespace(path string) error {
	if err := killIn(path); err != nil {
		return err
	}
	return deleteNamespace(filepath.Base(path))
}

// killIn kills the processes of a namespace, until there are none: one may start
// another while the list is read.
func killIn(path string) error {
	var ns unix.Stat_t
	if err := unix.Stat(path, &ns); err != nil {
		return fmt.Errorf("look at namespace: %w", err)
	}
	for range 100 {
		n, err := killOnce(&ns)
		if n == 0 || err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond) // to end
	}
	return fmt.Errorf("kill processes of %s: there are always new ones", filepath.Base(path))
}

// killOnce kills the processes that are in a namespace now, and counts them.
func killOnce(ns *unix.Stat_t) (n int, err error) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() || !inNamespace(pid, ns) {
			continue
		}
		n++
		if err := kill(pid, ns); err != nil {
			return n, err
		}
	}
	return n, nil
}

// kill ends a process through a pidfd, and looks again once it has it: the pid
// may have been given to another process meanwhile.
func kill(pid int, ns *unix.Stat_t) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil // gone
	}
	defer unix.Close(fd)
	if !inNamespace(pid, ns) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return nil
}

func inNamespace(pid int, ns *unix.Stat_t) bool {
	var own unix.Stat_t
	err := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &own)
	return err == nil && own.Dev == ns.Dev && own.Ino == ns.Ino
}
