package cni

import (
	"context"
	"sync"
	"time"
)

// bound is the context of a command: it ends when the command has taken too long. The time that other
// plugins take does not count.
type bound struct {
	context.Context
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	timer *time.Timer
	end   time.Time
}

func newBound(end time.Time) *bound {
	b := &bound{end: end}
	b.Context, b.cancel = context.WithCancelCause(context.Background())
	b.timer = time.AfterFunc(time.Until(end), func() { b.cancel(context.DeadlineExceeded) })
	return b
}

// Deadline implements context.Context.
func (b *bound) Deadline() (time.Time, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.end, true
}

// outside calls f, whose time does not count.
func (b *bound) outside(f func()) {
	b.timer.Stop()
	start := time.Now()
	f()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end = b.end.Add(time.Since(start))
	b.timer.Reset(time.Until(b.end))
}

// close releases the timer.
func (b *bound) close() {
	b.timer.Stop()
	b.cancel(context.Canceled)
}
