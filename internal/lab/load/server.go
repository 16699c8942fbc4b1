package load

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// ListenSpec says where a server shall listen.
type ListenSpec struct {
	// Address is a literal address and port; [::]:0 is dual-stack.
	Address string
	// CC is the application's own choice of congestion control; empty leaves it.
	CC string
}

// Listening is where a server listens.
type Listening struct {
	Address netip.AddrPort
}

// server serves the orders of load clients.
type server struct {
	l net.Listener
	// Bulk buffers are shared: churn would otherwise make one per connection.
	buffers sync.Pool
}

// chunk is the size of one read or write of a bulk stream, in bytes.
const chunk = 128 << 10

// idle bounds how long a connection may say nothing, so that a dead client does
// not keep its connection.
const idle = 30 * time.Second

func serve(l net.Listener) *server {
	s := &server{l: l, buffers: sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}}
	go s.accept()
	return s
}

func (s *server) accept() {
	for {
		c, err := s.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors: let some close
			continue
		}
		go s.handle(c.(*net.TCPConn))
	}
}

func (s *server) handle(c *net.TCPConn) {
	defer c.Close()
	var head [orderSize]byte
	c.SetReadDeadline(time.Now().Add(idle))
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return
	}
	o, err := decodeOrder(head[:])
	if err != nil {
		return
	}
	switch o.kind {
	case upload:
		s.upload(c, o)
	case download:
		s.download(c, o)
	case exchange:
		s.exchange(c, o)
	}
}

// upload counts what arrives and tells the client once it has sent all.
func (s *server) upload(c *net.TCPConn, o order) {
	buf := s.buffers.Get().(*[]byte)
	defer s.buffers.Put(buf)
	t := count(c, o.duration, *buf, time.Now())
	cc, _ := congestion(c)
	t.CC = toName(cc)
	t.write(c)
}

// count reads to the end; what arrives after start + duration counts in Total
// only.
func count(c net.Conn, duration time.Duration, buf []byte, start time.Time) (t tally) {
	end := start.Add(duration)
	for {
		c.SetReadDeadline(time.Now().Add(idle))
		n, err := c.Read(buf)
		now := time.Now()
		t.Total += uint64(n)
		if !now.After(end) {
			t.Bytes, t.Elapsed = t.Total, now.Sub(start)
		} else {
			t.Elapsed = duration
		}
		if err != nil {
			return t
		}
	}
}

// download says its congestion control, then sends for the order's duration.
func (s *server) download(c *net.TCPConn, o order) {
	buf := s.buffers.Get().(*[]byte)
	defer s.buffers.Put(buf)
	cc, _ := congestion(c)
	if err := (tally{CC: toName(cc)}).write(c); err != nil {
		return
	}
	sendFor(c, o.duration, *buf)
	c.CloseWrite()
	// The client closes once it has all.
	c.SetReadDeadline(time.Now().Add(idle))
	c.Read((*buf)[:1])
}

// sendFor writes until the time is over; err is nil then.
func sendFor(c net.Conn, d time.Duration, buf []byte) error {
	c.SetWriteDeadline(time.Now().Add(d))
	defer c.SetWriteDeadline(time.Time{})
	for {
		if _, err := c.Write(buf); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			return err
		}
	}
}

// exchange answers requests until the client closes. The order was the start of
// the first request.
func (s *server) exchange(c *net.TCPConn, o order) {
	var small [4096]byte
	buf := small[:]
	if o.request > uint32(len(buf)) || o.reply > uint32(len(buf)) {
		big := s.buffers.Get().(*[]byte)
		defer s.buffers.Put(big)
		buf = *big
	}
	left := int(o.request) - orderSize
	for {
		for left > 0 {
			n, err := c.Read(buf[:min(left, len(buf))])
			if err != nil {
				return
			}
			left -= n
		}
		for left = int(o.reply); left > 0; {
			n, err := c.Write(buf[:min(left, len(buf))])
			if err != nil {
				return
			}
			left -= n
		}
		left = int(o.request)
		// One deadline a request: the first was set for the order.
		if err := c.SetReadDeadline(time.Now().Add(idle)); err != nil {
			return
		}
	}
}
