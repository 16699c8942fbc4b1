package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ChurnSpec is many short connections: each connects, exchanges Requests
// requests and replies, and closes.
type ChurnSpec struct {
	To string
	// CC and ServerCC are the connecting and the serving application's own choice of
	// congestion control; empty leaves it.
	CC, ServerCC string
	Duration     time.Duration
	// Count ends it early after so many connections; 0 is no such end.
	Count int
	// Rate is in connections per second; 0 is as fast as the workers can.
	Rate float64
	// Workers is the number of connections open at a time; 1 if 0.
	Workers int
	// Requests per connection, 1 if 0; Request and Reply are their sizes in bytes,
	// 64 and 256 if 0.
	Requests int
	Request  int
	Reply    int
	// Abort ends each connection with a RST.
	Abort bool
	// Paths spreads the connections over so many addresses, each in the IPv4 /24
	// or IPv6 /48 after the one before, from To's on; 0 is To alone.
	Paths int
	// Keep is how many connections a record is kept of, evenly chosen; 0 is none.
	// Account is the number of the first's account, the others count up; not 0.
	Keep    int
	Account uint64
}

// MaxKeep is the most that ChurnSpec.Keep may be.
const MaxKeep = 100_000

// maxWorkers bounds the connections of one order that are open at a time.
const maxWorkers = 4096

// ChurnResult is what many short connections did.
type ChurnResult struct {
	Connections uint64 // that did all they should
	Errors      uint64
	FirstError  string
	Elapsed     time.Duration
	PerSecond   float64 // connections
	// P50 and P99 are the time of one connection, connect to last reply, of a
	// share of the connections.
	P50, P99 time.Duration
	// CPU is what the agent's process spent meanwhile; a server in another agent
	// has its own.
	CPU CPU
	// Kept are records of some connections.
	Kept []Connection
}

// churnTimeout bounds the connecting of one, and then all of its requests.
const churnTimeout = 5 * time.Second

type churner struct {
	spec  ChurnSpec
	to    []string // in turn
	start time.Time
	next  atomic.Uint64 // connections started
	done  atomic.Uint64
	fail  atomic.Uint64

	mu        sync.Mutex
	first     error
	durations []time.Duration
	kept      thinned[Connection]
}

func churn(ctx context.Context, s ChurnSpec) (ChurnResult, error) {
	s.Workers = max(s.Workers, 1)
	s.Requests = max(s.Requests, 1)
	if s.Request == 0 {
		s.Request = 64
	}
	if s.Reply == 0 {
		s.Reply = 256
	}
	if err := s.check(); err != nil {
		return ChurnResult{}, err
	}
	to, err := spread(s.To, s.Paths)
	if err != nil {
		return ChurnResult{}, err
	}
	before := ownCPU()
	c := &churner{spec: s, to: to, start: time.Now(), kept: thinned[Connection]{limit: s.Keep}}
	var workers sync.WaitGroup
	for range s.Workers {
		workers.Go(func() { c.work(ctx) })
	}
	workers.Wait()
	r := ChurnResult{
		Connections: c.done.Load(),
		Errors:      c.fail.Load(),
		Elapsed:     time.Since(c.start),
		CPU:         ownCPU().Sub(before),
		Kept:        c.kept.all(),
	}
	r.PerSecond = float64(r.Connections) / r.Elapsed.Seconds()
	if c.first != nil {
		r.FirstError = c.first.Error()
	}
	if n := len(c.durations); n > 0 {
		slices.Sort(c.durations)
		r.P50, r.P99 = c.durations[n/2], c.durations[n*99/100]
	}
	return r, ctx.Err()
}

func (s ChurnSpec) check() error {
	switch {
	case s.Duration <= 0 || s.Count < 0 || s.Rate < 0 || s.Workers > maxWorkers:
		return fmt.Errorf("check churn: duration %s, count %d, rate %v, %d workers", s.Duration, s.Count, s.Rate, s.Workers)
	case s.Keep < 0 || s.Keep > MaxKeep || s.Keep > 0 && s.Account == 0:
		return fmt.Errorf("check churn: %d records to keep, of accounts from %d on", s.Keep, s.Account)
	}
	return s.order().check()
}

// clientSends says on which side the data is.
func (s ChurnSpec) clientSends() bool { return s.Request > s.Reply }

func (s ChurnSpec) order() order {
	return order{kind: exchange, duration: s.Duration, request: uint32(s.Request), reply: uint32(s.Reply),
		cc: toName(s.ServerCC)}
}

// work makes one connection after the other until the order is fulfilled.
func (c *churner) work(ctx context.Context) {
	request := make([]byte, c.spec.Request)
	reply := make([]byte, min(c.spec.Reply, chunk))
	for n, ok := c.turn(ctx); ok; n, ok = c.turn(ctx) {
		o := c.spec.order()
		r := Connection{Begin: Now()}
		keep := c.keeps(n)
		if keep {
			r.Account = c.spec.Account + n
		}
		if !c.spec.clientSends() {
			o.account = r.Account
		}
		o.encode(request)
		err := c.connection(ctx, c.to[n%uint64(len(c.to))], request, reply, &r)
		r.Elapsed = since(r.Begin)
		if err != nil {
			c.failed(ctx, err)
			continue
		}
		// Every 16th is enough for quantiles, and keeps the lock out of the way.
		quantile := c.done.Add(1)%16 == 1
		if keep || quantile {
			c.record(n, r, quantile)
		}
	}
}

// keeps says whether a record of connection n may be wanted.
func (c *churner) keeps(n uint64) bool {
	if c.spec.Keep == 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept.takes(n)
}

func (c *churner) record(n uint64, r Connection, quantile bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if quantile {
		c.durations = append(c.durations, r.Elapsed)
	}
	if r.Account != 0 {
		c.kept.add(n, r)
	}
}

// spread lists the addresses that connections go to.
func spread(to string, paths int) ([]string, error) {
	if paths <= 1 {
		return []string{to}, nil
	}
	first, err := netip.ParseAddrPort(to)
	if err != nil || paths > 1<<16 {
		return nil, fmt.Errorf("spread %s over %d paths: want an address and at most 65536", to, paths)
	}
	list := make([]string, paths)
	a := first.Addr().AsSlice()
	prefix, shift := a[:4], 8 // counts in /24
	if first.Addr().Is6() {
		prefix, shift = a[2:6], 0 // in /48
	}
	base := binary.BigEndian.Uint32(prefix)
	for i := range list {
		binary.BigEndian.PutUint32(prefix, base+uint32(i)<<shift)
		next, _ := netip.AddrFromSlice(a)
		list[i] = netip.AddrPortFrom(next, first.Port()).String()
	}
	return list, nil
}

// turn gives the next connection its number and waits for its time; false is
// the end.
func (c *churner) turn(ctx context.Context) (n uint64, ok bool) {
	n = c.next.Add(1) - 1
	if c.spec.Count > 0 && n >= uint64(c.spec.Count) {
		return n, false
	}
	at := time.Now()
	if c.spec.Rate > 0 {
		due := c.start.Add(time.Duration(float64(n) / c.spec.Rate * float64(time.Second)))
		if due.Sub(c.start) >= c.spec.Duration {
			return n, false
		}
		if wait := due.Sub(at); wait > 0 {
			pause(ctx, wait)
		}
		at = due
	}
	return n, ctx.Err() == nil && at.Sub(c.start) < c.spec.Duration && time.Since(c.start) < 2*c.spec.Duration
}

func (c *churner) failed(ctx context.Context, err error) {
	c.fail.Add(1)
	c.mu.Lock()
	if c.first == nil {
		c.first = err
	}
	c.mu.Unlock()
	pause(ctx, time.Millisecond) // a server that is gone refuses at once
}

// connection makes one, and completes its record.
func (c *churner) connection(ctx context.Context, to string, request, reply []byte, r *Connection) (err error) {
	conn, err := dial(ctx, to, c.spec.CC, churnTimeout)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { abort(conn) })()
	defer func() {
		if c.spec.Abort {
			abort(conn)
		} else {
			err = errors.Join(err, conn.Close())
		}
	}()
	r.Connect = since(r.Begin)
	var book *observer
	if r.Account != 0 && c.spec.clientSends() {
		if book, err = observe(conn, 0); err != nil {
			return err
		}
	}
	conn.SetDeadline(time.Now().Add(churnTimeout))
	for range c.spec.Requests {
		if err := c.exchange(conn, request, reply); err != nil {
			return err
		}
		r.Bytes += uint64(max(c.spec.Request, c.spec.Reply))
	}
	r.Delivered = true
	if book != nil {
		a, err := book.end()
		if err != nil {
			return err
		}
		r.Own = &a
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
