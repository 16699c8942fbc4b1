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

// TestPauseEnds: a walk that begins, and the end of the daemon, end the long pause of a busy host, but no pause before the
// time in which programs do not wake the reader.
func TestPauseEnds(t *testing.T) {
	wait := pauses{50 * time.Millisecond, 250 * time.Millisecond, time.Second}
	walk := func(d *Datapath, _ func()) { d.walking.begin(); d.walking.end() }
	for name, c := range map[string]struct {
		samples     int
		after, want time.Duration
		end         func(d *Datapath, cancel func())
	}{
		"a walk":                      {busyBatch, 100 * time.Millisecond, 100 * time.Millisecond, walk},
		"the end":                     {busyBatch, 100 * time.Millisecond, 100 * time.Millisecond, func(_ *Datapath, cancel func()) { cancel() }},
		"a walk soon after":           {busyBatch, 10 * time.Millisecond, wait.batch, walk},
		"a walk, after a small batch": {1, 10 * time.Millisecond, wait.batch, walk},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &Datapath{walking: walking{begun: make(chan struct{}, 1)}}
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				begun := time.Now()
				time.AfterFunc(c.after, func() { c.end(d, cancel) })
				d.pause(ctx, wait, c.samples)
				if got := time.Since(begun); got != c.want {
					t.Errorf("%v, want %v", got, c.want)
				}
			})
		})
	}
}
