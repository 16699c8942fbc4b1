package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "lock")
	release, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Lock(path)
	if want := fmt.Sprintf("held by process %d", os.Getpid()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("second lock: %v, want %q", err, want)
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("second lock: %v, want EWOULDBLOCK", err)
	}
	if err := release(); err != nil {
		t.Errorf("release: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", path, err)
	}
}

// A killed holder leaves its file, with its pid, unlocked.
func TestLockTakesOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if err := os.WriteFile(path, []byte("1234567890\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	release, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	got, err := os.ReadFile(path)
	if want := fmt.Sprintln(os.Getpid()); err != nil || string(got) != want {
		t.Errorf("the file holds %q, %v; want %q", got, err, want)
	}
}

func TestLockOneAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held := make(chan struct{}, 1)
	done := make(chan error)
	for range 8 {
		go func() {
			for range 200 {
				release, err := Lock(path)
				if err != nil {
					continue
				}
				select {
				case held <- struct{}{}:
				default:
					done <- errors.New("two hold the lock")
					return
				}
				<-held
				if err := release(); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestLockErrors(t *testing.T) {
	if _, err := Lock(t.TempDir()); err == nil {
		t.Error("locked a directory")
	}
	if _, err := Lock("/proc/none/lock"); err == nil {
		t.Error("locked where no file can be")
	}
}
