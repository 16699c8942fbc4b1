package workload

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// From include/uapi/linux/sock_diag.h and inet_diag.h.
const (
	tcpDestroyed4  = 1 // SKNLGRP_INET_TCP_DESTROY
	tcpDestroyed6  = 3 // SKNLGRP_INET6_TCP_DESTROY
	diagInfo       = 2 // INET_DIAG_INFO
	diagCong       = 4 // INET_DIAG_CONG
	diagMsgSize    = 72
	diagRemotePort = 6 // of inet_diag_msg: the local port is at 4, both in network order
)

const (
	// monitorPoll is the interval at which open connections are listed. A connection takes
	// three round trips at least, and the lab's paths with a web server have 10 ms and
	// more.
	monitorPoll = 20 * time.Millisecond
	// sendingStates are those in which a socket still sends: 1 << TCP_ESTABLISHED,
	// FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK.
	sendingStates = 1<<1 | 1<<4 | 1<<5 | 1<<8 | 1<<9
	// monitorBuffer holds the ends of some thousand connections, in bytes.
	monitorBuffer = 4 << 20
)

// socketMonitor keeps the accounts of connections whose server keeps none, by the client's
// port. At the end of a socket the kernel reports its tcp_info (sock_diag's group of
// destroyed sockets), but not its congestion control, which is read while the connection is
// open.
type socketMonitor struct {
	port  uint16 // the server's
	ends  *nl.NetlinkSocket
	lists *nl.NetlinkSocket
	stop  chan struct{}
	going sync.WaitGroup

	mu       sync.Mutex
	controls map[uint16]ccSeen
	accounts map[uint16][]load.Account // a port may be used again
}

// ccSeen is the congestion control of a connection when it was first and last
// seen.
type ccSeen struct{ first, last string }

// newSocketMonitor begins to keep the accounts of the server at a port of a host. The
// caller must close it.
func newSocketMonitor(h *topology.Host, port int) (s *socketMonitor, err error) {
	s = &socketMonitor{port: uint16(port), stop: make(chan struct{}),
		controls: map[uint16]ccSeen{}, accounts: map[uint16][]load.Account{}}
	err = h.Do(func() (err error) {
		if s.ends, err = nl.Subscribe(unix.NETLINK_SOCK_DIAG, tcpDestroyed4, tcpDestroyed6); err != nil {
			return err
		}
		if s.lists, err = nl.Subscribe(unix.NETLINK_SOCK_DIAG); err != nil {
			s.ends.Close()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open sock_diag of %s: %w", h.Name, err)
	}
	if err := s.ends.SetReceiveBufferSize(monitorBuffer, true); err != nil {
		s.ends.SetReceiveBufferSize(monitorBuffer, false) // a smaller one, by the limit of net.core.rmem_max
	}
	s.lists.SetReceiveTimeout(&unix.Timeval{Sec: 1})
	s.going.Go(s.follow)
	s.going.Go(s.watch)
	return s, nil
}

func (s *socketMonitor) close() {
	close(s.stop)
	s.ends.Close()
	s.going.Wait()
	s.lists.Close()
}

// follow records the ends of sockets until close.
func (s *socketMonitor) follow() {
	for {
		messages, _, err := s.ends.Receive()
		select {
		case <-s.stop:
			return
		default:
		}
		if err != nil {
			time.Sleep(time.Millisecond) // the buffer overflowed: connections have no account
			continue
		}
		for _, m := range messages {
			if port, attrs, ok := s.parse(m); ok {
				s.ended(port, attrs)
			}
		}
	}
}

// watch lists the sockets that are open until close.
func (s *socketMonitor) watch() {
	tick := time.NewTicker(monitorPoll)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			s.list(family)
		}
	}
}

// list reads the congestion controls of one family's sockets. Failures are ignored, because
// the next tick reads them again.
func (s *socketMonitor) list(family uint8) {
	request := nl.NewNetlinkRequest(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	request.AddData(diagRequest(family))
	if err := s.lists.Send(request); err != nil {
		return
	}
	for {
		messages, _, err := s.lists.Receive()
		if err != nil {
			return
		}
		for _, m := range messages {
			switch m.Header.Type {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				return
			}
			if port, attrs, ok := s.parse(m); ok {
				s.seen(port, unix.ByteSliceToString(attrs[diagCong]))
			}
		}
	}
}

// diagRequest is inet_diag_req_v2 for TCP.
type diagRequest uint8

func (r diagRequest) Len() int { return 8 + 48 }

func (r diagRequest) Serialize() []byte {
	b := make([]byte, r.Len())
	b[0], b[1], b[2] = byte(r), unix.IPPROTO_TCP, 1<<(diagCong-1)
	binary.NativeEndian.PutUint32(b[4:], sendingStates)
	return b
}

// parse returns the client's port and the attributes of an inet_diag_msg of one of the
// server's sockets.
func (s *socketMonitor) parse(m syscall.NetlinkMessage) (port uint16, attrs map[uint16][]byte, ok bool) {
	if len(m.Data) < diagMsgSize || binary.BigEndian.Uint16(m.Data[diagRemotePort-2:]) != s.port {
		return 0, nil, false
	}
	list, err := nl.ParseRouteAttr(m.Data[diagMsgSize:])
	if err != nil {
		return 0, nil, false
	}
	attrs = map[uint16][]byte{}
	for _, a := range list {
		attrs[a.Attr.Type] = a.Value
	}
	port = binary.BigEndian.Uint16(m.Data[diagRemotePort:])
	return port, attrs, port != 0
}

func (s *socketMonitor) seen(port uint16, cc string) {
	if cc == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.controls[port]
	if c.first == "" {
		c.first = cc
	}
	c.last = cc
	s.controls[port] = c
}

func (s *socketMonitor) ended(port uint16, attrs map[uint16][]byte) {
	raw := attrs[diagInfo]
	if len(raw) == 0 {
		return
	}
	// The tcp_info of an older kernel is shorter: missing members are 0.
	var info unix.TCPInfo
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info)), raw)
	if info.Data_segs_out == 0 {
		return // nothing was sent: not a request of the traffic
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.controls[port]
	delete(s.controls, port)
	s.accounts[port] = append(s.accounts[port], load.Account{
		CCStart: c.first, CCEnd: c.last,
		BytesAcked: info.Bytes_acked, Segments: info.Data_segs_out, Retrans: info.Total_retrans, RTOs: uint32(info.Total_rto),
		MinRTT: time.Duration(info.Min_rtt) * time.Microsecond, SRTT: time.Duration(info.Rtt) * time.Microsecond,
	})
}

// account waits until the deadline for the first account of a port, and removes it. It must
// be called for connections in the order in which they began, because ports are used again.
func (s *socketMonitor) account(ctx context.Context, port uint16, deadline time.Time) (a load.Account, ok bool) {
	for {
		s.mu.Lock()
		if list := s.accounts[port]; len(list) > 0 {
			s.accounts[port] = list[1:]
			s.mu.Unlock()
			return list[0], true
		}
		s.mu.Unlock()
		if time.Now().After(deadline) || !load.Pause(ctx, time.Millisecond) {
			return a, false
		}
	}
}
