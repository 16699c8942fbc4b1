package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// FlowsSpec is transfers from a server, each on a connection of its own: connect,
// ask, receive all, close.
type FlowsSpec struct {
	To      string
	CC      string // the congestion control that the serving application sets itself; empty is none
	Account uint64 // number of the first flow's account; the others have the following numbers; not 0
	Flows   []Flow
	// Concurrency is the number of flows at a time, each of which begins at least Gap
	// after the previous one (closed loop). 0 is an open loop: flows begin at their At,
	// however many are running.
	Concurrency int
	Gap         time.Duration
	// Duration is the time after which no flow begins. With Repeat, the flows begin again
	// with the first one until then.
	Duration time.Duration
	Repeat   bool
	Sample   time.Duration // between points; 0 is none
	// HTTP is the path of a file if To is an HTTP server instead of a load server: each
	// flow gets that file. The flows' sizes are the file's size.
	HTTP string
}

// Flow is one transfer.
type Flow struct {
	At   time.Duration // after the start of the FlowsSpec; open loop only
	Size uint32        // bytes, at least 1
}

// FlowsResult is the result of all flows that were begun.
type FlowsResult struct {
	// Connections are in the order of their start. Elapsed is the flow completion time:
	// from connect to the last byte.
	Connections []Connection
}

// MaxFlows is the maximum number of flows of one FlowsSpec.
const MaxFlows = 200_000

func (s FlowsSpec) check() error {
	switch {
	case s.Duration <= 0 || s.Gap < 0 || s.Account == 0:
		return fmt.Errorf("check flows: duration %s, gap %s, account %d", s.Duration, s.Gap, s.Account)
	case s.Concurrency < 0 || s.Concurrency > maxWorkers:
		return fmt.Errorf("check flows: concurrency %d is not in 0 to %d", s.Concurrency, maxWorkers)
	case len(s.Flows) == 0 || len(s.Flows) > MaxFlows:
		return fmt.Errorf("check flows: %d flows, want 1 to %d", len(s.Flows), MaxFlows)
	case s.Repeat && s.Concurrency == 0:
		return errors.New("check flows: an open loop does not repeat")
	}
	for i, f := range s.Flows {
		if f.Size == 0 {
			return fmt.Errorf("check flows: flow %d is empty", i)
		}
		if err := s.order(i).check(); err != nil {
			return fmt.Errorf("flow %d: %w", i, err)
		}
	}
	return nil
}

// order is the order of flow n; n counts on when flows repeat.
func (s FlowsSpec) order(n int) order {
	return order{kind: transfer, duration: s.Duration, reply: s.Flows[n%len(s.Flows)].Size,
		account: s.Account + uint64(n), sample: s.Sample, cc: toName(s.CC)}
}

type flowClient struct {
	spec    FlowsSpec
	begin   Time
	end     time.Time
	buffers sync.Pool
	client  *http.Client // nil if To is a load server
	going   sync.WaitGroup
	free    chan struct{} // a semaphore of the flows that may run at a time
	begun   []*Connection
}

func newFlowClient(s FlowsSpec, places int) *flowClient {
	return &flowClient{spec: s, begin: Now(), end: time.Now().Add(s.Duration), free: make(chan struct{}, places),
		buffers: sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}}
}

func flows(ctx context.Context, s FlowsSpec) (r FlowsResult, err error) {
	if err := s.check(); err != nil {
		return r, err
	}
	f := newFlowClient(s, cmp.Or(s.Concurrency, maxWorkers))
	if s.HTTP != "" {
		f.client = newHTTPClient(f.end.Add(overtime))
	}
	f.dispatch(ctx)
	f.going.Wait()
	for _, c := range f.begun {
		r.Connections = append(r.Connections, *c)
	}
	return r, ctx.Err()
}

// dispatch begins one flow after the other.
func (f *flowClient) dispatch(ctx context.Context) {
	due := f.begin
	openLoop := f.spec.Concurrency == 0
	for n := 0; n < MaxFlows && (f.spec.Repeat || n < len(f.spec.Flows)); n++ {
		if openLoop {
			due = f.begin.Add(f.spec.Flows[n].At)
		}
		if due.Sub(f.begin) >= f.spec.Duration || !sleepUntil(ctx, due) {
			return
		}
		select {
		case f.free <- struct{}{}:
		case <-ctx.Done():
			return
		}
		c := &Connection{Account: f.spec.Account + uint64(n), Begin: due}
		if !openLoop {
			if c.Begin = Now(); c.Begin.Sub(f.begin) >= f.spec.Duration {
				return
			}
		}
		f.begun = append(f.begun, c)
		f.going.Go(func() {
			transfer := f.flow
			if f.client != nil {
				transfer = f.get
			}
			if err := transfer(ctx, c, f.spec.order(n)); err != nil {
				c.Error = err.Error()
				Pause(ctx, time.Millisecond) // so that a refused connection is not tried again in a busy loop
			}
			<-f.free
		})
		due = c.Begin.Add(f.spec.Gap)
	}
}

// flow is one transfer.
func (f *flowClient) flow(ctx context.Context, r *Connection, o order) error {
	c, err := connect(ctx, f.spec.To, "", f.end.Add(overtime))
	if err != nil {
		return err
	}
	defer c.Close()
	r.Connect = since(r.Begin)
	var head [orderSize]byte
	o.encode(head[:])
	if err := c.send(head[:]); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	buf := f.buffers.Get().(*[]byte)
	defer f.buffers.Put(buf)
	n, err := c.discard(int(o.reply), *buf)
	r.Bytes, r.Elapsed = uint64(n), since(r.Begin)
	if err != nil {
		return fmt.Errorf("receive %d of %d bytes: %w", n, o.reply, err)
	}
	r.Delivered = true
	// The server closes first, so that TIME_WAIT is at the server, as with most real
	// servers.
	c.allow()
	c.Read((*buf)[:1])
	return nil
}

// sleepUntil wakes more exactly than the runtime's timers, which are up to 1 ms late if
// the process is mostly idle (epoll_wait). It returns false if ctx ends.
func sleepUntil(ctx context.Context, m Time) bool {
	const nearer = 2 * time.Millisecond
	if !Pause(ctx, m.Sub(Now())-nearer) {
		return false
	}
	for left := m.Sub(Now()); left > 0; left = m.Sub(Now()) {
		t := unix.NsecToTimespec(int64(left))
		unix.Nanosleep(&t, nil)
	}
	return true
}
