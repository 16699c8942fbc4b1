package cnigc

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/pod"
)

// What was added while the clock was ahead is not young until the clock is there again.
func TestJudgeAfterTheClockWasSetBack(t *testing.T) {
	c := &collection{Node: Node{OlderThan: time.Minute}}
	for ahead, gone := range map[time.Duration]bool{-2 * time.Minute: true, -time.Second: false, 30 * time.Second: false, time.Hour: true} {
		a := &attachment{Pod: pod.Pod{NetNS: filepath.Join(t.TempDir(), "ended"), Added: time.Now().Add(ahead)}}
		if v := c.judge(a); v.gone != gone {
			t.Errorf("added at %v from now: %+v", ahead, v)
		}
	}
}
