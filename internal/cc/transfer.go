package cc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stallTime without a byte is a stall: several retransmission timeouts in a row (RFC
// 6298; the kernel's first is 200 ms), for which neither stage gives a reason.
const stallTime = 1500 * time.Millisecond

// delivery is the result of a transfer.
type delivery struct {
	took    time.Duration
	packets uint32 // with data, retransmissions included
	retrans uint32
}

// transfer delivers n bytes from c to s, and then the end of the connection.
func transfer(ctx context.Context, c, s *net.TCPConn, n int, limit time.Duration) (delivery, error) {
	got, err := deliver(ctx, c, s, n, limit)
	if err == nil {
		err = errors.Join(c.CloseWrite(), receiveEnd(s))
	}
	return got, err
}

// deliver sends n bytes from c to s, and compares what arrives. It fails if not all
// arrives within limit, or nothing for stallTime. Closing either end resets the
// connection, so that undelivered data is dropped.
func deliver(ctx context.Context, c, s *net.TCPConn, n int, limit time.Duration) (delivery, error) {
	if err := errors.Join(c.SetLinger(0), s.SetLinger(0)); err != nil {
		return delivery{}, err
	}
	begin := time.Now()
	go func() {
		// The receiver reports what fails here.
		_, _ = io.CopyN(c, content(), int64(n))
	}()
	if err := receive(ctx, s, n, limit); err != nil {
		return delivery{}, err
	}
	got := delivery{took: time.Since(begin)}
	raw, err := c.SyscallConn()
	if err != nil {
		return got, err
	}
	err = onDescriptor(raw, func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			got.packets, got.retrans = info.Data_segs_out, info.Total_retrans
		}
		return err
	})
	return got, err
}

// onDescriptor uses the descriptor of a connection.
func onDescriptor(c syscall.RawConn, f func(fd int) error) error {
	var err error
	used := c.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(used, err)
}

// content is the data that is sent: no part of it is like another.
func content() io.Reader { return rand.NewChaCha8([32]byte{}) }

func receive(ctx context.Context, s net.Conn, n int, limit time.Duration) error {
	begin := time.Now()
	want := content()
	buf, same := make([]byte, 1<<16), make([]byte, 1<<16)
	for got := 0; got < n; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Since(begin) > limit {
			return fmt.Errorf("only %d of %d bytes arrived in %s: it does not use the link", got, n, limit)
		}
		if err := s.SetReadDeadline(time.Now().Add(stallTime)); err != nil {
			return err
		}
		k, err := s.Read(buf[:min(len(buf), n-got)])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("stalled: nothing arrived for %s after %d of %d bytes", stallTime, got, n)
		}
		if err != nil {
			return fmt.Errorf("after %d of %d bytes: %w", got, n, err)
		}
		got += k
		if _, err := io.ReadFull(want, same[:k]); err != nil || !bytes.Equal(buf[:k], same[:k]) {
			return fmt.Errorf("after %d of %d bytes, what arrived differs from what was sent", got, n)
		}
	}
	return nil
}

// receiveEnd waits for the FIN, which a control can delay like any packet.
func receiveEnd(s net.Conn) error {
	if err := s.SetReadDeadline(time.Now().Add(stallTime)); err != nil {
		return err
	}
	k, err := s.Read(make([]byte, 1))
	switch {
	case k > 0:
		return errors.New("more bytes arrived than were sent")
	case errors.Is(err, io.EOF):
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("all bytes arrived, but the connection did not end within %s", stallTime)
	}
	return fmt.Errorf("receive the end of the connection: %w", err)
}
