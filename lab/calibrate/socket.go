package calibrate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/tcpilot/tcpilot/lab/topology"
	"golang.org/x/sys/unix"
)

// A probe's payload begins with its stream, its number and the time it was sent.
const headLen = 16

// Sizes of the headers around a payload, in bytes.
const (
	ethernetHead = 14
	udpHead      = 8
	// packetLen is the largest IP packet; links have Ethernet's MTU.
	packetLen = 1500
	// maxGroup is how many full packets one aggregate holds (64 KB).
	maxGroup = 40
)

// clock counts from here; both ends of a path use it, because they are in one process.
var clock = time.Now()

func now() time.Duration { return time.Since(clock) }

// socket is a UDP socket in a host's namespace.
type socket struct {
	*net.UDPConn
	addr netip.AddrPort
}

// open makes a socket whose packets are ECN-capable, and whose buffer is large enough for
// packets that arrive while this process waits for a processor.
func open(h *topology.Host, at netip.Addr) (*socket, error) {
	var s socket
	err := h.Do(func() (err error) {
		s.UDPConn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open socket in %s: %w", h.Name, err)
	}
	s.addr = s.LocalAddr().(*net.UDPAddr).AddrPort()
	options := [][3]int{
		{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64 << 20},
		{unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4 << 20},
		{unix.SOL_UDP, unix.UDP_GRO, 1},
	}
	if at.Is4() {
		options = append(options, [3]int{unix.IPPROTO_IP, unix.IP_TOS, ect0}, [3]int{unix.IPPROTO_IP, unix.IP_RECVTOS, 1})
	} else {
		options = append(options, [3]int{unix.IPPROTO_IPV6, unix.IPV6_TCLASS, ect0}, [3]int{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1})
	}
	if err := s.set(options); err != nil {
		s.Close()
		return nil, fmt.Errorf("set options of socket in %s: %w", h.Name, err)
	}
	return &s, nil
}

// The ECN field of an IP header (RFC 3168, section 5).
const (
	ect0   = 2
	ce     = 3
	ecnAll = 3
)

func (s *socket) set(options [][3]int) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var errs []error
	err = raw.Control(func(fd uintptr) {
		for _, o := range options {
			errs = append(errs, unix.SetsockoptInt(int(fd), o[0], o[1], o[2]))
		}
	})
	return errors.Join(append(errs, err)...)
}

// head is the header in a probe's payload.
type head struct {
	stream, seq uint32
	sent        time.Duration
}

func (h head) put(b []byte) {
	binary.NativeEndian.PutUint32(b, h.stream)
	binary.NativeEndian.PutUint32(b[4:], h.seq)
	binary.NativeEndian.PutUint64(b[8:], uint64(h.sent))
}

func readHead(b []byte) head {
	return head{binary.NativeEndian.Uint32(b), binary.NativeEndian.Uint32(b[4:]), time.Duration(binary.NativeEndian.Uint64(b[8:]))}
}

// arrival is a probe that arrived.
type arrival struct {
	head
	at     time.Duration
	marked bool
}

// delay is the one-way delay.
func (a arrival) delay() time.Duration { return a.at - a.sent }

// drain: after the deadline, reading ends when nothing arrives for so long, so that
// packets that wait for a late reader still count.
const drain = 10 * time.Millisecond

// receive passes on packets that arrive until the read deadline.
func (s *socket) receive(each func(a arrival, payload []byte)) error {
	buf, oob := make([]byte, 64<<10), make([]byte, 256)
	idle := false
	for {
		n, oobn, _, _, err := s.ReadMsgUDPAddrPort(buf, oob)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if idle {
				return nil
			}
			idle = true
			s.SetReadDeadline(time.Now().Add(drain))
			continue
		}
		if err != nil {
			return fmt.Errorf("receive probes: %w", err)
		}
		idle = false
		a := arrival{at: now()}
		size := n
		if err := ancillary(oob[:oobn], &a.marked, &size); err != nil {
			return err
		}
		for rest := buf[:n]; len(rest) >= headLen; rest = rest[min(size, len(rest)):] {
			a.head = readHead(rest)
			each(a, rest[:min(size, len(rest))])
		}
	}
}

// ancillary reads the ECN mark, and the size of the packets in an aggregate.
func ancillary(oob []byte, marked *bool, size *int) error {
	for len(oob) > 0 {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return fmt.Errorf("read marks: %w", err)
		}
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS,
			h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS:
			*marked = data[0]&ecnAll == ce // the first byte of either, on little-endian machines
		case h.Level == unix.SOL_UDP && h.Type == unix.UDP_GRO && len(data) >= 2:
			*size = max(headLen, int(binary.NativeEndian.Uint16(data)))
		}
		oob = rest
	}
	return nil
}

// segmentation makes the kernel split one long payload into packets of the given size.
func segmentation(size int) []byte {
	oob := make([]byte, unix.CmsgSpace(2))
	binary.NativeEndian.PutUint64(oob, uint64(unix.CmsgLen(2)))
	binary.NativeEndian.PutUint32(oob[8:], unix.SOL_UDP)
	binary.NativeEndian.PutUint32(oob[12:], unix.UDP_SEGMENT)
	binary.NativeEndian.PutUint16(oob[16:], uint16(size))
	return oob
}
