package calibrate

import (
	"runtime"
	"sync"
)

var reserving sync.Mutex

// reserve lets n more threads run Go code at a time, until it is undone. A thread
// that sleeps in the kernel for a millisecond again and again counts as one that
// runs: Go's scheduler takes its place away only from a call that it sees twice,
// and it looks every 10 ms when little happens. Without a place of its own such a
// thread takes one from those that emulate links in this process.
func reserve(n int) (undo func()) {
	add := func(n int) {
		reserving.Lock()
		defer reserving.Unlock()
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
	}
	add(n)
	return func() { add(-n) }
}
