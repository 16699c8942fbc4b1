package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// BulkSpec is one bulk connection.
type BulkSpec struct {
	To       string        // literal address and port of a load server
	Duration time.Duration // of sending
	// End is when sending ends even if Duration is not over; 0 is none.
	End Time
	// CC is the congestion control that the application sets itself (TCP_CONGESTION); empty
	// is none.
	CC string
	// Download makes the server send.
	Download bool
	// Abort ends the connection with a RST once the time is over.
	Abort bool
	// Limit makes the sender application-limited: bytes per second; 0 is none.
	Limit uint64
	// Drain is how long an upload waits, after its time is over, for data still in
	// flight; then the connection is aborted. 0 is half a second, after which the
	// connection is closed and ends by itself, like that of any program that exits.
	Drain time.Duration
	// Sample is the time between points of an upload; 0 is none.
	Sample time.Duration
}

// BulkResult is what one bulk connection did.
type BulkResult struct {
	Start         time.Time
	Begin         Time // the same as Start
	Local, Remote netip.AddrPort
	Cookie        uint64        // of the client's socket (SO_COOKIE)
	Connect       time.Duration // until connect returned; 0 if it did not
	Elapsed       time.Duration // of sending
	// Account is that of an upload at the end of sending. For a download it has only the
	// congestion control with which the server's socket began.
	Account
	// Received is how many bytes the receiving application had read by the end of
	// sending, and Goodput the same in bits per second. For an aborted upload both count
	// acknowledged bytes instead.
	Received uint64
	Goodput  float64
	// Arrived is how many bytes of an upload arrived, including those in flight at the
	// end of sending, and Took the time until then, without Connect. For an upload that
	// was cut off it is the number of acknowledged bytes.
	Arrived uint64
	Took    time.Duration
	// CutOff says that Drain was over before all data had arrived.
	CutOff bool
}

const (
	// drain is BulkSpec.Drain if that is 0.
	drain = 500 * time.Millisecond
	// leastSending is the time of sending if the connection was established only after
	// BulkSpec.End: goodput needs a time above 0.
	leastSending = time.Millisecond
)

func bulk(ctx context.Context, s BulkSpec) (r BulkResult, err error) {
	o := order{kind: upload, duration: s.Duration, sample: s.Sample}
	if s.Download {
		o.kind = download
	}
	if err := o.check(); err != nil {
		return r, err
	}
	r.Start, r.Begin = time.Now(), Now()
	c, err := dial(ctx, s.To, s.CC, connectTimeout)
	if err != nil {
		return r, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { abort(c) })()
	r.Connect = time.Since(r.Start)
	r.Local = c.LocalAddr().(*net.TCPAddr).AddrPort()
	r.Remote = c.RemoteAddr().(*net.TCPAddr).AddrPort()
	if r.Cookie, err = cookie(c); err != nil {
		return r, fmt.Errorf("read socket cookie: %w", err)
	}
	if s.End > 0 {
		s.Duration = min(s.Duration, max(s.End.Sub(Now()), leastSending))
		o.duration = s.Duration
	}
	var head [orderSize]byte
	o.encode(head[:])
	if s.Download {
		if _, err := c.Write(head[:]); err != nil {
			return r, fmt.Errorf("send order: %w", err)
		}
		return r, r.receive(c, s)
	}
	return r, r.send(c, s, head[:])
}

// receive is the client's side of a download.
func (r *BulkResult) receive(c *net.TCPConn, s BulkSpec) error {
	var t tally
	c.SetReadDeadline(time.Now().Add(idle))
	if err := t.read(c); err != nil {
		return fmt.Errorf("read server's congestion control: %w", err)
	}
	r.CCStart, r.CCEnd = t.CC.String(), t.CC.String() // the server reports it only once
	t = count(c, s.Duration, make([]byte, chunk), time.Now())
	r.Elapsed = t.Elapsed
	r.setReceived(t.Bytes, s.Duration)
	return nil
}

// send is the client's side of an upload.
func (r *BulkResult) send(c *net.TCPConn, s BulkSpec, order []byte) error {
	obs, err := observe(c, s.Sample)
	if err != nil {
		return err
	}
	start := time.Now()
	if _, err = c.Write(order); err == nil && s.Limit > 0 {
		err = sendSlowly(c, s.Duration, s.Limit)
	} else if err == nil {
		err = sendFor(c, s.Duration)
	}
	r.Elapsed = time.Since(start)
	var aerr error
	r.Account, aerr = obs.end()
	r.setReceived(r.BytesAcked, s.Duration)
	r.Arrived, r.Took = r.BytesAcked, r.Elapsed
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if aerr != nil {
		return aerr
	}
	if s.Abort {
		abort(c)
		return nil
	}
	if err := c.CloseWrite(); err != nil {
		return fmt.Errorf("end sending: %w", err)
	}
	wait := s.Drain
	if wait == 0 {
		wait = drain
	}
	var t tally
	c.SetReadDeadline(time.Now().Add(wait))
	err = t.read(c)
	r.Took = time.Since(start)
	if r.CutOff = err != nil; r.CutOff {
		if info, err := tcpInfo(c); err == nil {
			r.Arrived = info.Bytes_acked
		}
		if s.Drain > 0 {
			abort(c)
		}
		return nil
	}
	r.Arrived = t.Total
	r.setReceived(t.Bytes, s.Duration)
	return nil
}

func (r *BulkResult) setReceived(bytes uint64, d time.Duration) {
	r.Received = bytes
	r.Goodput = float64(bytes) * 8 / d.Seconds()
}

// sendSlowly writes at a rate below the capacity of the path: a small write every 5 ms.
func sendSlowly(c net.Conn, d time.Duration, bytesPerSecond uint64) error {
	const every = 5 * time.Millisecond
	piece := make([]byte, max(1, bytesPerSecond*uint64(every)/uint64(time.Second)))
	if len(piece) > MaxMessage {
		return errors.New("limit is too high to have an effect")
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		if _, err := c.Write(piece); err != nil {
			return err
		}
	}
	return nil
}
