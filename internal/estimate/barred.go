package estimate

import "time"

// A value that proved too short is excluded for barredFirst, and each further time for twice as
// long, up to barredLongest. If it was allowed for as long as it had been excluded, the next time
// is barredFirst again.
const (
	barredFirst   = 10 * time.Minute
	barredLongest = 24 * time.Hour
)

// barring excludes a value of a list, from long to short, and those after it for a time. The zero barring
// excludes none.
type barring struct {
	Barred uint8         `json:"barred,omitempty"`    // this value and shorter ones are not used; an index ...
	Until  int64         `json:"until_ns,omitempty"`  // ... until then, Unix nanoseconds
	For    time.Duration `json:"barred_ns,omitempty"` // for how long the latest exclusion lasts
}

// bar excludes the value of index i and those after it, from the time `at` on.
func (b *barring) bar(i int, at int64) {
	if at-b.Until > int64(b.For) {
		b.For = 0 // it was allowed for longer than it had been barred
	}
	b.For = min(max(2*b.For, barredFirst), barredLongest)
	b.Barred, b.Until = uint8(i), at+int64(b.For)
}

// IsBarred reports whether the value of index i is not to be used at a time.
func (b *barring) IsBarred(i int, now int64) bool {
	return b.Barred != 0 && i >= int(b.Barred) && now < b.Until && b.Until-now <= int64(barredLongest)
}
