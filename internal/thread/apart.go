package thread

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// IsMain reports whether the calling goroutine, which must be locked to its thread, has
// the main one.
func IsMain() bool { return unix.Gettid() == os.Getpid() }

// Apart runs f on a thread that ends with it, so that f may leave the thread in
// another namespace. It returns what f returns; the thread may be there a moment
// longer.
//
// It is never the main thread: that one cannot end, the runtime parks it for good
// (mexit), and what it is in is what /proc/PID says of the whole process.
func Apart(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if IsMain() {
			// Held here, it cannot be the next goroutine's.
			defer runtime.UnlockOSThread()
			done <- Apart(f)
			return
		}
		done <- f()
	}()
	return <-done
}
