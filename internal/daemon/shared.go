package daemon

import (
	"sync"
	"sync/atomic"
)

// sharedWork does work for several callers at once. Each gets the result of work that began after its call, so that it has
// seen what the caller did before.
type sharedWork[T any] struct {
	asked  atomic.Uint64 // calls
	served uint64        // of them, those that the result is for; needs the lock
	result T
	err    error
}

// do returns the result of work, which runs under the lock.
func (w *sharedWork[T]) do(lock sync.Locker, work func() (T, error)) (T, error) {
	call := w.asked.Add(1)
	lock.Lock()
	defer lock.Unlock()
	if call > w.served {
		w.served = w.asked.Load()
		w.result, w.err = work()
	}
	return w.result, w.err
}
