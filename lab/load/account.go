package load

import (
	"fmt"
	"net"
	"time"
)

// Account has what the kernel of the sending host recorded of a connection: tcp_info, and
// congestion controls.
type Account struct {
	// CCStart and CCEnd are the congestion controls right after the connection was
	// established, and at the end.
	CCStart, CCEnd string
	BytesAcked     uint64
	Segments       uint32 // with data, retransmits included
	Retrans        uint32 // segments
	RTOs           uint32 // Linux 6.7 and later
	MinRTT, SRTT   time.Duration
	Points         []Point
}

// Point is the kernel's state of a connection at one time.
type Point struct {
	At         Time
	BytesAcked uint64
	SRTT       time.Duration
	Cwnd       uint32 // packets
	Retrans    uint32 // segments so far
	CC         string
}

// Limits of points.
const (
	// MinSample is the minimum interval between points of a connection.
	MinSample = time.Millisecond
	// maxPoints is the maximum number of points of a connection; later ones are not taken.
	maxPoints = 1 << 16
)

// observer keeps the account of a connection while other goroutines use the connection.
type observer struct {
	c    *net.TCPConn
	a    Account
	stop chan struct{}
	done chan struct{}
}

// observe begins an account, with a point every interval, or without points if it is 0.
// The caller must call end.
func observe(c *net.TCPConn, every time.Duration) (*observer, error) {
	o := &observer{c: c}
	var err error
	if o.a.CCStart, err = congestion(c); err != nil {
		return nil, fmt.Errorf("read congestion control: %w", err)
	}
	if every > 0 {
		o.stop, o.done = make(chan struct{}), make(chan struct{})
		go o.sample(every)
	}
	return o, nil
}

func (o *observer) sample(every time.Duration) {
	defer close(o.done)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for len(o.a.Points) < maxPoints {
		select {
		case <-o.stop:
			return
		case <-tick.C:
		}
		p, err := point(o.c)
		if err != nil {
			return // the connection is closed
		}
		o.a.Points = append(o.a.Points, p)
	}
}

func point(c *net.TCPConn) (Point, error) {
	info, err := tcpInfo(c)
	if err != nil {
		return Point{}, err
	}
	cc, err := congestion(c)
	return Point{
		At:         Now(),
		BytesAcked: info.Bytes_acked,
		SRTT:       time.Duration(info.Rtt) * time.Microsecond,
		Cwnd:       info.Snd_cwnd,
		Retrans:    info.Total_retrans,
		CC:         cc,
	}, err
}

// end closes the account. The connection must still be open; its peer may be gone.
func (o *observer) end() (Account, error) {
	if o.stop != nil {
		close(o.stop)
		<-o.done
	}
	info, err := tcpInfo(o.c)
	if err != nil {
		return o.a, fmt.Errorf("read tcp_info: %w", err)
	}
	if o.a.CCEnd, err = congestion(o.c); err != nil {
		return o.a, fmt.Errorf("read congestion control: %w", err)
	}
	o.a.BytesAcked = info.Bytes_acked
	o.a.Segments = info.Data_segs_out
	o.a.Retrans = info.Total_retrans
	o.a.RTOs = uint32(info.Total_rto)
	o.a.MinRTT = time.Duration(info.Min_rtt) * time.Microsecond
	o.a.SRTT = time.Duration(info.Rtt) * time.Microsecond
	return o.a, nil
}
