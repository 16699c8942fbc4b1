package datapath

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestPauses: the reader of a busy host wakes up seldom, but not while a walk adds samples, and not if the ring might
// fill up meanwhile.
func TestPauses(t *testing.T) {
	wait := pauses{50 * time.Millisecond, 250 * time.Millisecond, time.Second}
	for name, c := range map[string]struct {
		samples int
		walks   bool
		want    time.Duration
	}{
		"a quiet host":  {busyBatch - 1, false, wait.batch},
		"a busy host":   {busyBatch, false, wait.busy},
		"a large batch": {largeBatch + 1, false, wait.batch},
		"a walk":        {busyBatch, true, wait.batch},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &Datapath{walking: walking{begun: make(chan struct{}, 1)}}
				if c.walks {
					d.walking.begin()
					<-d.walking.begun
				}
				begun := time.Now()
				d.pause(context.Background(), wait, c.samples)
				if got := time.Since(begun); got != c.want {
					t.Errorf("%v, want %v", got, c.want)
				}
			})
		})
	}
}

// TestPauseEnds: a walk that begins, and the end of the daemon, end a pause.
func TestPauseEnds(t *testing.T) {
	for name, end := range map[string]func(d *Datapath, cancel func()){
		"a walk":  func(d *Datapath, _ func()) { d.walking.begin(); d.walking.end() },
		"the end": func(_ *Datapath, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &Datapath{walking: walking{begun: make(chan struct{}, 1)}}
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				time.AfterFunc(time.Millisecond, func() { end(d, cancel) })
				begun := time.Now()
				d.pause(ctx, pauses{time.Second, time.Second, time.Second}, 1)
				if got := time.Since(begun); got != time.Millisecond {
					t.Errorf("%v", got)
				}
			})
		})
	}
}
