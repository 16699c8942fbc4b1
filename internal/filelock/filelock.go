package filelock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// HeldError means that another process holds the lock.
type HeldError struct {
	Path   string
	Holder string // "process 1234", or "another process" if that is not known
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("lock %s: held by %s: %v", e.Path, e.Holder, unix.EWOULDBLOCK)
}

func (e *HeldError) Unwrap() error { return unix.EWOULDBLOCK }

// Lock acquires an exclusive lock on the lock file at path. release removes the file. If
// another process holds the lock, the error is a HeldError.
func Lock(path string) (release func() error, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if err := try(file); err != nil {
			return nil, errors.Join(err, file.Close())
		}
		// The previous holder may have removed the file between open and flock: then
		// this lock is on a file that no other process can open.
		if !sameFile(file, path) {
			file.Close()
			continue
		}
		_ = writePID(file) // only messages need it: a full disk must not prevent the lock
		return func() error {
			// Remove the file while it is locked, so that no other process has it.
			return errors.Join(os.Remove(path), file.Close())
		}, nil
	}
}

// LockDir acquires an exclusive lock on the directory at path, on any file system, and creates
// the directory if needed. release removes the directory if it is empty; its contents are not
// touched. If another process holds the lock, the error is a HeldError.
func LockDir(path string) (release func() error, err error) {
	for {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		dir, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if err := try(dir); err != nil {
			return nil, errors.Join(err, dir.Close())
		}
		// As in Lock: the previous holder may have removed it.
		if !sameFile(dir, path) {
			dir.Close()
			continue
		}
		return func() error {
			err := unix.Rmdir(path)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) {
				err = nil
			}
			return errors.Join(err, dir.Close())
		}, nil
	}
}

// try locks an open file until it is closed. If another process holds the lock, the
// error is a HeldError.
func try(file *os.File) error {
	err := flock(file, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return &HeldError{file.Name(), holder(file)}
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return nil
}

// Wait locks an open file until it is closed; it waits as long as another process holds
// the lock.
func Wait(file *os.File) error {
	if err := flock(file, unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return nil
}

// WaitAtMost is Wait for a limited time. If another process still holds the lock then, the error is
// a HeldError.
func WaitAtMost(file *os.File, limit time.Duration) error {
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		err := try(file)
		if held := (*HeldError)(nil); !errors.As(err, &held) || time.Now().After(end) {
			return err
		}
	}
}

func flock(file *os.File, how int) error {
	for {
		err := unix.Flock(int(file.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// holder names the process that holds the lock of an open file, by /proc/locks. A process of
// another PID namespace is not listed there, but its PID is in the lock file.
func holder(file *os.File) string {
	if pid := holderByLocks(file); pid != "" {
		name, _ := os.ReadFile("/proc/" + pid + "/comm")
		if len(name) > 0 {
			return fmt.Sprintf("process %s (%s)", pid, strings.TrimSpace(string(name)))
		}
		return "process " + pid
	}
	text := make([]byte, 32)
	n, _ := file.ReadAt(text, 0)
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text[:n]))); err == nil {
		return fmt.Sprintf("process %d", pid)
	}
	return "another process"
}

func holderByLocks(file *os.File) (pid string) {
	var st unix.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if err != nil || unix.Fstat(int(file.Fd()), &st) != nil {
		return ""
	}
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(locks)) {
		// 1: FLOCK  ADVISORY  WRITE 1234 00:1d:5 0 EOF
		f := strings.Fields(line)
		if len(f) >= 6 && f[1] == "FLOCK" && f[5] == want {
			return f[4]
		}
	}
	return ""
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
