package estimate

import "time"

// Window is the extreme of a quantity over the latest time: over all of the length that it
// is updated with, or over half of it at least. Time counts only as values arrive, so the
// last ones are kept while a path is idle; Path.Updated says how old they are.
// The zero Window knows nothing.
type Window struct {
	Half   uint64 `json:"half"`             // extreme of the half that began at Began; 0 is unknown
	Before uint64 `json:"before,omitempty"` // extreme of the half before it; 0 is unknown
	Began  int64  `json:"began_ns"`         // Unix nanoseconds
}

// Max adds a value to the maximum of a window; 0 is ignored. at, in Unix nanoseconds, must
// not be less than at the call before.
func (w *Window) Max(at int64, v uint64, length time.Duration) {
	if v == 0 {
		return
	}
	w.advance(at, length/2)
	w.Half = max(w.Half, v)
}

// Min adds a value to the minimum of a window, as Max does to a maximum.
func (w *Window) Min(at int64, v uint64, length time.Duration) {
	if v == 0 {
		return
	}
	w.advance(at, length/2)
	w.Half = least(w.Half, v)
}

// advance begins a new half if at is beyond the present one.
func (w *Window) advance(at int64, half time.Duration) {
	elapsed := at - w.Began
	switch {
	case w.Began == 0 || elapsed >= 2*int64(half):
		*w = Window{Began: at}
	case elapsed >= int64(half):
		*w = Window{Before: w.Half, Began: w.Began + int64(half)}
	}
}

// Greatest returns the maximum of a window that Max updates; 0 is unknown.
func (w *Window) Greatest() uint64 { return max(w.Half, w.Before) }

// Least returns the minimum of a window that Min updates; 0 is unknown.
func (w *Window) Least() uint64 { return least(w.Half, w.Before) }

// least is the lesser of two values of which 0 is unknown.
func least(a, b uint64) uint64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
