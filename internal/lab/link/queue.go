package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tcpilot/tcpilot/internal/lab/topology"
	"golang.org/x/sys/unix"
)

// Delay holds packets that arrive at one end of a wire for a while. It is for
// kernels without netem: the packets wait in an NFQUEUE of the kernel, and only
// their numbers come up to this process, which releases them in batches when
// their time has come.
type Delay struct {
	end   *topology.End
	fd    int
	wake  int // eventfd: the worker shall look at stop
	delay atomic.Int64
	stop  atomic.Bool
	done  sync.WaitGroup
}

// delayQueue is the queue number; one Delay fits each namespace.
const delayQueue = 77

// delayRoom is how many packets may wait.
const delayRoom = 1 << 18

// NewDelay delays IPv4 and IPv6 packets that arrive at end; one per host.
func NewDelay(end *topology.End, d time.Duration) (*Delay, error) {
	q := &Delay{end: end, fd: -1, wake: -1}
	if err := q.open(); err != nil {
		q.closeFDs()
		return nil, fmt.Errorf("delay arrivals at %s of %s: %w", end.Device, end.Host.Name, err)
	}
	q.Set(d)
	q.done.Go(q.work)
	if err := q.rules("-A"); err != nil {
		return nil, errors.Join(fmt.Errorf("delay arrivals at %s of %s: %w", end.Device, end.Host.Name, err), q.Close())
	}
	return q, nil
}

// Set changes the delay of packets that arrive from now on. A shorter one does
// not reorder: packets leave in the order of arrival.
func (q *Delay) Set(d time.Duration) { q.delay.Store(int64(max(d, 0))) }

// Close takes the delay off; packets that wait are dropped.
func (q *Delay) Close() error {
	err := q.rules("-D")
	q.stop.Store(true)
	unix.Write(q.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	q.done.Wait()
	q.closeFDs()
	return err
}

func (q *Delay) closeFDs() {
	for _, fd := range []int{q.fd, q.wake} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func (q *Delay) rules(verb string) error {
	var errs []error
	for _, tables := range []string{"iptables-legacy", "ip6tables-legacy"} {
		_, err := q.end.Host.Run(tables, "-w", "-t", "raw", verb, "PREROUTING", "-i", q.end.Device,
			"-j", "NFQUEUE", "--queue-num", fmt.Sprint(delayQueue))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// The wire format of include/uapi/linux/netfilter/nfnetlink_queue.h.
const (
	nfqSubsystem    = 3 << 8       // NFNL_SUBSYS_QUEUE
	nfqPacket       = nfqSubsystem // NFQNL_MSG_PACKET is 0
	nfqConfig       = nfqSubsystem | 2
	nfqVerdictBatch = nfqSubsystem | 3

	nfqaPacketHdr  = 1
	nfqaVerdictHdr = 2
	nfqaCfgCmd     = 1
	nfqaCfgParams  = 2
	nfqaCfgMaxLen  = 3
	nfqaCfgMask    = 4
	nfqaCfgFlags   = 5

	nfqCmdBind  = 1
	nfqCopyMeta = 1
	nfqFlagGSO  = 4 // aggregates stay whole
	nfAccept    = 1
)

// open makes the queue in the end's namespace.
func (q *Delay) open() error {
	err := q.end.Host.Do(func() (err error) {
		q.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	if q.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("open eventfd: %w", err)
	}
	if err := unix.Bind(q.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("bind netlink: %w", err)
	}
	// A burst must not overflow the socket: a packet whose number is lost would
	// wait for ever.
	if err := unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
		return fmt.Errorf("set receive buffer: %w", err)
	}
	be := binary.BigEndian
	bind := message(nfqConfig, unix.NLM_F_ACK).attr(nfqaCfgCmd, []byte{nfqCmdBind, 0, 0, unix.AF_INET})
	params := message(nfqConfig, unix.NLM_F_ACK).
		attr(nfqaCfgParams, append(be.AppendUint32(nil, 0), nfqCopyMeta)).
		attr(nfqaCfgMaxLen, be.AppendUint32(nil, delayRoom)).
		attr(nfqaCfgFlags, be.AppendUint32(nil, nfqFlagGSO)).
		attr(nfqaCfgMask, be.AppendUint32(nil, nfqFlagGSO))
	for _, m := range []netlinkMessage{bind, params} {
		if err := q.ask(m); err != nil {
			return fmt.Errorf("configure queue: %w", err)
		}
	}
	return nil
}

// netlinkMessage is a message to the queue subsystem; attr adds to it.
type netlinkMessage []byte

func message(kind, flags uint16) netlinkMessage {
	m := make(netlinkMessage, 0, 96)
	m = binary.NativeEndian.AppendUint32(m, 0) // length, set by finish
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, flags|unix.NLM_F_REQUEST)
	m = append(m, make([]byte, 8)...)      // sequence and port
	m = append(m, unix.AF_UNSPEC, 0, 0, 0) // struct nfgenmsg, then its queue number
	binary.BigEndian.PutUint16(m[len(m)-2:], delayQueue)
	return m
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

// ask sends a message and waits for its acknowledgement.
func (q *Delay) ask(m netlinkMessage) error {
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

// waiting is a packet in the kernel's queue.
type waiting struct {
	id  uint32
	due time.Time
}

// work takes packet numbers in and releases them when they are due.
func (q *Delay) work() {
	runtime.LockOSThread() // for the timer slack; ends with this goroutine
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	var fifo []waiting
	buf := make([]byte, 64<<10)
	for !q.stop.Load() {
		fifo = q.release(fifo, time.Now())
		timeout := (*unix.Timespec)(nil)
		if len(fifo) > 0 {
			ts := unix.NsecToTimespec(max(0, time.Until(fifo[0].due).Nanoseconds()))
			timeout = &ts
		}
		fds := []unix.PollFd{{Fd: int32(q.fd), Events: unix.POLLIN}, {Fd: int32(q.wake), Events: unix.POLLIN}}
		if n, err := unix.Ppoll(fds, timeout, nil); err != nil || n == 0 {
			continue
		}
		// A bounded run of receptions, so that releases stay in time.
		for range 64 {
			n, _, err := unix.Recvfrom(q.fd, buf, unix.MSG_DONTWAIT)
			if err != nil || n == 0 {
				break
			}
			if id, ok := packetID(buf[:n]); ok {
				fifo = append(fifo, waiting{id, time.Now().Add(time.Duration(q.delay.Load()))})
			}
		}
	}
}

// release lets all go that are due: the verdict for one covers those before it.
func (q *Delay) release(fifo []waiting, now time.Time) []waiting {
	n := 0
	for n < len(fifo) && !fifo[n].due.After(now) {
		n++
	}
	if n == 0 {
		return fifo
	}
	verdict := binary.BigEndian.AppendUint32(nil, nfAccept)
	verdict = binary.BigEndian.AppendUint32(verdict, fifo[n-1].id)
	unix.Write(q.fd, message(nfqVerdictBatch, 0).attr(nfqaVerdictHdr, verdict).finish())
	return fifo[n:]
}

// packetID reads the number of a packet message.
func packetID(m []byte) (id uint32, ok bool) {
	const head = unix.NLMSG_HDRLEN + 4
	if len(m) < head || binary.NativeEndian.Uint16(m[4:]) != nfqPacket {
		return 0, false
	}
	for a := m[head:]; len(a) >= 8; {
		size, kind := int(binary.NativeEndian.Uint16(a)), binary.NativeEndian.Uint16(a[2:])
		if size < 4 || size > len(a) {
			return 0, false
		}
		if kind == nfqaPacketHdr {
			return binary.BigEndian.Uint32(a[4:]), true
		}
		a = a[min(len(a), (size+3)&^3):]
	}
	return 0, false
}
