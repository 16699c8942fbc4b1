package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/tcpilot/tcpilot/lab/topology"
	"golang.org/x/sys/unix"
)

// The wire format of include/uapi/linux/netfilter/nfnetlink_queue.h.
const (
	nfqSubsystem    = 3 << 8       // NFNL_SUBSYS_QUEUE
	nfqPacket       = nfqSubsystem // NFQNL_MSG_PACKET is 0
	nfqVerdict      = nfqSubsystem | 1
	nfqConfig       = nfqSubsystem | 2
	nfqVerdictBatch = nfqSubsystem | 3

	nfqaPacketHdr  = 1
	nfqaVerdictHdr = 2
	nfqaMark       = 3
	nfqaPriority   = 21
	nfqaCfgCmd     = 1
	nfqaCfgParams  = 2
	nfqaCfgMaxLen  = 3
	nfqaCfgMask    = 4
	nfqaCfgFlags   = 5

	nfqCmdBind  = 1
	nfqCopyMeta = 1
	nfqFlagGSO  = 4 // aggregates stay whole
	nfAccept    = 1

	attrTypeMask = 0x3fff // NLA_TYPE_MASK
)

const (
	// nfqRoom is how many packets may wait in the kernel: 2.4 s of small packets at
	// 200 Mbit/s, 12 s of full ones at 1 Gbit/s.
	nfqRoom = 1 << 20
	// nfqBuffer, in bytes, holds some 80,000 packet messages, so that a burst does not
	// overflow while the worker is not reading.
	nfqBuffer = 64 << 20
)

// nfqueue is the socket of one queue of a namespace.
type nfqueue struct {
	host   *topology.Host
	number uint16
	fd     int
}

// openQueue makes a queue in the host's namespace.
func openQueue(h *topology.Host, number uint16) (_ *nfqueue, err error) {
	q := &nfqueue{host: h, number: number}
	err = h.Do(func() (err error) {
		q.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	if err := q.configure(); err != nil {
		unix.Close(q.fd)
		return nil, fmt.Errorf("configure queue: %w", err)
	}
	return q, nil
}

func (q *nfqueue) configure() error {
	if err := unix.Bind(q.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, nfqBuffer); err != nil {
		return err
	}
	// The queue counts overflows (drops), so reads need not fail for them.
	if err := unix.SetsockoptInt(q.fd, unix.SOL_NETLINK, unix.NETLINK_NO_ENOBUFS, 1); err != nil {
		return err
	}
	be := binary.BigEndian
	bind := message(nfqConfig, unix.NLM_F_ACK, q.number).attr(nfqaCfgCmd, []byte{nfqCmdBind, 0, 0, unix.AF_INET})
	params := message(nfqConfig, unix.NLM_F_ACK, q.number).
		attr(nfqaCfgParams, append(be.AppendUint32(nil, 0), nfqCopyMeta)).
		attr(nfqaCfgMaxLen, be.AppendUint32(nil, nfqRoom)).
		attr(nfqaCfgFlags, be.AppendUint32(nil, nfqFlagGSO)).
		attr(nfqaCfgMask, be.AppendUint32(nil, nfqFlagGSO))
	return errors.Join(q.ask(bind), q.ask(params))
}

// ask sends a message and waits for its acknowledgement.
func (q *nfqueue) ask(m netlinkMessage) error {
	if _, err := unix.Write(q.fd, m.finish()); err != nil {
		return err
	}
	var buf [4096]byte
	n, err := unix.Read(q.fd, buf[:])
	if err != nil {
		return err
	}
	if n < unix.NLMSG_HDRLEN+4 || binary.NativeEndian.Uint16(buf[4:]) != unix.NLMSG_ERROR {
		return errors.New("no acknowledgement")
	}
	if code := int32(binary.NativeEndian.Uint32(buf[unix.NLMSG_HDRLEN:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// drops is the number of packets that the queue dropped because it was full, or because its
// socket was.
func (q *nfqueue) drops() (n uint64, err error) {
	var table []byte
	err = q.host.Do(func() (err error) {
		table, err = os.ReadFile("/proc/thread-self/net/netfilter/nfnetlink_queue")
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read drops of queue: %w", err)
	}
	return queueDrops(string(table), q.number)
}

// queueDrops finds a queue in the table of nfnetlink_queue.c (seq_show): its
// number, port, length, copy mode, copy range, drops of two kinds, and more.
func queueDrops(table string, number uint16) (uint64, error) {
	for line := range strings.Lines(table) {
		var queue, port, length, mode, copied, full, unread uint64
		_, err := fmt.Sscan(line, &queue, &port, &length, &mode, &copied, &full, &unread)
		if err != nil {
			return 0, fmt.Errorf("read drops of queue: %w in %q", err, line)
		}
		if queue == uint64(number) {
			return full + unread, nil
		}
	}
	return 0, fmt.Errorf("read drops of queue: there is no queue %d", number)
}

// close drops packets that still wait.
func (q *nfqueue) close() error { return unix.Close(q.fd) }

// netlinkMessage is a message to the queue subsystem; attr adds to it.
type netlinkMessage []byte

func message(kind, flags, queue uint16) netlinkMessage {
	m := make(netlinkMessage, 0, 96)
	m = binary.NativeEndian.AppendUint32(m, 0) // length, set by finish
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, flags|unix.NLM_F_REQUEST)
	m = append(m, make([]byte, 8)...) // sequence and port
	m = append(m, unix.AF_UNSPEC, 0)  // struct nfgenmsg
	return binary.BigEndian.AppendUint16(m, queue)
}

func (m netlinkMessage) attr(kind uint16, data []byte) netlinkMessage {
	m = binary.NativeEndian.AppendUint16(m, uint16(4+len(data)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = append(m, data...)
	for len(m)%4 != 0 {
		m = append(m, 0)
	}
	return m
}

func (m netlinkMessage) finish() []byte {
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	return m
}

// verdict is a message that accepts a packet, or with nfqVerdictBatch all packets
// up to it, and clears mark and priority.
type verdict []byte

func newVerdict(kind, queue uint16) verdict {
	accept := binary.BigEndian.AppendUint32(nil, nfAccept)
	return message(kind, 0, queue).
		attr(nfqaMark, make([]byte, 4)).
		attr(nfqaPriority, make([]byte, 4)).
		attr(nfqaVerdictHdr, append(accept, 0, 0, 0, 0)).finish() // the id is the last field
}

// send accepts the packet with this number.
func (v verdict) send(fd int, id uint32) error {
	binary.BigEndian.PutUint32(v[len(v)-4:], id)
	_, err := unix.Write(fd, v)
	return err
}

// packetMessage is what the worker reads of a packet.
type packetMessage struct {
	id       uint32 // ascends by one for each packet of the queue
	mark     uint32 // 0 if the message has none
	priority uint32 // 0 if the message has none
}

// parsePacket reads a message of the queue; ok is false if it is not of a packet, or is
// cut off before the packet's id.
func parsePacket(m []byte) (p packetMessage, ok bool) {
	const head = unix.NLMSG_HDRLEN + 4 // struct nfgenmsg
	if len(m) < head || binary.NativeEndian.Uint16(m[4:]) != nfqPacket {
		return p, false
	}
	for a := m[head:]; len(a) >= 8; {
		size, kind := int(binary.NativeEndian.Uint16(a)), binary.NativeEndian.Uint16(a[2:])&attrTypeMask
		if size < 4 || size > len(a) {
			break
		}
		switch {
		case kind == nfqaPacketHdr && size >= 8:
			p.id, ok = binary.BigEndian.Uint32(a[4:]), true
		case kind == nfqaMark && size >= 8:
			p.mark = binary.BigEndian.Uint32(a[4:])
		case kind == nfqaPriority && size >= 8:
			p.priority = binary.BigEndian.Uint32(a[4:])
		}
		a = a[min(len(a), (size+3)&^3):]
	}
	return p, ok
}
