package link

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/lab/topology"
	"golang.org/x/sys/unix"
)

// flight is when a packet of a stream arrived, and how long it took.
type flight struct {
	seq   int
	delay time.Duration // from write to read
	at    time.Time     // of the read
}

// stream sends count UDP packets, a gap apart, and returns those that arrive, in
// the order of arrival. during, if any, runs halfway.
func stream(t testing.TB, from, to *topology.End, count, payload int, gap time.Duration, during func() error) []flight {
	t.Helper()
	return exchange(t, from, to, count, func(s *sender) error { return s.paced(payload, gap, during) })
}

// streamAll sends a stream of which all packets must arrive, except those that the
// machine dropped before the link because its backlog was full.
func streamAll(t testing.TB, from, to *topology.End, count, payload int, gap time.Duration, during func() error) []flight {
	t.Helper()
	drops := backlogDrops(t)
	all := stream(t, from, to, count, payload, gap, during)
	must(t, complete(all, count-drops()))
	return all
}

// aggregates sends count UDP packets at once, in aggregates of the given number of
// segments.
func aggregates(t testing.TB, from, to *topology.End, count, payload, segments int) []flight {
	t.Helper()
	return exchange(t, from, to, count, func(s *sender) error {
		if err := unix.SetsockoptInt(s.fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, payload); err != nil {
			return err
		}
		packets := make([]byte, segments*payload)
		for i := 0; i < count; i += segments {
			if err := s.send(i, packets, payload); err != nil {
				return err
			}
		}
		return nil
	})
}

// exchange has a sender send packets and returns those that arrive.
func exchange(t testing.TB, from, to *topology.End, count int, run func(*sender) error) []flight {
	t.Helper()
	var in net.PacketConn
	must(t, to.Host.Do(func() (err error) {
		in, err = net.ListenPacket("udp4", netip.AddrPortFrom(to.Addr4.Addr(), 9).String())
		return err
	}))
	defer in.Close()
	raw, err := in.(*net.UDPConn).SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 512<<20)
	}))
	s := &sender{begin: time.Now(), sent: make([]atomic.Int64, count)}
	done, last := make(chan []flight), make(chan struct{})
	go func() { done <- s.arrivals(in, last) }()
	err = from.Host.Do(func() error {
		unpin, err := pin()
		if err != nil {
			return err
		}
		defer unpin()
		if s.fd, err = connectUDP(to.Addr4.Addr()); err != nil {
			return err
		}
		defer unix.Close(s.fd)
		return run(s)
	})
	close(last)
	all := <-done
	must(t, err)
	return all
}

// pin keeps the calling thread on the last processor that it may use. Packets that a
// thread sends from two processors may overtake each other in their backlogs, before
// they reach the link.
func pin() (undo func(), err error) {
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, err
	}
	for cpu := len(before)*bits.UintSize - 1; cpu >= 0 && one.Count() == 0; cpu-- {
		if before.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return nil, err
	}
	return func() { unix.SchedSetaffinity(0, &before) }, nil
}

func connectUDP(to netip.Addr) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 64<<20); err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: to.As4()})
	}
	if err != nil {
		unix.Close(fd)
	}
	return fd, err
}

// sender sends numbered packets and records when it sent each.
type sender struct {
	fd    int
	begin time.Time
	sent  []atomic.Int64 // nanoseconds since begin, by number
}

// send sends packets of the given size by one write, numbered from seq on.
func (s *sender) send(seq int, packets []byte, size int) error {
	for at := 0; at < len(packets); at += size {
		binary.BigEndian.PutUint32(packets[at:], uint32(seq))
		s.sent[seq].Store(int64(time.Since(s.begin)))
		seq++
	}
	if _, err := unix.Write(s.fd, packets); err != nil && err != unix.ENOBUFS {
		return err
	}
	return nil
}

// paced sends all packets, a gap apart.
func (s *sender) paced(payload int, gap time.Duration, during func() error) error {
	packet := make([]byte, payload)
	for i := range s.sent {
		if during != nil && i == len(s.sent)/2 {
			if err := during(); err != nil {
				return err
			}
		}
		// If it is late, this does not sleep. It never spins: on an emulated processor
		// that would stop the others.
		time.Sleep(time.Until(s.begin.Add(time.Duration(i) * gap)))
		if err := s.send(i, packet, payload); err != nil {
			return err
		}
	}
	return nil
}

// quiet without an arrival, twice in a row, ends a stream: it is longer than any gap
// between arrivals in the tests. Once is not enough: after a stall of the machine the
// time has passed although packets wait.
const quiet = 200 * time.Millisecond

// arrivals reads packets until all have arrived, or until no more arrive after the last
// was sent.
func (s *sender) arrivals(in net.PacketConn, last <-chan struct{}) (all []flight) {
	buf := make([]byte, 2048)
	for timeouts := 0; len(all) < len(s.sent); {
		in.SetReadDeadline(time.Now().Add(quiet))
		n, _, err := in.ReadFrom(buf)
		if err != nil {
			select {
			case <-last:
				timeouts++
			default:
			}
			if timeouts == 2 {
				return all
			}
			continue
		}
		timeouts = 0
		if n >= 4 {
			now := time.Now()
			seq := int(binary.BigEndian.Uint32(buf))
			all = append(all, flight{seq, now.Sub(s.begin) - time.Duration(s.sent[seq].Load()), now})
		}
	}
	return all
}

// bitsPerSecond is the rate at which full frames of a stream arrived.
func bitsPerSecond(all []flight) float64 {
	return float64(len(all)-1) * 8 * minFrame / all[len(all)-1].at.Sub(all[0].at).Seconds()
}

// complete returns an error if packets of a stream are missing.
func complete(all []flight, count int) error {
	if len(all) < count {
		return fmt.Errorf("%d of %d packets arrived", len(all), count)
	}
	return nil
}

// overtaken counts packets that arrived after a packet that was sent later.
func overtaken(all []flight) (n int) {
	last := 0
	for _, f := range all {
		if f.seq < last {
			n++
		}
		last = max(last, f.seq)
	}
	return n
}

// delays returns the delays of a stream's packets, shortest first.
func delays(all []flight) []time.Duration {
	var d []time.Duration
	for _, f := range all {
		d = append(d, f.delay)
	}
	slices.Sort(d)
	return d
}

func median[T any](sorted []T) T { return sorted[len(sorted)/2] }
