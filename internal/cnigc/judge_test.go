package cnigc

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podrecord"
)

// What was added while the clock was ahead is not young until the clock is there again, nor old while its ADD may still run.
func TestJudgeAfterTheClockWasSetBack(t *testing.T) {
	c := &collection{Node: Node{OlderThan: time.Minute}}
	var now pod.Pod
	if err := podrecord.SetAdded(&now); err != nil {
		t.Fatal(err)
	}
	now.NetNS = filepath.Join(t.TempDir(), "ended")
	now.Added = now.Added.Add(time.Hour)
	if v := c.judge(&attachment{Pod: now}); v.gone || !strings.Contains(v.why, "added only 0s ago") {
		t.Errorf("added now: %+v", v)
	}
	now.Uptime -= 2 * time.Minute
	if v := c.judge(&attachment{Pod: now}); !v.gone {
		t.Errorf("added 2 minutes ago: %+v", v)
	}
	// Records of earlier versions have only the clock.
	for ahead, gone := range map[time.Duration]bool{-2 * time.Minute: true, -time.Second: false, 30 * time.Second: false, time.Hour: true} {
		a := &attachment{Pod: pod.Pod{NetNS: filepath.Join(t.TempDir(), "ended"), Added: time.Now().Add(ahead)}}
		if v := c.judge(a); v.gone != gone {
			t.Errorf("added at %v from now: %+v", ahead, v)
		}
	}
}
