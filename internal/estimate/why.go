package estimate

import (
	"fmt"
	"time"
)

// Why receives why a value is left to the kernel. The functions that decide write the reason beside
// each decision, so that the two cannot differ. A nil Why is for callers that need only the value:
// then no text is written, and nothing is allocated.
type Why struct{ text string }

// Is sets the reason. A later reason replaces an earlier one.
func (w *Why) Is(text func() string) {
	if w != nil {
		w.text = text()
	}
}

// String is the reason; empty if there is none.
func (w *Why) String() string { return w.text }

// until writes how long it is until a time; both are in Unix nanoseconds.
func until(at, now int64) time.Duration { return time.Duration(at - now).Round(time.Second) }

// millis is a number of milliseconds.
func millis(ms uint16) time.Duration { return time.Duration(ms) * time.Millisecond }

// whyBarred says which value is excluded, in milliseconds, for how long and for what.
func (b *barring) whyBarred(ms uint16, now int64, what string) string {
	return fmt.Sprintf("%s and less are not used for another %s, because of %s", millis(ms), until(b.Until, now), what)
}
