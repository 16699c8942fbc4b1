package estimate

import "time"

// A value that was too short is not used for barredFirst, and for twice as long each time
// that it is again, up to barredLongest. Afterwards, that is forgotten as slowly.
const (
	barredFirst   = 10 * time.Minute
	barredLongest = 24 * time.Hour
)

// barring excludes a value of a list, from long to short, and those after it for a time. The zero barring
// excludes none.
type barring struct {
	Barred uint8         `json:"barred,omitempty"`    // this value and shorter ones are not used; an index ...
	Until  int64         `json:"until_ns,omitempty"`  // ... until then, Unix nanoseconds
	For    time.Duration `json:"barred_ns,omitempty"` // the length of that time
}

// bar excludes the value of index i and those after it, from the time `at` on.
func (b *barring) bar(i int, at int64) {
	if at-b.Until > int64(b.For) {
		b.For = 0 // it has been used for as long as it was barred
	}
	b.For = min(max(2*b.For, barredFirst), barredLongest)
	b.Barred, b.Until = uint8(i), at+int64(b.For)
}

// IsBarred reports whether the value of index i is not to be used at a time.
func (b *barring) IsBarred(i int, now int64) bool {
	return b.Barred != 0 && i >= int(b.Barred) && now < b.Until && b.Until-now <= int64(barredLongest)
}
