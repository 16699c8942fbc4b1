package load

import (
	"context"
	"net"
	"time"
)

// Connection is the client's record of one connection that it made.
type Connection struct {
	Account uint64 // the number under which the server keeps its account
	// Begin is when it connected; in an open loop when that was due, so that any delay of
	// the start counts.
	Begin   Time
	Connect time.Duration // Begin until connect returned; 0 if there was no connection
	Elapsed time.Duration // Begin to the end of data
	// Bytes arrived of the larger of requests and replies.
	Bytes     uint64
	Delivered bool   // whether all of its data arrived
	Error     string // why it failed
	// Own is the client's account, if requests are larger than replies.
	Own *Account
	// Port is the client's own port, for flows over HTTP: it identifies the connection to
	// a server that keeps no account.
	Port uint16
}

// Exchange is one request and its reply.
type Exchange struct {
	Begin   Time
	Elapsed time.Duration // first byte of the request to last of the reply
	Bytes   uint64        // of the larger of the two
}

const (
	// connectTimeout outlasts four SYNs: the initial RTO is 1 s (RFC 6298, section 2).
	connectTimeout = 10 * time.Second
	// overtime is how long connections that began within the duration of their spec may go
	// on after it.
	overtime = 10 * time.Second
)

// clientConn is a client's connection. No read or write waits longer than idle or past
// the end. When its context ends, the connection is aborted.
type clientConn struct {
	*net.TCPConn
	end     time.Time
	release func() bool
}

// connect makes a connection, which the caller must Close.
func connect(ctx context.Context, to, cc string, end time.Time) (*clientConn, error) {
	c, err := dial(ctx, to, cc, min(connectTimeout, time.Until(end)))
	if err != nil {
		return nil, err
	}
	return &clientConn{c, end, context.AfterFunc(ctx, func() { abort(c) })}, nil
}

// allow sets the deadline of the next operation.
func (c *clientConn) allow() {
	until := time.Now().Add(idle)
	if until.After(c.end) {
		until = c.end
	}
	c.SetDeadline(until)
}

func (c *clientConn) Close() error {
	c.release()
	return c.TCPConn.Close()
}

func (c *clientConn) send(b []byte) error {
	c.allow()
	_, err := c.Write(b)
	return err
}

// sendZeros writes n bytes.
func (c *clientConn) sendZeros(n int) error {
	for n > 0 {
		c.allow()
		w, err := c.Write(zeros[:min(n, chunk)])
		if err != nil {
			return err
		}
		n -= w
	}
	return nil
}

// discard reads n bytes.
func (c *clientConn) discard(n int, buf []byte) (read int, err error) {
	for read < n {
		c.allow()
		r, err := c.Read(buf[:min(n-read, len(buf))])
		read += r
		if err != nil {
			return read, err
		}
	}
	return read, nil
}

// zeros is the data that all connections send.
var zeros [chunk]byte

// Pause sleeps; it returns false if ctx ends.
func Pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
