package datapath

import (
	"testing"
	"time"
)

// BenchmarkRootAged reads all slots once.
func BenchmarkRootAged(b *testing.B) {
	r := newRig(b)
	for b.Loop() {
		if _, err := r.HasAged(time.Minute, time.Hour); err != nil {
			b.Fatal(err)
		}
	}
}
