package thread

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// IsMain reports whether the calling goroutine, which must be locked to its thread, runs on the
// main thread.
func IsMain() bool { return unix.Gettid() == os.Getpid() }

// Apart runs f on a thread that is terminated afterwards, so that f may leave the thread in
// another namespace. It returns the result of f; the thread may end shortly after that.
//
// Apart never uses the main thread: the runtime does not terminate it but parks it for ever
// (mexit), and its namespaces are those that /proc/PID shows for the whole process.
func Apart(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if IsMain() {
			// As long as the main thread is locked here, the next goroutine cannot get it.
			defer runtime.UnlockOSThread()
			done <- Apart(f)
			return
		}
		done <- f()
	}()
	return <-done
}
