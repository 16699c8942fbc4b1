package filelock

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
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

// When a holder is killed, its file remains, unlocked and with its PID.
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

// asHolder is the environment variable with a directory that the test binary locks until it is
// killed.
const asHolder = "TCPILOT_TEST_LOCKDIR"

func TestLockDir(t *testing.T) {
	if dir := os.Getenv(asHolder); dir != "" {
		if _, err := LockDir(dir); err != nil {
			t.Fatal(err)
		}
		fmt.Println("held")
		time.Sleep(time.Hour) // not for ever: without cgo, Go detects that as a deadlock and ends the program
	}
	dir := filepath.Join(t.TempDir(), "pins")
	holder := exec.Command(os.Args[0], "-test.run", "^TestLockDir$")
	holder.Env = append(os.Environ(), asHolder+"="+dir)
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("held"))); err != nil {
		t.Fatal(err)
	}
	_, err = LockDir(dir)
	if !errors.Is(err, unix.EWOULDBLOCK) || !strings.Contains(err.Error(), fmt.Sprintf("process %d (filelock.test)", holder.Process.Pid)) {
		t.Errorf("second lock: %v, want EWOULDBLOCK and process %d", err, holder.Process.Pid)
	}
	_ = holder.Process.Kill()
	_ = holder.Wait()
	release, err := LockDir(dir) // the kernel has released it
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "pin"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := release(); err != nil {
		t.Errorf("release: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "pin")); err != nil {
		t.Errorf("what is in the directory is gone: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "pin")); err != nil {
		t.Fatal(err)
	}
	if release, err = LockDir(dir); err != nil {
		t.Fatal(err)
	}
	if err := release(); err != nil {
		t.Errorf("release: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the empty directory is left: %v", err)
	}
}

// A full disk does not prevent a lock: of the file, only messages need the contents.
func TestRootLockOnAFullDisk(t *testing.T) {
	testenv.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(dir, "full"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "lock")
	release, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(path); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("second lock: %v", err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}
