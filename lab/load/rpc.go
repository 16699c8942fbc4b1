package load

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// RPCSpec is requests and replies on one connection; each request follows the previous
// reply.
type RPCSpec struct {
	To string
	// CC is the congestion control that the application which sends the larger messages
	// sets itself; empty is none.
	CC      string
	Account uint64 // the number of the server's account; not 0
	Request int    // bytes, at least MinRequest
	Reply   int    // bytes
	Count   int    // of requests; 0 is as many as Duration allows
	// Duration is the time after which no request begins.
	Duration time.Duration
	Think    time.Duration // from a reply to the next request; at most MaxThink
	Sample   time.Duration // between points of the larger side; 0 is none
}

// MaxThink is short enough that a connection between two requests is not closed as idle.
const MaxThink = idle / 2

// RPCResult is the result of an RPC or mux connection.
type RPCResult struct {
	Connection
	Exchanges uint64     // that were completed
	Kept      []Exchange // of them, evenly chosen; at most 100,000
}

// maxExchanges is how many exchanges of one connection are kept: enough for the 99.9th
// percentile, and 10 MB in the agent's answer.
const maxExchanges = 100_000

// clientSends reports whether the client sends the larger part of the data.
func (s RPCSpec) clientSends() bool { return s.Request > s.Reply }

func (s RPCSpec) order() order {
	o := order{kind: exchange, duration: s.Duration, request: uint32(s.Request), reply: uint32(s.Reply),
		account: s.Account, sample: s.Sample}
	if s.clientSends() {
		o.account, o.sample = 0, 0
	} else {
		o.cc = toName(s.CC)
	}
	return o
}

func (s RPCSpec) check() error {
	if s.Duration <= 0 || s.Count < 0 || s.Think < 0 || s.Think > MaxThink {
		return fmt.Errorf("check RPC: duration %s, count %d, think %s", s.Duration, s.Count, s.Think)
	}
	return s.order().check()
}

func rpc(ctx context.Context, s RPCSpec) (r RPCResult, err error) {
	if err := s.check(); err != nil {
		return r, err
	}
	r.Account, r.Begin = s.Account, Now()
	if err := r.rpc(ctx, s); err != nil {
		r.Error = err.Error()
	}
	return r, nil
}

func (r *RPCResult) rpc(ctx context.Context, s RPCSpec) error {
	cc := s.CC
	if !s.clientSends() {
		cc = ""
	}
	end := time.Now().Add(s.Duration)
	c, err := connect(ctx, s.To, cc, end.Add(overtime))
	if err != nil {
		return err
	}
	defer c.Close()
	r.Connect = since(r.Begin)
	if s.clientSends() {
		obs, err := observe(c.TCPConn, s.Sample)
		if err != nil {
			return err
		}
		defer func() {
			if a, err := obs.end(); err == nil {
				r.Own = &a
			}
		}()
	}
	err = r.exchangeAll(ctx, c, s, end)
	r.Delivered = err == nil
	return err
}

// exchangeAll sends requests and receives replies, one after the other.
func (r *RPCResult) exchangeAll(ctx context.Context, c *clientConn, s RPCSpec, end time.Time) error {
	kept := thinned[Exchange]{limit: maxExchanges}
	defer func() { r.Kept = kept.all() }()
	first := make([]byte, min(s.Request, chunk))
	s.order().encode(first)
	reply := make([]byte, min(s.Reply, chunk))
	size := max(s.Request, s.Reply)
	for n := 0; s.Count == 0 || n < s.Count; n++ {
		if n > 0 && !Pause(ctx, s.Think) {
			return ctx.Err()
		}
		if n > 0 && !time.Now().Before(end) {
			return nil
		}
		begin := Now()
		var err error
		if n == 0 {
			err = errors.Join(c.send(first), c.sendZeros(s.Request-len(first)))
		} else {
			err = c.sendZeros(s.Request)
		}
		if err == nil {
			_, err = c.discard(s.Reply, reply)
		}
		if err != nil {
			return fmt.Errorf("request %d: %w", n, err)
		}
		r.done(begin, size, &kept)
	}
	return nil
}

// done counts an exchange that has just ended.
func (r *RPCResult) done(begin Time, size int, kept *thinned[Exchange]) {
	now := Now()
	kept.add(r.Exchanges, Exchange{begin, now.Sub(begin), uint64(size)})
	r.Exchanges++
	r.Bytes += uint64(size)
	r.Elapsed = now.Sub(r.Begin)
}
