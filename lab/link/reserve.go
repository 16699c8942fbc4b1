package link

import (
	"runtime"
	"sync"
)

// reserving guards changes of GOMAXPROCS.
var reserving sync.Mutex

// Reserve raises GOMAXPROCS by n until undo is called. It is for threads that sleep in the
// kernel for about a millisecond again and again, such as those that emulate links. Go's
// scheduler counts such a thread as running: it takes its P away only when it sees the same
// system call twice, and it looks every 10 ms when little happens. The thread must also
// continue at once when its sleep ends, however busy others are: without a P of its own,
// one packet in 100 was over a millisecond late beside two busy goroutines.
func Reserve(n int) (undo func()) {
	add := func(n int) {
		reserving.Lock()
		defer reserving.Unlock()
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
	}
	add(n)
	return func() { add(-n) }
}
