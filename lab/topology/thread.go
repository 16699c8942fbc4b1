package topology

import (
	"sync"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/thread"
)

// onStartThread runs start, which starts a process, in the namespace. It runs on the one
// thread that starts all processes. The kernel sends Pdeathsig when the thread that started
// the process ends, so that thread must live as long as this process.
func (h *Host) onStartThread(start func() error) error {
	done := make(chan error)
	startThread() <- func() {
		leave, err := netns.Enter(int(h.ns))
		if err == nil {
			err = start()
			_ = leave() // if it cannot leave, the thread enters the next namespace from this one
		}
		done <- err
	}
	return <-done
}

// startThread returns the channel to that thread, which lives as long as this process.
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
