package load

import (
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
	To       string
	CC       string // the application's own choice; empty leaves it
	Duration time.Duration
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
	// after the one before, from To's on; 0 is To alone.
	Paths int
}

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
}

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
}

func churn(s ChurnSpec) (ChurnResult, error) {
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
	c := &churner{spec: s, to: to, start: time.Now()}
	var workers sync.WaitGroup
	for range s.Workers {
		workers.Go(c.work)
	}
	workers.Wait()
	r := ChurnResult{
		Connections: c.done.Load(),
		Errors:      c.fail.Load(),
		Elapsed:     time.Since(c.start),
		CPU:         ownCPU().Sub(before),
	}
	r.PerSecond = float64(r.Connections) / r.Elapsed.Seconds()
	if c.first != nil {
		r.FirstError = c.first.Error()
	}
	if n := len(c.durations); n > 0 {
		slices.Sort(c.durations)
		r.P50, r.P99 = c.durations[n/2], c.durations[n*99/100]
	}
	return r, nil
}

func (s ChurnSpec) check() error {
	if s.Duration <= 0 || s.Count < 0 || s.Rate < 0 || s.Workers > maxWorkers {
		return fmt.Errorf("check churn: duration %s, count %d, rate %v, %d workers", s.Duration, s.Count, s.Rate, s.Workers)
	}
	return s.order().check()
}

func (s ChurnSpec) order() order {
	return order{kind: exchange, duration: s.Duration, request: uint32(s.Request), reply: uint32(s.Reply)}
}

// work makes one connection after the other until the order is fulfilled.
func (c *churner) work() {
	request := make([]byte, c.spec.Request)
	c.spec.order().encode(request)
	reply := make([]byte, min(c.spec.Reply, chunk))
	for n, ok := c.turn(); ok; n, ok = c.turn() {
		start := time.Now()
		if err := c.connection(c.to[n%uint64(len(c.to))], request, reply); err != nil {
			c.failed(err)
			continue
		}
		// Every 16th is enough for quantiles, and keeps the lock out of the way.
		if c.done.Add(1)%16 == 1 {
			c.mu.Lock()
			c.durations = append(c.durations, time.Since(start))
			c.mu.Unlock()
		}
	}
}

// spread lists the addresses that connections go to.
func spread(to string, paths int) ([]string, error) {
	if paths <= 1 {
		return []string{to}, nil
	}
	first, err := netip.ParseAddrPort(to)
	if err != nil || !first.Addr().Is4() || paths > 1<<16 {
		return nil, fmt.Errorf("spread %s over %d paths: want an IPv4 address and at most 65536", to, paths)
	}
	list := make([]string, paths)
	a := first.Addr().As4()
	base := binary.BigEndian.Uint32(a[:])
	for i := range list {
		binary.BigEndian.PutUint32(a[:], base+uint32(i)<<8)
		list[i] = netip.AddrPortFrom(netip.AddrFrom4(a), first.Port()).String()
	}
	return list, nil
}

// turn gives the next connection its number and waits for its time; false is
// the end.
func (c *churner) turn() (n uint64, ok bool) {
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
			time.Sleep(wait)
		}
		at = due
	}
	return n, at.Sub(c.start) < c.spec.Duration && time.Since(c.start) < 2*c.spec.Duration
}

func (c *churner) failed(err error) {
	c.fail.Add(1)
	c.mu.Lock()
	if c.first == nil {
		c.first = err
	}
	c.mu.Unlock()
	time.Sleep(time.Millisecond) // a server that is gone refuses at once
}

func (c *churner) connection(to string, request, reply []byte) (err error) {
	conn, err := dial(to, c.spec.CC, 5*time.Second)
	if err != nil {
		return err
	}
	defer func() {
		if c.spec.Abort {
			abort(conn)
		} else {
			err = errors.Join(err, conn.Close())
		}
	}()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	for range c.spec.Requests {
		if err := c.exchange(conn, request, reply); err != nil {
			return err
		}
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
