package daemon

import (
	"sync"
	"sync/atomic"
	"testing"
)

// Callers that wait together share the work, and what each did before its call is part of the result.
func TestSharedWork(t *testing.T) {
	var lock sync.Mutex
	var w sharedWork[int64]
	var written atomic.Int64
	works := 0
	work := func() (int64, error) { works++; return written.Load(), nil }

	lock.Lock()
	var all sync.WaitGroup
	const callers = 50
	for range callers {
		mine := written.Add(1)
		all.Go(func() {
			if got, err := w.do(&lock, work); err != nil || got < mine {
				t.Errorf("a call after %d writes got %d, %v", mine, got, err)
			}
		})
	}
	for w.asked.Load() < callers { // until all wait for the lock
	}
	lock.Unlock()
	all.Wait()
	if works != 1 {
		t.Errorf("%d callers that waited together had the work done %d times", callers, works)
	}
	written.Add(1)
	if got, _ := w.do(&lock, work); got != callers+1 || works != 2 {
		t.Errorf("a later call got %d, the work was done %d times", got, works)
	}
}
