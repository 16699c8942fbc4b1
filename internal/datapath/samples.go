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

// pollAfterWake is how long the reader looks again after a wake-up: the programs
// wake it at most once per WAKE_INTERVAL_NS (bpf/report.bpf.h), so that a busy
// host pays for few wake-ups.
const pollAfterWake = 6 * time.Millisecond

// Read calls observe for each sample until ctx ends, and idle whenever it has
// caught up. The sample is valid during the call only. Records that cannot be
// read are counted.
func (d *Datapath) Read(ctx context.Context, observe func(*tcp.Sample), idle func()) error {
	r, err := ringbuf.NewReader(d.maps.Samples)
	if err != nil {
		return fmt.Errorf("open sample ring: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = r.Close() })
	defer stop()
	defer r.Close()

	var rec ringbuf.Record
	var s tcp.Sample
	offset, fresh := wallOffset(), false
	for {
		err := r.ReadInto(&rec)
		switch {
		case errors.Is(err, ringbuf.ErrClosed):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			idle()
			if !fresh {
				r.SetDeadline(time.Time{}) // quiet: sleep until woken
			} else {
				r.SetDeadline(time.Now().Add(pollAfterWake))
			}
			fresh, offset = false, wallOffset()
			continue
		case err != nil:
			return fmt.Errorf("read sample ring: %w", err)
		}
		if err := decode(&s, rec.RawSample, offset, &d.ccs); err != nil {
			d.badSamples.Add(1)
			continue
		}
		observe(&s)
		fresh = true
		if r.AvailableBytes() == 0 {
			idle()
			r.SetDeadline(time.Now().Add(pollAfterWake))
		}
	}
}

// counter is a number that any goroutine may raise.
type counter = atomic.Uint64
