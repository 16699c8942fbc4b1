package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Lock makes this process the only one to hold the lock file at path. release
// removes it; the kernel releases it when the process dies.
func Lock(path string) (release func() error, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if err := flock(file); err != nil {
			return nil, errors.Join(err, file.Close())
		}
		// The former holder may have removed the file between open and flock: then
		// this is a lock on a file that nobody else will find.
		if !sameFile(file, path) {
			file.Close()
			continue
		}
		if err := writePID(file); err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
		}
		return func() error {
			// Removed while still locked, so that it is nobody else's.
			return errors.Join(os.Remove(path), file.Close())
		}, nil
	}
}

func flock(file *os.File) error {
	err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		holder := make([]byte, 32)
		n, _ := file.ReadAt(holder, 0)
		pid := strings.TrimSpace(string(holder[:n]))
		if pid == "" {
			pid = "unknown"
		}
		return fmt.Errorf("lock %s: held by process %s: %w", file.Name(), pid, err)
	case err != nil:
		return fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return nil
}

func sameFile(file *os.File, path string) bool {
	a, errA := file.Stat()
	b, errB := os.Stat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

func writePID(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}
