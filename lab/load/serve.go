package load

import (
	"errors"
	"net"
	"os"
	"time"
)

// upload counts the bytes that arrive, and sends the count when the client has sent all.
func (s *server) upload(c *net.TCPConn, o order) {
	buf := s.buffers.Get().(*[]byte)
	defer s.buffers.Put(buf)
	t := count(c, o.duration, *buf, time.Now())
	cc, _ := congestion(c)
	t.CC = toName(cc)
	t.write(c)
}

// count reads to the end; bytes that arrive after start + duration count only in Total.
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

// download reports its congestion control, then sends for the order's duration.
func (s *server) download(c *net.TCPConn, o order) {
	cc, _ := congestion(c)
	if err := (tally{CC: toName(cc)}).write(c); err != nil {
		return
	}
	sendFor(c, o.duration)
	awaitEnd(c)
}

// transfer sends the order's reply, and ends.
func (s *server) transfer(c *net.TCPConn, o order) {
	for left := int(o.reply); left > 0; {
		c.SetWriteDeadline(time.Now().Add(idle))
		n, err := c.Write(zeros[:min(left, chunk)])
		if err != nil {
			return
		}
		left -= n
	}
	awaitEnd(c)
}

// awaitEnd closes its sending side and waits until the client does the same, because the
// client has then received everything.
func awaitEnd(c *net.TCPConn) {
	c.CloseWrite()
	c.SetReadDeadline(time.Now().Add(idle))
	var b [1]byte
	c.Read(b[:])
}

// sendFor writes until the time is over; err is nil then.
func sendFor(c net.Conn, d time.Duration) error {
	c.SetWriteDeadline(time.Now().Add(d))
	defer c.SetWriteDeadline(time.Time{})
	for {
		if _, err := c.Write(zeros[:]); err != nil {
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
	if o.request > uint32(len(buf)) {
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
			if left -= n; left > 0 {
				c.SetDeadline(time.Now().Add(idle))
			}
		}
		for left = int(o.reply); left > 0; {
			n, err := c.Write(zeros[:min(left, chunk)])
			if err != nil {
				return
			}
			if left -= n; left > 0 {
				c.SetDeadline(time.Now().Add(idle))
			}
		}
		left = int(o.request)
		// Small requests need only one deadline each: that of the first was set for the order.
		if err := c.SetDeadline(time.Now().Add(idle)); err != nil {
			return
		}
	}
}
