package guard

import (
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// The number of slices fades only with time, even if a large hold-out makes everything else
// fade much sooner.
func TestSlicesOfBusyPathsFade(t *testing.T) {
	const second = int64(time.Second)
	w := New(1, 0)
	add := func(at, slice int64, flags tcp.Flags) {
		s := &tcp.Sample{Kind: tcp.KindClose, At: at, Arm: reno, Flags: flags}
		w.Add(s, learn.Outcome{Weight: 1, Slice: slice}, learn.Outcome{})
	}
	for slice := range int64(4) {
		add(1, slice+1, 0)
	}
	for at := int64(1); at < 2*halfLife+60*second; at += 10 * second {
		add(at, 0, tcp.FlagHoldOut)
	}
	if n := w.arm(reno).reward.slices; n != 1 {
		t.Errorf("after two half-lives %g of 4 slices count", n)
	}
}
