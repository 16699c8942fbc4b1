package cc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/rtnetlink"
)

// shape is what an emulated link does to packets.
type shape struct {
	rate   int           // bytes per second, of the bottleneck
	delay  time.Duration // each way
	buffer int           // bytes before the bottleneck
}

// testShape is a path that shows faults which loopback does not show. Its round trip is so
// long that a window of one packet gets only 1.5 % of the rate. Its buffer is one BDP.
var testShape = shape{rate: 5_000_000, delay: 10 * time.Millisecond, buffer: 100_000}

// Addresses on the link: a packet to remoteAddress comes back as sent from there. Both are in
// the range for benchmarks (RFC 2544, C.2.2), in a network namespace of the test.
const (
	localAddress  = "198.18.0.1"
	remoteAddress = "198.18.0.2"
)

// emulatedLink is a TUN device that returns each packet with its addresses exchanged. So both
// ends of a connection are on this host, and each packet crosses the simulated path.
type emulatedLink struct {
	shape
	tun  *os.File
	free time.Time // when the bottleneck has sent what it holds
	data chan packet
	acks chan packet
	done sync.WaitGroup
}

type packet struct {
	at    time.Time
	bytes []byte
}

// openEmulatedLink creates the link in the calling thread's network namespace. Packets to port
// pass the bottleneck; all others are only delayed.
func openEmulatedLink(port uint16, shape shape) (*emulatedLink, error) {
	tun, err := openTUN()
	if err != nil {
		return nil, fmt.Errorf("create a link for the test: %w", err)
	}
	const room = 4096 // packets; more than buffer and path hold
	l := &emulatedLink{shape: shape, tun: tun, data: make(chan packet, room), acks: make(chan packet, room)}
	l.done.Add(3)
	go l.read(port)
	go l.write(l.data)
	go l.write(l.acks)
	return l, nil
}

func (l *emulatedLink) close() error {
	err := l.tun.Close()
	l.done.Wait()
	return err
}

// read passes packets on to the queues until the device is closed.
func (l *emulatedLink) read(port uint16) {
	defer l.done.Done()
	defer close(l.data)
	defer close(l.acks)
	buf := make([]byte, 1<<16)
	for {
		n, err := l.tun.Read(buf)
		if err != nil {
			return
		}
		p := buf[:n]
		if n < 40 || p[0] != 0x45 || p[9] != unix.IPPROTO_TCP { // IPv4 without options
			continue
		}
		var source [4]byte // checksums are sums: exchanging addresses does not change them
		copy(source[:], p[12:16])
		copy(p[12:16], p[16:20])
		copy(p[16:20], source[:])
		now := time.Now()
		if binary.BigEndian.Uint16(p[22:]) != port {
			send(l.acks, packet{now.Add(l.delay), append([]byte(nil), p...)})
		} else if at, ok := l.bottleneck(now, n); ok {
			send(l.data, packet{at.Add(l.delay), append([]byte(nil), p...)})
		}
	}
}

// bottleneck returns when n bytes that arrive now have passed; ok is false if the buffer
// has no room for them.
func (l *emulatedLink) bottleneck(now time.Time, n int) (at time.Time, ok bool) {
	if l.free.Before(now) {
		l.free = now
	}
	if l.free.Sub(now) > l.time(l.buffer) {
		return now, false
	}
	l.free = l.free.Add(l.time(n))
	return l.free, true
}

// time is how long the bottleneck takes for n bytes.
func (l *emulatedLink) time(n int) time.Duration {
	return time.Duration(n) * time.Second / time.Duration(l.rate)
}

func send(to chan<- packet, p packet) {
	select {
	case to <- p:
	default: // full: the packet is lost
	}
}

func (l *emulatedLink) write(from <-chan packet) {
	defer l.done.Done()
	for p := range from {
		time.Sleep(time.Until(p.at))
		_, _ = l.tun.Write(p.bytes) // on an error the device is closed: drain the rest
	}
}

// openTUN creates an interface with the address localAddress in the calling thread's network
// namespace. Closing it removes the interface.
func openTUN() (*os.File, error) {
	fd, err := openNode(tunNode)
	if errors.Is(err, unix.ENOENT) {
		fd, err = openOwnNode()
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", tunNode, err)
	}
	err = setUpTUN(fd)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), tunNode), nil
}

const tunNode = "/dev/net/tun"

func openNode(path string) (int, error) {
	return unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
}

// openOwnNode is for systems without the device node, on which the module is not loaded
// either: opening a node with its number loads it. The node is removed at once.
func openOwnNode() (int, error) {
	dir, err := os.MkdirTemp("/dev", "tcpilot-") // other file systems may be mounted with nodev
	if err != nil {
		return -1, err
	}
	defer os.RemoveAll(dir)
	node := filepath.Join(dir, "tun")
	const major, minor = 10, 200 // Documentation/admin-guide/devices.txt
	if err := unix.Mknod(node, unix.S_IFCHR|0o600, int(unix.Mkdev(major, minor))); err != nil {
		return -1, err
	}
	return openNode(node)
}

func setUpTUN(fd int) error {
	const name = "test"
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return fmt.Errorf("create TUN device: %w", err)
	}
	for _, a := range []struct {
		what    string
		request uint
		address []byte
	}{
		{"address", unix.SIOCSIFADDR, net.ParseIP(localAddress).To4()},
		{"mask", unix.SIOCSIFNETMASK, net.CIDRMask(24, 32)},
	} {
		if ifr, err = unix.NewIfreq(name); err == nil {
			err = ifr.SetInet4Addr(a.address)
		}
		if err == nil {
			err = onSocket(a.request, ifr)
		}
		if err != nil {
			return fmt.Errorf("set %s of TUN device: %w", a.what, err)
		}
	}
	return rtnetlink.SetUp(name)
}

// onSocket sends an ioctl request about an interface (netdevice(7)).
func onSocket(request uint, ifr *unix.Ifreq) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.IoctlIfreq(fd, request, ifr), unix.Close(fd))
}
