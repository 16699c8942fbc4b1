package load

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// MuxSpec is one long-lived connection similar to HTTP/2: bursts of requests whose
// replies are interleaved.
type MuxSpec struct {
	To      string
	CC      string // the congestion control that the serving application sets itself; empty is none
	Account uint64 // the number of the server's account; not 0
	Request int    // bytes, at least MinMuxRequest
	// Sizes are the sizes of the replies, in bytes, one request after the other; after
	// the last they start over.
	Sizes []uint32
	// Concurrency is the number of requests of a burst; at most MaxConcurrency.
	Concurrency int
	Count       int // of bursts; 0 is as many as Duration allows
	// Duration is the time after which no burst begins.
	Duration time.Duration
	Think    time.Duration // from the end of a burst to the next; at most MaxThink
	Sample   time.Duration // between points; 0 is none
}

// muxHead is the length of the header of a request or frame: the stream, and the number
// of bytes that it asks for, or that follow.
const muxHead = 8

const (
	// MinMuxRequest is the least size of a mux request in bytes.
	MinMuxRequest = muxHead
	// MaxConcurrency is the maximum number of requests of a burst. The server can queue
	// this many without sending, so that a client may send all of them before it reads.
	MaxConcurrency = 1024
	// frame is the maximum size of a frame in bytes: the default of HTTP/2 (RFC 9113,
	// section 6.5.2).
	frame = 16 << 10
)

func (s MuxSpec) order() order {
	return order{kind: mux, duration: s.Duration, request: uint32(s.Request),
		account: s.Account, sample: s.Sample, cc: toName(s.CC)}
}

func (s MuxSpec) check() error {
	if s.Duration <= 0 || s.Count < 0 || s.Think < 0 || s.Think > MaxThink {
		return fmt.Errorf("check mux: duration %s, count %d, think %s", s.Duration, s.Count, s.Think)
	}
	if s.Concurrency < 1 || s.Concurrency > MaxConcurrency || len(s.Sizes) == 0 {
		return fmt.Errorf("check mux: %d requests of %d sizes", s.Concurrency, len(s.Sizes))
	}
	for _, size := range s.Sizes {
		if size == 0 || size > MaxMessage {
			return fmt.Errorf("check mux: reply of %d bytes, want 1 to %d", size, MaxMessage)
		}
	}
	return s.order().check()
}

func multiplex(ctx context.Context, s MuxSpec) (r RPCResult, err error) {
	if err := s.check(); err != nil {
		return r, err
	}
	r.Account, r.Begin = s.Account, Now()
	err = r.multiplex(ctx, s)
	r.Delivered = err == nil
	if err != nil {
		r.Error = err.Error()
	}
	return r, nil
}

// muxClient is the client's side of a mux connection.
type muxClient struct {
	*clientConn
	in      *bufio.Reader
	sizes   []uint32
	asked   int   // requests so far
	left    []int // bytes of the burst's replies, by stream
	replies []int // their sizes
}

func (r *RPCResult) multiplex(ctx context.Context, s MuxSpec) error {
	end := time.Now().Add(s.Duration)
	c, err := connect(ctx, s.To, "", end.Add(overtime))
	if err != nil {
		return err
	}
	defer c.Close()
	r.Connect = since(r.Begin)
	var head [orderSize]byte
	s.order().encode(head[:])
	if err := c.send(head[:]); err != nil {
		return fmt.Errorf("send order: %w", err)
	}
	kept := thinned[Exchange]{limit: maxExchanges}
	defer func() { r.Kept = kept.all() }()
	m := &muxClient{clientConn: c, in: bufio.NewReaderSize(c, chunk), sizes: s.Sizes}
	for n := 0; s.Count == 0 || n < s.Count; n++ {
		if n > 0 && !Pause(ctx, s.Think) {
			return ctx.Err()
		}
		if n > 0 && !time.Now().Before(end) {
			return nil
		}
		begin := Now()
		if err := m.ask(s); err != nil {
			return fmt.Errorf("ask burst %d: %w", n, err)
		}
		if err := m.receive(func(size int) { r.done(begin, size, &kept) }); err != nil {
			return fmt.Errorf("receive burst %d: %w", n, err)
		}
	}
	return nil
}

// ask sends a burst of requests.
func (m *muxClient) ask(s MuxSpec) error {
	requests := make([]byte, s.Concurrency*s.Request)
	m.left, m.replies = make([]int, s.Concurrency), make([]int, s.Concurrency)
	for i := range s.Concurrency {
		size := m.sizes[m.asked%len(m.sizes)]
		m.asked++
		m.left[i], m.replies[i] = int(size), int(size)
		binary.BigEndian.PutUint32(requests[i*s.Request:], uint32(i))
		binary.BigEndian.PutUint32(requests[i*s.Request+4:], size)
	}
	return m.send(requests)
}

// receive reads frames until all replies are complete, and reports each.
func (m *muxClient) receive(done func(size int)) error {
	for open := len(m.left); open > 0; {
		m.allow()
		stream, length, err := readMuxHead(m.in)
		if err != nil {
			return err
		}
		if int(stream) >= len(m.left) || int(length) > m.left[stream] {
			return fmt.Errorf("unexpected frame: %d bytes of stream %d", length, stream)
		}
		if _, err := m.in.Discard(int(length)); err != nil {
			return err
		}
		if m.left[stream] -= int(length); m.left[stream] == 0 {
			open--
			done(m.replies[stream])
		}
	}
	return nil
}

func readMuxHead(r io.Reader) (stream, length uint32, err error) {
	var head [muxHead]byte
	_, err = io.ReadFull(r, head[:])
	return binary.BigEndian.Uint32(head[:]), binary.BigEndian.Uint32(head[4:]), err
}

// reply is a reply that the server has not yet sent completely.
type reply struct {
	stream uint32
	left   int
}

// mux serves a mux connection: one goroutine reads requests, this one sends.
func (s *server) mux(c *net.TCPConn, o order) {
	asked := make(chan reply, MaxConcurrency)
	go func() {
		defer close(asked)
		readRequests(c, int(o.request), asked)
	}()
	sendReplies(c, asked)
	c.CloseRead() // if sending failed, nothing more is read
	for range asked {
	}
}

func readRequests(c net.Conn, size int, asked chan<- reply) {
	in := bufio.NewReaderSize(c, frame)
	for {
		c.SetReadDeadline(time.Now().Add(idle))
		stream, length, err := readMuxHead(in)
		if err != nil || length > MaxMessage {
			return
		}
		if _, err := in.Discard(size - muxHead); err != nil {
			return
		}
		asked <- reply{stream, int(length)}
	}
}

// sendReplies sends a frame of each reply in turn, until asked is closed.
func sendReplies(c net.Conn, asked <-chan reply) {
	out := bufio.NewWriterSize(c, 4*frame)
	var open []reply
	for {
		if len(open) == 0 {
			c.SetWriteDeadline(time.Now().Add(idle))
			if out.Flush() != nil {
				return
			}
			r, ok := <-asked
			if !ok {
				return
			}
			open = append(open, r)
		}
		for n := len(asked); n > 0; n-- {
			if r, ok := <-asked; ok {
				open = append(open, r)
			}
		}
		c.SetWriteDeadline(time.Now().Add(idle))
		for i := range open {
			if err := open[i].sendFrame(out); err != nil {
				return
			}
		}
		open = unsent(open)
	}
}

// sendFrame sends up to a frame of the reply.
func (r *reply) sendFrame(out *bufio.Writer) error {
	n := min(r.left, frame)
	r.left -= n
	head := binary.BigEndian.AppendUint32(out.AvailableBuffer(), r.stream)
	head = binary.BigEndian.AppendUint32(head, uint32(n))
	_, herr := out.Write(head)
	_, err := out.Write(zeros[:n])
	return errors.Join(herr, err)
}

// unsent returns the replies that are not complete.
func unsent(all []reply) []reply {
	left := all[:0]
	for _, r := range all {
		if r.left > 0 {
			left = append(left, r)
		}
	}
	return left
}
