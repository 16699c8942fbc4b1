package thread

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func TestApartEndsItsThread(t *testing.T) {
	var thread int
	if err := Apart(func() error { thread = unix.Gettid(); return os.ErrClosed }); err != os.ErrClosed {
		t.Errorf("Apart returned %v, its function %v", err, os.ErrClosed)
	}
	for range 1000 {
		if unix.Tgkill(os.Getpid(), thread, 0) == unix.ESRCH {
			return
		}
		runtime.Gosched()
		unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
	t.Errorf("thread %d is still there", thread)
}

func TestApartIsNeverTheMainThread(t *testing.T) {
	for range 100 {
		idleMain()
		err := Apart(func() error {
			if unix.Gettid() == os.Getpid() {
				t.Error("it is the main thread")
			}
			return nil
		})
		if err != nil || t.Failed() {
			t.Fatal(err)
		}
	}
}

// idleMain makes the main thread, unless it is busy, the last one that became idle: the runtime
// uses that one next.
func idleMain() {
	held := make(chan struct{})
	defer close(held)
	for range 100 {
		found := make(chan bool)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			main := unix.Gettid() == os.Getpid()
			found <- main
			if !main {
				<-held
			}
		}()
		if <-found {
			return
		}
	}
}
