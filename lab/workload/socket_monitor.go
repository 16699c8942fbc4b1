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
	// ledgerPoll is how often the connections that are open are listed. A connection
	// takes three round trips at least; the lab's paths with a web server have 10 ms
	// and more.
	ledgerPoll = 20 * time.Millisecond
	// ledgerStates are those in which a socket still sends: 1 << TCP_ESTABLISHED,
	// FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK.
	ledgerStates = 1<<1 | 1<<4 | 1<<5 | 1<<8 | 1<<9
	// ledgerBuffer holds the ends of some thousand connections, in bytes.
	ledgerBuffer = 4 << 20
)

// ledger keeps the accounts of connections whose server keeps none, by the client's port.
// At each socket's end the kernel sends its tcp_info, but not its congestion control, which
// is read while the connection is open.
type ledger struct {
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

// openLedger begins to keep the accounts of a server on a host. Its owner closes
// it.
func openLedger(h *topology.Host, port int) (l *ledger, err error) {
	l = &ledger{port: uint16(port), stop: make(chan struct{}),
		controls: map[uint16]ccSeen{}, accounts: map[uint16][]load.Account{}}
	err = h.Do(func() (err error) {
		if l.ends, err = nl.Subscribe(unix.NETLINK_SOCK_DIAG, tcpDestroyed4, tcpDestroyed6); err != nil {
			return err
		}
		if l.lists, err = nl.Subscribe(unix.NETLINK_SOCK_DIAG); err != nil {
			l.ends.Close()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open sock_diag of %s: %w", h.Name, err)
	}
	if err := l.ends.SetReceiveBufferSize(ledgerBuffer, true); err != nil {
		l.ends.SetReceiveBufferSize(ledgerBuffer, false) // a smaller one, by the limit of net.core.rmem_max
	}
	l.lists.SetReceiveTimeout(&unix.Timeval{Sec: 1})
	l.going.Go(l.follow)
	l.going.Go(l.watch)
	return l, nil
}

func (l *ledger) close() {
	close(l.stop)
	l.ends.Close()
	l.going.Wait()
	l.lists.Close()
}

// follow records the ends of sockets until close.
func (l *ledger) follow() {
	for {
		messages, _, err := l.ends.Receive()
		select {
		case <-l.stop:
			return
		default:
		}
		if err != nil {
			time.Sleep(time.Millisecond) // the buffer overflowed: connections have no account
			continue
		}
		for _, m := range messages {
			if port, attrs, ok := l.parse(m); ok {
				l.ended(port, attrs)
			}
		}
	}
}

// watch lists the sockets that are open until close.
func (l *ledger) watch() {
	tick := time.NewTicker(ledgerPoll)
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
		}
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			l.list(family)
		}
	}
}

// list reads the congestion controls of one family's sockets. Failures are ignored, because
// the next tick reads them again.
func (l *ledger) list(family uint8) {
	request := nl.NewNetlinkRequest(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	request.AddData(diagRequest(family))
	if err := l.lists.Send(request); err != nil {
		return
	}
	for {
		messages, _, err := l.lists.Receive()
		if err != nil {
			return
		}
		for _, m := range messages {
			switch m.Header.Type {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				return
			}
			if port, attrs, ok := l.parse(m); ok {
				l.seen(port, unix.ByteSliceToString(attrs[diagCong]))
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
	binary.NativeEndian.PutUint32(b[4:], ledgerStates)
	return b
}

// parse is an inet_diag_msg of the server's: the client's port and the attributes.
func (l *ledger) parse(m syscall.NetlinkMessage) (port uint16, attrs map[uint16][]byte, ok bool) {
	if len(m.Data) < diagMsgSize || binary.BigEndian.Uint16(m.Data[diagRemotePort-2:]) != l.port {
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

func (l *ledger) seen(port uint16, cc string) {
	if cc == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.controls[port]
	if c.first == "" {
		c.first = cc
	}
	c.last = cc
	l.controls[port] = c
}

func (l *ledger) ended(port uint16, attrs map[uint16][]byte) {
	raw := attrs[diagInfo]
	if len(raw) == 0 {
		return
	}
	// An older kernel's is shorter: missing members are 0.
	var info unix.TCPInfo
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info)), raw)
	if info.Data_segs_out == 0 {
		return // nothing was sent: not a request of the traffic
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.controls[port]
	delete(l.controls, port)
	l.accounts[port] = append(l.accounts[port], load.Account{
		CCStart: c.first, CCEnd: c.last,
		BytesAcked: info.Bytes_acked, Segments: info.Data_segs_out, Retrans: info.Total_retrans, RTOs: uint32(info.Total_rto),
		MinRTT: time.Duration(info.Min_rtt) * time.Microsecond, SRTT: time.Duration(info.Rtt) * time.Microsecond,
	})
}

// account waits until the deadline for the first account of a port, and removes it.
// Connections must call it in the order in which they began.
func (l *ledger) account(ctx context.Context, port uint16, deadline time.Time) (a load.Account, ok bool) {
	for {
		l.mu.Lock()
		if list := l.accounts[port]; len(list) > 0 {
			l.accounts[port] = list[1:]
			l.mu.Unlock()
			return list[0], true
		}
		l.mu.Unlock()
		if time.Now().After(deadline) || !load.Pause(ctx, time.Millisecond) {
			return a, false
		}
	}
}
