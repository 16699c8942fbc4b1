package guard

import (
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// After the clock was set back, connections that follow each other still count as apart.
func TestUnmarkedAfterTheClockWasSetBack(t *testing.T) {
	now, u := int64(1_700_000_000e9), unmarked{}
	for i := range unmarkedMost {
		if now += int64(2 * time.Second); i == 1 {
			now -= int64(8 * time.Hour)
		}
		u.add(&tcp.Sample{At: now, Duration: time.Second})
	}
	if !u.tooMany() {
		t.Errorf("%d of %d count as apart", u.apart, u.n)
	}
}
