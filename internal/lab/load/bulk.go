package load

import (
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
	// CC is the application's own choice of congestion control; empty leaves it.
	CC string
	// Download has the server send.
	Download bool
	// Abort ends the connection with a RST once the time is over.
	Abort bool
	// Limit makes the sender application-limited: bytes per second; 0 is none.
	Limit uint64
	// ConnectTimeout is 10 s if 0.
	ConnectTimeout time.Duration
}

// BulkResult is what one bulk connection did.
type BulkResult struct {
	Start         time.Time
	Local, Remote netip.AddrPort
	Cookie        uint64        // of the client's socket (SO_COOKIE)
	Connect       time.Duration // until connect returned
	// CCStart and CCEnd are the sender's congestion control when the connection
	// was established, and at the end (of an upload; of a download, the start's).
	CCStart, CCEnd string
	Elapsed        time.Duration // of sending
	BytesAcked     uint64        // at the end of sending; uploads only
	// Received is what the receiving application had read by the end of Duration,
	// and Goodput that in bits per second. An aborted upload has what was
	// acknowledged instead.
	Received uint64
	Goodput  float64
	Retrans  uint32        // segments; uploads only
	RTOs     uint16        // uploads only; Linux 6.7 and later
	MinRTT   time.Duration // uploads only
	SRTT     time.Duration // uploads only
}

// drain bounds how long an upload waits for what is still on the way. Past it
// the connection is closed and ends by itself, as that of any program that exits.
const drain = 500 * time.Millisecond

func bulk(s BulkSpec) (r BulkResult, err error) {
	o := order{kind: upload, duration: s.Duration}
	if s.Download {
		o.kind = download
	}
	if err := o.check(); err != nil {
		return r, err
	}
	if s.ConnectTimeout == 0 {
		s.ConnectTimeout = 10 * time.Second
	}
	r.Start = time.Now()
	c, err := dial(s.To, s.CC, s.ConnectTimeout)
	if err != nil {
		return r, err
	}
	defer c.Close()
	r.Connect = time.Since(r.Start)
	r.Local = c.LocalAddr().(*net.TCPAddr).AddrPort()
	r.Remote = c.RemoteAddr().(*net.TCPAddr).AddrPort()
	if r.CCStart, err = congestion(c); err != nil {
		return r, fmt.Errorf("read congestion control: %w", err)
	}
	if r.Cookie, err = cookie(c); err != nil {
		return r, fmt.Errorf("read socket cookie: %w", err)
	}
	var head [orderSize]byte
	o.encode(head[:])
	if _, err := c.Write(head[:]); err != nil {
		return r, fmt.Errorf("send order: %w", err)
	}
	if s.Download {
		err = r.receive(c, s)
	} else {
		err = r.send(c, s)
	}
	return r, err
}

// receive is the client's side of a download.
func (r *BulkResult) receive(c *net.TCPConn, s BulkSpec) error {
	var t tally
	c.SetReadDeadline(time.Now().Add(idle))
	if err := t.read(c); err != nil {
		return fmt.Errorf("read server's congestion control: %w", err)
	}
	r.CCStart, r.CCEnd = t.CC.String(), t.CC.String()
	t = count(c, s.Duration, make([]byte, chunk), time.Now())
	r.Elapsed = t.Elapsed
	r.setReceived(t.Bytes, s.Duration)
	return nil
}

// send is the client's side of an upload.
func (r *BulkResult) send(c *net.TCPConn, s BulkSpec) error {
	start := time.Now()
	var err error
	if s.Limit > 0 {
		err = sendSlowly(c, s.Duration, s.Limit)
	} else {
		err = sendFor(c, s.Duration, make([]byte, chunk))
	}
	r.Elapsed = time.Since(start)
	if err := r.account(c); err != nil {
		return err
	}
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	r.setReceived(r.BytesAcked, s.Duration)
	if s.Abort {
		abort(c)
		return nil
	}
	if err := c.CloseWrite(); err != nil {
		return fmt.Errorf("end sending: %w", err)
	}
	var t tally
	c.SetReadDeadline(time.Now().Add(drain))
	if err := t.read(c); err != nil {
		return nil // what was acknowledged stands for it
	}
	r.setReceived(t.Bytes, s.Duration)
	return nil
}

func (r *BulkResult) setReceived(bytes uint64, d time.Duration) {
	r.Received = bytes
	r.Goodput = float64(bytes) * 8 / d.Seconds()
}

// account reads what the kernel knows at the end of sending.
func (r *BulkResult) account(c *net.TCPConn) error {
	info, err := tcpInfo(c)
	if err != nil {
		return fmt.Errorf("read tcp_info: %w", err)
	}
	if r.CCEnd, err = congestion(c); err != nil {
		return fmt.Errorf("read congestion control: %w", err)
	}
	r.BytesAcked = info.Bytes_acked
	r.Retrans = info.Total_retrans
	r.RTOs = info.Total_rto
	r.MinRTT = time.Duration(info.Min_rtt) * time.Microsecond
	r.SRTT = time.Duration(info.Rtt) * time.Microsecond
	return nil
}

// sendSlowly writes at a rate below what the path could take: a small write
// every 5 ms.
func sendSlowly(c net.Conn, d time.Duration, bytesPerSecond uint64) error {
	const every = 5 * time.Millisecond
	piece := make([]byte, max(1, bytesPerSecond*uint64(every)/uint64(time.Second)))
	if len(piece) > maxMessage {
		return errors.New("limit is too high to be a limit")
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
