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

// LockDir makes this process the only one to hold the directory at path, on
// whatever file system, and makes it if need be. The error names the holder where
// it can be seen from here. release removes the directory if it is empty; the
// kernel releases it when the process dies. What is in it is not touched.
func LockDir(path string) (release func() error, err error) {
	for {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		dir, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("held by %s: %w", dirHolder(dir), err)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), dir.Close())
		}
		// As in Lock: the former holder may have removed it.
		if !sameFile(dir, path) {
			dir.Close()
			continue
		}
		return func() error {
			return errors.Join(ignoreNotEmpty(unix.Rmdir(path)), dir.Close())
		}, nil
	}
}

// dirHolder says who holds the lock of an open file, by /proc/locks: a process of
// another PID namespace is not shown there.
func dirHolder(file *os.File) string {
	var st unix.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if err != nil || unix.Fstat(int(file.Fd()), &st) != nil {
		return "another process"
	}
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(locks)) {
		// 1: FLOCK  ADVISORY  WRITE 1234 00:1d:5 0 EOF
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != want {
			continue
		}
		name, _ := os.ReadFile("/proc/" + f[4] + "/comm")
		return strings.TrimSpace("process " + f[4] + " " + parenthesized(name))
	}
	return "another process"
}

func parenthesized(name []byte) string {
	if len(name) == 0 {
		return ""
	}
	return "(" + strings.TrimSpace(string(name)) + ")"
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
