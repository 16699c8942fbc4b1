package topology

import (
	"os"
	"sync"

	"github.com/vishvananda/netns"

	"github.com/tcpilot/tcpilot/internal/thread"
)

// parent runs start, which starts a process, in the namespace, on the thread that
// starts all of them. To the kernel a process is the child of a thread: Pdeathsig
// comes when that one ends.
func (h *Host) parent(start func() error) error {
	done := make(chan error)
	startThread() <- func() {
		err := h.enter()
		if err == nil {
			err = start()
		}
		done <- err
	}
	return <-done
}

// startThread is the way to that thread, which lives as long as this process.
var startThread = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go thread.Apart(func() error {
		for f := range work {
			f()
			goHome()
		}
		return nil
	})
	return work
})

// goHome moves the calling thread to the process's own namespace, which is the
// main thread's: a namespace lives as long as a thread is in it. One that cannot
// go stays until the next start leads it out.
func goHome() {
	if home, err := netns.GetFromPid(os.Getpid()); err == nil {
		netns.Set(home)
		home.Close()
	}
}
