package datapath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// batchPause is how long the reader waits after a batch before it reads again. It is longer
// than WAKE_INTERVAL_NS (bpf/sockops/report.bpf.h), the least time between two wake-ups by
// the programs: samples added without a wake-up are there when the pause ends. So a busy
// host has few wake-ups, and on a quiet one a sample is read at once.
const batchPause = 50 * time.Millisecond

// busyPause is how long it waits after a batch of busyBatch to largeBatch samples, unless a walk adds more: each
// wake-up of the daemon slows down a host that is busy with connections (design note 29). After a larger batch,
// more samples might come in that time than the ring holds (3,000).
const (
	busyPause  = 250 * time.Millisecond
	busyBatch  = 16
	largeBatch = 600
)

// safetyPoll is how often the reader reads without a wake-up, in case a producer was delayed
// between adding a sample and the wake-up.
const safetyPoll = 5 * time.Second

// pauses are the times that a reader waits: after a batch, after one of a busy host, and at most for a wake-up.
type pauses struct{ batch, busy, poll time.Duration }

// walking tells the reader that a walk over connections adds samples.
type walking struct {
	now   atomic.Int32  // walks that have not ended
	begun chan struct{} // holds one if a walk has begun since the last pause
}

func (w *walking) begin() {
	w.now.Add(1)
	select {
	case w.begun <- struct{}{}:
	default:
	}
}

func (w *walking) end() { w.now.Add(-1) }

// pause waits after a batch of n samples. A walk that begins ends the long pause of a busy host, but not before wait.batch.
func (d *Datapath) pause(ctx context.Context, wait pauses, n int) {
	select {
	case <-d.walking.begun: // of an earlier walk; one that begins now is in walking.now
	default:
	}
	if n < busyBatch || n > largeBatch || d.walking.now.Load() > 0 {
		time.Sleep(wait.batch)
		return
	}
	begun := time.Now()
	select {
	case <-time.After(wait.busy):
	case <-d.walking.begun:
		time.Sleep(wait.batch - time.Since(begun))
	case <-ctx.Done():
	}
}

// Read calls observe for each sample until ctx ends, and idle whenever it has
// caught up. The sample is valid during the call only. Records that cannot be
// read are counted.
func (d *Datapath) Read(ctx context.Context, observe func(*tcp.Sample), idle func()) error {
	return d.read(ctx, pauses{batchPause, busyPause, safetyPoll}, observe, idle)
}

func (d *Datapath) read(ctx context.Context, wait pauses, observe func(*tcp.Sample), idle func()) error {
	r, err := ringbuf.NewReader(d.maps.Samples)
	if err != nil {
		return fmt.Errorf("open sample ring: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = r.Close() })
	defer stop()
	defer r.Close()

	var rec ringbuf.Record
	var s tcp.Sample
	offset := wallOffset()
	for {
		r.SetDeadline(time.Now().Truncate(wait.poll).Add(wait.poll)) // together with other periodic work
		err := r.ReadInto(&rec)                                      // blocks until there is a batch
		n := 0
		for err == nil {
			n++
			if decode(&s, rec.RawSample, offset, &d.ccs) == nil {
				observe(&s)
			} else {
				d.badSamples.Add(1)
			}
			if rec.Remaining == 0 { // r itself may be closed by now
				break
			}
			err = r.ReadInto(&rec)
		}
		switch {
		case errors.Is(err, ringbuf.ErrClosed):
			return nil
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("read sample ring: %w", err)
		}
		idle()
		offset = wallOffset()
		if err == nil {
			d.pause(ctx, wait, n)
		}
	}
}

// counter is a number that any goroutine may raise.
type counter = atomic.Uint64
