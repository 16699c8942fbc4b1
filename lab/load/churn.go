package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// ChurnSpec is many short connections: each connects, exchanges one request and
// one reply, and closes.
type ChurnSpec struct {
	To []string // literal addresses and ports of load servers, in turn
	// CC and ServerCC are the congestion controls that the connecting and the serving
	// application set themselves; empty is none.
	CC, ServerCC string
	Duration     time.Duration
	// Count is the maximum number of connections; 0 is no maximum.
	Count int
	// Rate is in connections per second, evenly spaced (open loop); 0 is as fast as
	// the workers can.
	Rate float64
	// Workers is the number of connections open at a time; 1 if 0.
	Workers int
	// Request and Reply are their sizes in bytes, 64 and 256 if 0.
	Request int
	Reply   int
	// Reset ends one connection in so many with a RST instead of a FIN; 0 is none.
	Reset int
	// Keep is the number of connections, evenly chosen, that are recorded; 0 is none.
	// Account is the number of the first one's account; the accounts of the others have the
	// following numbers. It must not be 0.
	Keep    int
	Account uint64
}

const (
	// maxKeep is the maximum of ChurnSpec.Keep.
	maxKeep = 100_000
	// maxServers is the maximum length of ChurnSpec.To.
	maxServers = 1 << 16
	// maxWorkers is the maximum number of connections of one spec that are open at a time.
	maxWorkers = 4096
)

// ChurnResult is the result of many short connections.
type ChurnResult struct {
	Connections uint64 // that were completed
	// Errors counts connections that were not, including those that were due and got no
	// worker before overtime was over.
	Errors     uint64
	FirstError string
	Elapsed    time.Duration
	PerSecond  float64 // connections
	// Behind is the greatest delay of a connection's start after the time that Rate had
	// scheduled for it, because the workers were busy. Records count from the scheduled
	// time.
	Behind time.Duration
	// CPU is the processor time of the agent's process meanwhile; it excludes that of a
	// server in another agent.
	CPU CPU
	// Kept are records of some connections.
	Kept []Connection
}

// churnTimeout limits the connect, and then the request and reply, of one connection.
const churnTimeout = 5 * time.Second

type churner struct {
	spec     ChurnSpec
	planned  uint64        // number of connections; the highest uint64 if only Duration ends them
	overtime time.Duration // after Duration, for connections that are due
	begin    Time
	next     atomic.Uint64 // number of the next connection
	begun    atomic.Uint64
	done     atomic.Uint64
	fail     atomic.Uint64

	mu     sync.Mutex
	first  error
	behind time.Duration
	kept   thinned[Connection]
}

func churn(ctx context.Context, s ChurnSpec) (ChurnResult, error) {
	s.Workers = max(s.Workers, 1)
	if s.Request == 0 {
		s.Request = 64
	}
	if s.Reply == 0 {
		s.Reply = 256
	}
	if err := s.check(); err != nil {
		return ChurnResult{}, err
	}
	c := &churner{spec: s, planned: s.planned(), overtime: overtime, kept: thinned[Connection]{limit: s.Keep}}
	return c.run(ctx)
}

func (c *churner) run(ctx context.Context) (ChurnResult, error) {
	before := ownCPU()
	c.begin = Now()
	var workers sync.WaitGroup
	for range c.spec.Workers {
		workers.Go(func() { c.work(ctx) })
	}
	workers.Wait()
	r := ChurnResult{
		Connections: c.done.Load(),
		Errors:      c.fail.Load(),
		Elapsed:     since(c.begin),
		Behind:      c.behind,
		CPU:         ownCPU().Sub(before),
		Kept:        c.kept.all(),
	}
	r.PerSecond = float64(r.Connections) / r.Elapsed.Seconds()
	if missed := c.planned - c.begun.Load(); c.spec.Rate > 0 && missed > 0 && ctx.Err() == nil {
		r.Errors += missed
		c.first = cmp.Or(c.first, fmt.Errorf("%d connections that were due found none of %d workers free",
			missed, c.spec.Workers))
	}
	if c.first != nil {
		r.FirstError = c.first.Error()
	}
	return r, ctx.Err()
}

func (s ChurnSpec) check() error {
	switch {
	case len(s.To) == 0 || len(s.To) > maxServers:
		return fmt.Errorf("check churn: %d addresses, want 1 to %d", len(s.To), maxServers)
	case s.Duration <= 0 || s.Count < 0 || s.Rate < 0 || s.Reset < 0 || s.Workers > maxWorkers:
		return fmt.Errorf("check churn: duration %s, count %d, rate %v, %d workers", s.Duration, s.Count, s.Rate, s.Workers)
	case s.Keep < 0 || s.Keep > maxKeep || s.Keep > 0 && s.Account == 0:
		return fmt.Errorf("check churn: %d records to keep, of accounts from %d on", s.Keep, s.Account)
	}
	return s.order().check()
}

// planned is how many connections should be made.
func (s ChurnSpec) planned() uint64 {
	n := uint64(math.MaxUint64)
	if s.Rate > 0 {
		const rounding = 1e-6 // of a connection: so that a rounding error does not add one
		n = uint64(math.Ceil(s.Rate*s.Duration.Seconds() - rounding))
	}
	if s.Count > 0 {
		n = min(n, uint64(s.Count))
	}
	return n
}

// clientSends reports whether the client sends the larger part of the data.
func (s ChurnSpec) clientSends() bool { return s.Request > s.Reply }

func (s ChurnSpec) order() order {
	return order{kind: exchange, duration: s.Duration, request: uint32(s.Request), reply: uint32(s.Reply),
		cc: toName(s.ServerCC)}
}

// work makes one connection after the other until all are made.
func (c *churner) work(ctx context.Context) {
	request := make([]byte, c.spec.Request)
	reply := make([]byte, min(c.spec.Reply, chunk))
	for n, due, ok := c.turn(ctx); ok; n, due, ok = c.turn(ctx) {
		o := c.spec.order()
		r := Connection{Begin: due}
		if c.keeps(n) {
			r.Account = c.spec.Account + n
		}
		if !c.spec.clientSends() {
			o.account = r.Account
		}
		o.encode(request)
		reset := c.spec.Reset > 0 && n%uint64(c.spec.Reset) == 0
		err := c.connection(ctx, c.spec.To[n%uint64(len(c.spec.To))], request, reply, reset, &r)
		r.Elapsed = since(r.Begin)
		if err != nil {
			c.failed(ctx, err)
			continue
		}
		c.done.Add(1)
		if r.Account != 0 {
			c.record(n, r)
		}
	}
}

// turn returns the number of the next connection when it is due, or false at the end. At
// a fixed rate it is due at its scheduled time even if no worker is free then, so that
// the wait for a worker counts as a user's wait (no coordinated omission).
func (c *churner) turn(ctx context.Context) (n uint64, due Time, ok bool) {
	n = c.next.Add(1) - 1
	if n >= c.planned {
		return n, 0, false
	}
	due, latest := Now(), c.spec.Duration
	if c.spec.Rate > 0 {
		due = c.begin.Add(time.Duration(float64(n) / c.spec.Rate * float64(time.Second)))
		latest += c.overtime
		sleepUntil(ctx, due)
		c.late(since(due))
	}
	if ctx.Err() != nil || since(c.begin) >= latest {
		return n, due, false
	}
	c.begun.Add(1)
	return n, due, true
}

// late records how far a connection is behind its schedule.
func (c *churner) late(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.behind = max(c.behind, by)
}

// keeps reports whether a record of connection n may be kept.
func (c *churner) keeps(n uint64) bool {
	if c.spec.Keep == 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept.takes(n)
}

func (c *churner) record(n uint64, r Connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept.add(n, r)
}

func (c *churner) failed(ctx context.Context, err error) {
	c.fail.Add(1)
	c.mu.Lock()
	c.first = cmp.Or(c.first, err)
	c.mu.Unlock()
	if c.spec.Rate == 0 {
		Pause(ctx, time.Millisecond) // so that a refused connection is not tried again in a busy loop
	}
}

// connection makes one connection and completes its record.
func (c *churner) connection(ctx context.Context, to string, request, reply []byte, reset bool, r *Connection) (err error) {
	conn, err := dial(ctx, to, c.spec.CC, churnTimeout)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { abort(conn) })()
	defer func() { err = errors.Join(err, conn.Close()) }()
	r.Connect = since(r.Begin)
	var obs *observer
	if r.Account != 0 && c.spec.clientSends() {
		if obs, err = observe(conn, 0); err != nil {
			return err
		}
	}
	conn.SetDeadline(time.Now().Add(churnTimeout))
	if err := c.exchange(conn, request, reply); err != nil {
		return err
	}
	r.Bytes, r.Delivered = uint64(max(c.spec.Request, c.spec.Reply)), true
	if obs != nil {
		a, err := obs.end()
		if err != nil {
			return err
		}
		r.Own = &a
	}
	if reset {
		return conn.SetLinger(0)
	}
	return nil
}

func (c *churner) exchange(conn net.Conn, request, reply []byte) error {
	if _, err := conn.Write(request); err != nil {
		return err
	}
	for left := c.spec.Reply; left > 0; {
		n, err := io.ReadFull(conn, reply[:min(left, len(reply))])
		if err != nil {
			return err
		}
		left -= n
	}
	return nil
}
