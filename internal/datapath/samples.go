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

// safetyPoll is how often the reader reads without a wake-up, in case a producer was delayed
// between adding a sample and the wake-up.
const safetyPoll = 5 * time.Second

// pauses are the times that a reader waits: after a batch, and at most for a wake-up.
type pauses struct{ batch, poll time.Duration }

// Read calls observe for each sample until ctx ends, and idle whenever it has
// caught up. The sample is valid during the call only. Records that cannot be
// read are counted.
func (d *Datapath) Read(ctx context.Context, observe func(*tcp.Sample), idle func()) error {
	return d.read(ctx, pauses{batchPause, safetyPoll}, observe, idle)
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
		for err == nil {
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
			time.Sleep(wait.batch)
		}
	}
}

// counter is a number that any goroutine may raise.
type counter = atomic.Uint64
