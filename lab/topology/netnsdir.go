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
// `ip netns add` of a machine does. If `ip netns add` did it after our namespaces were
// made, its mount would hide theirs, and they could not be removed any more.
func prepareNetnsDir() error {
	if err := os.MkdirAll(netns.Dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", netns.Dir, err)
	}
	dir, err := os.Open(netns.Dir)
	if err != nil {
		return fmt.Errorf("open %s: %w", netns.Dir, err)
	}
	defer dir.Close() // also unlocks
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

// errHidden reports that a namespace's mount is hidden below another mount on
// netns.Dir; as long as it is, its file cannot be removed.
var errHidden = errors.New("hidden below another mount of " + netns.Dir)

// deleteNamespace undoes newNamed.
func deleteNamespace(name string) error {
	path := filepath.Join(netns.Dir, name)
	var err error
	for err == nil { // once for each mount stacked there, usually one
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

// killNamespace undoes newNamed and kills all processes in the namespace, also those
// that other processes in it started. All of them belong to the run: no process enters
// a namespace by accident.
func killNamespace(path string) error {
	if err := killIn(path); err != nil {
		return err
	}
	return deleteNamespace(filepath.Base(path))
}

// killIn kills the processes of a namespace until there are none: a process may start
// another while the list is read.
func killIn(path string) error {
	var ns unix.Stat_t
	if err := unix.Stat(path, &ns); err != nil {
		return fmt.Errorf("stat namespace: %w", err)
	}
	for range 100 {
		n, err := killOnce(&ns)
		if n == 0 || err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond) // killed processes need time to exit
	}
	return fmt.Errorf("kill processes of %s: new ones keep starting", filepath.Base(path))
}

// killOnce kills the processes that are in a namespace now, and returns their number.
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

// kill kills a process through a pidfd. It checks the namespace again after opening
// the pidfd, because the pid may have been reused meanwhile.
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
