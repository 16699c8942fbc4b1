package subject

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tcpilot/tcpilot/internal/kernelcc"
	"github.com/tcpilot/tcpilot/internal/sysctl"
	"github.com/tcpilot/tcpilot/internal/undo"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// sysctlRoot shows the sysctls of the network namespace of the calling thread.
const sysctlRoot = sysctl.Root + "/net"

// sysctls are values of a namespace's sysctls, by file. The default congestion control is
// not among them: setCongestion restores it, because the kernel may refuse a plain write
// (see topology.Host.SetCongestion).
type sysctls map[string]string

// readSysctls reads all sysctls that can be written, because a tuner may change any of
// them.
func readSysctls(h *topology.Host) (sysctls, error) {
	all := sysctls{}
	err := h.Do(func() error {
		return filepath.WalkDir(sysctlRoot, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || path == sysctl.Path(kernelcc.DefaultKey) {
				return err
			}
			info, err := e.Info()
			if err != nil || info.Mode()&0o600 != 0o600 {
				return nil // its device was removed meanwhile, or it cannot be written
			}
			if value, err := os.ReadFile(path); err == nil { // some have no value yet
				all[path] = string(value)
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read sysctls of %s: %w", h.Name, err)
	}
	return all, nil
}

// restore writes back those that have changed.
func (before sysctls) restore(h *topology.Host) error {
	now, err := readSysctls(h)
	if err != nil {
		return err
	}
	var errs []error
	err = h.Do(func() error {
		for path, value := range before {
			if got, ok := now[path]; !ok || got == value {
				continue
			}
			if err := os.WriteFile(path, []byte(value), 0); err != nil {
				errs = append(errs, fmt.Errorf("restore sysctl of %s: %w", h.Name, err))
			}
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

// keepSysctls lets u restore the sysctls of all sites, because not every tuner restores
// what it changed.
func (all sites) keepSysctls(u *undo.Stack) error {
	for _, s := range all {
		before, err := readSysctls(s.host)
		if err != nil {
			return err
		}
		u.Push("", func() error { return before.restore(s.host) })
	}
	return nil
}
