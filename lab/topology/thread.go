package topology

import (
	"sync"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/thread"
)

// parent runs start, which starts a process, in the namespace, on the thread that
// starts all of them. To the kernel a process is the child of a thread: Pdeathsig
// comes when that one ends.
func (h *Host) parent(start func() error) error {
	done := make(chan error)
	startThread() <- func() {
		leave, err := netns.Enter(int(h.ns))
		if err == nil {
			err = start()
			_ = leave() // a thread that cannot leave goes on from there
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
		}
		return nil
	})
	return work
})
