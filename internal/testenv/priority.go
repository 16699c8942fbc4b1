package testenv

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// PreferOverOthers gives tests that run as root a priority above that of other work on the machine, because many
// of them check times, which a delay of the scheduler would change. Processes that they start inherit the
// priority. It executes the program again, because a process with several threads cannot change the priority of
// all of them at once.
func PreferOverOthers() {
	const nice = -10
	// The system call returns 20 - nice (getpriority(2)).
	now, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if os.Geteuid() != 0 || err == nil && 20-now <= nice {
		return
	}
	runtime.LockOSThread() // the priority is a thread's, and the new program has this thread's
	if err == nil {
		err = unix.Setpriority(unix.PRIO_PROCESS, 0, nice)
	}
	var program string // by its path, because /proc/self/exe would name the process "exe"
	if err == nil {
		program, err = os.Executable()
	}
	if err == nil {
		err = unix.Exec(program, os.Args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, "the tests run with the priority of other work:", err)
	runtime.UnlockOSThread()
}
