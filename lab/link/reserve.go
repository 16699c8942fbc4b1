package link

import (
	"runtime"
	"sync"
)

// reserving guards the runtime's number of processors.
var reserving sync.Mutex

// Reserve lets n more threads run Go code at a time, until it is undone. It is
// for threads that sleep in the kernel for a millisecond again and again, as those
// that emulate links do. Go's scheduler counts such a thread as one that runs: it
// takes its place away only from a call that it sees twice, and it looks every
// 10 ms when little happens. And the thread must go on at once when its sleep ends,
// however busy the others are: without a place of its own one packet in 100 was
// over a millisecond late beside two busy goroutines.
func Reserve(n int) (undo func()) {
	add := func(n int) {
		reserving.Lock()
		defer reserving.Unlock()
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
	}
	add(n)
	return func() { add(-n) }
}
