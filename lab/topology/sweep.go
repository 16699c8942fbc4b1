package topology

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/tcpilot/tcpilot/internal/cgroup"
	"github.com/tcpilot/tcpilot/internal/netns"
)

// Sweep removes what killed runs left: namespaces with the processes, devices,
// qdiscs, rules and programs in them; directories with their mounts and pins; cgroups
// with their processes; and the lock. It leaves runs alone whose process is alive, and
// returns the names of what it removed.
func Sweep() (removed []string, err error) {
	root, err := cgroup.Root()
	if err != nil {
		return nil, err
	}
	errs := []error{sweepAllowed()}
	for _, kind := range []struct {
		dir    string
		remove func(path string) error
	}{{netns.Dir, killNamespace}, {runRoot, removeDir}, {root, killCgroup}} {
		for _, name := range leftovers(kind.dir) {
			err := kind.remove(filepath.Join(kind.dir, name))
			switch {
			case errors.Is(err, errHidden):
			case err != nil:
				errs = append(errs, err)
			default:
				removed = append(removed, name)
			}
		}
	}
	switch was, err := sweepLock(runLock); {
	case err != nil:
		errs = append(errs, err)
	case was:
		removed = append(removed, filepath.Base(runLock))
	}
	return removed, errors.Join(errs...)
}

// leftovers lists the entries of a directory that belong to a dead run.
func leftovers(dir string) (names []string) {
	entries, _ := os.ReadDir(dir) // none if the directory does not exist
	for _, e := range entries {
		if id, ok := parseName(e.Name()); ok && !id.alive() {
			names = append(names, e.Name())
		}
	}
	return names
}
