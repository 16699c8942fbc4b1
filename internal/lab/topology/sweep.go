package topology

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Sweep removes what killed runs left: namespaces with the processes in them,
// directories with what is mounted there, and cgroups. Runs whose process lives are left alone. It returns the names of
// what it removed.
func Sweep() (removed []string, err error) {
	var errs []error
	for _, name := range leftovers(netnsDir) {
		path := filepath.Join(netnsDir, name)
		if err := killIn(path); err != nil {
			errs = append(errs, err)
		}
		err := deleteNamespace(name)
		if errors.Is(err, errHidden) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, name)
	}
	for _, name := range leftovers(runRoot) {
		if err := removeDir(filepath.Join(runRoot, name)); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, name)
	}
	root, err := cgroupRoot()
	if err != nil {
		return removed, errors.Join(append(errs, err)...)
	}
	for _, name := range leftovers(root) {
		if err := removeCgroup(filepath.Join(root, name)); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, name)
	}
	return removed, errors.Join(errs...)
}

// leftovers lists the entries of a directory that belong to a dead run.
func leftovers(dir string) (names []string) {
	entries, _ := os.ReadDir(dir) // a directory that is not there has none
	for _, e := range entries {
		if id, ok := parseName(e.Name()); ok && !id.alive() {
			names = append(names, e.Name())
		}
	}
	return names
}

// killIn kills the processes of a leftover namespace. Whoever is in there was
// started by the run that made it: nothing else gets in by chance.
func killIn(path string) error {
	var ns unix.Stat_t
	if err := unix.Stat(path, &ns); err != nil {
		return fmt.Errorf("look at namespace: %w", err)
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if !inNamespace(pid, &ns) {
			continue
		}
		if err := kill(pid, &ns); err != nil {
			return err
		}
	}
	return nil
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
