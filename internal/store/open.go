package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/filelock"
	"github.com/tcpilot/tcpilot/internal/sysctl"
)

// bootID reads the id of the current boot.
var bootID = func() (string, error) { return sysctl.Read("kernel.random.boot_id") }

// Open opens the belief file at path, or creates an empty one. A file that is damaged,
// foreign or of another schema is moved aside, which moved reports; the store then starts
// empty. Records of a single network namespace are dropped after a reboot, because its cookie is
// used for another one. Until Close, a lock file beside it excludes other processes.
func Open(path string) (s *Store, moved string, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, "", fmt.Errorf("open beliefs: %w", err)
	}
	unlock, err := filelock.Lock(path + ".lock")
	if err != nil {
		return nil, "", fmt.Errorf("open beliefs: %w", err)
	}
	s = &Store{path: path, limit: maxRecords, unlock: unlock}
	err = s.open()
	if d := (*damage)(nil); errors.As(err, &d) {
		aside, moveErr := moveAside(path)
		if moveErr != nil {
			err = fmt.Errorf("%s, and it cannot be moved aside: %w", d.why, moveErr)
		} else {
			moved = fmt.Sprintf("%s cannot be used: %s; moved to %s", path, d.why, aside)
			err = s.open()
		}
	}
	if err != nil {
		return nil, moved, errors.Join(fmt.Errorf("open beliefs: %s: %w", path, err), unlock())
	}
	return s, moved, nil
}

// moveAside renames a file to an unused name.
func moveAside(path string) (aside string, err error) {
	base := path + ".corrupt-" + time.Now().UTC().Format("20060102T150405Z")
	for i := 1; ; i++ {
		aside = base
		if i > 1 {
			aside = fmt.Sprintf("%s-%d", base, i)
		}
		if _, err := os.Lstat(aside); errors.Is(err, os.ErrNotExist) {
			return aside, os.Rename(path, aside)
		}
	}
}

// open checks the whole file, with every record.
func (s *Store) open() (err error) {
	if s.boot, err = bootID(); err != nil {
		return err
	}
	file, err := openRegular(s.path)
	if err != nil {
		return err
	}
	shared, scoped := 0, 0
	a, err := scan(file, func(e entry) error {
		if _, err := parseKey(e.key); err != nil {
			return &damage{"it is damaged: " + err.Error()}
		}
		if isScoped(e.key) {
			scoped++
		} else {
			shared++
		}
		return nil
	})
	if err != nil {
		return errors.Join(err, file.Close())
	}
	s.file, s.count = file, shared
	if s.rebooted = a.Boot != s.boot; !s.rebooted {
		s.count += scoped
	}
	return nil
}

// openRegular opens a file for writing, although Save writes another file, so that a missing
// permission is reported now and not at the first Save.
func openRegular(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
