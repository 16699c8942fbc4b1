package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// pagePayload is the segment size, in bytes, with which each packet carries 4096: TCP_MAXSEG counts the option of
// timestamps (12) as well.
const pagePayload = 4096 + 12

// A receiver that maps its data (TCP_ZEROCOPY_RECEIVE) gets whole pages only if each packet carries one. A rule's
// max_seg makes it so in both directions of an outgoing connection.
func TestRootPayloadOfAPage(t *testing.T) {
	z := newZeroCopy(t)
	for _, download := range []bool{true, false} {
		z.policy(t, nil)
		if without := z.transfer(t, download, true); without.mapped > 0.7 {
			t.Errorf("download %v, segments of 8960 bytes: %.2f of the data is mapped, want at most 0.7", download, without.mapped)
		}
		z.policy(t, set(tcp.MaxSeg, pagePayload))
		if with := z.transfer(t, download, true); with.mapped < 0.9 {
			t.Errorf("download %v, segments of %d bytes: %.2f of the data is mapped, want at least 0.9", download, pagePayload, with.mapped)
		}
	}
}

// TestMeasureZeroCopy compares what it costs a receiver to read its data and to map it.
func TestMeasureZeroCopy(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		z := newZeroCopy(t)
		z.size = 1 << 30
		z.policy(t, nil)
		plain := z.transfer(t, true, false)
		z.policy(t, set(tcp.MaxSeg, pagePayload))
		read, mapped := z.transfer(t, true, false), z.transfer(t, true, true)
		m.Holds("CPU of the receiver's thread per GB, read, MTU 9000", "", true, plain.cpu.String())
		m.Holds("read, 4096 bytes a packet", "", true, read.cpu.String())
		m.Holds("mapped, 4096 bytes a packet", "", true, mapped.cpu.String())
		testenv.AtLeast(m, "share that was mapped", mapped.mapped, 0.9)
		m.Holds("CPU, mapped over read", "", true, fmt.Sprintf("%.2f", float64(mapped.cpu)/float64(read.cpu)))
	})
}

// zeroCopy is a rig, and a wire of single packets of up to 9000 bytes to another namespace.
type zeroCopy struct {
	*rig
	near, far testenv.End
	size      int // of a transfer, in bytes
}

func newZeroCopy(t *testing.T) *zeroCopy {
	z := &zeroCopy{rig: newRig(t), size: 8 << 20}
	z.near, z.far = testenv.Veth(t, z.ns, testenv.NetNS(t))
	for _, e := range []testenv.End{z.near, z.far} {
		e.NS.IP(t, "link set dev "+e.Name+" mtu 9000 gso_max_segs 1")
	}
	return z
}

// reception is how a receiver got its data.
type reception struct {
	mapped float64       // share of the bytes; the others are copied
	cpu    time.Duration // of the receiving thread, per GB
}

// transfer sends data over a new connection that the near end opens.
func (z *zeroCopy) transfer(t *testing.T, download, maps bool) (got reception) {
	t.Helper()
	l := listen(t, z.far.NS, netip.AddrPortFrom(z.far.V4, 0).String(), nil)
	from, to := dial(t, z.near.NS, l.Addr().String(), nil), accept(t, l)
	if download {
		from, to = to, from
	}
	must(t, to.SetDeadline(time.Now().Add(time.Minute))) // a receiver that maps does not see the end
	// A receiver that is woken for each packet gains nothing.
	withFD(to, func(fd int) { must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, 512<<10)) })
	sent := make(chan error, 1)
	go func() { sent <- sendPages(from, z.size) }()
	got = receive(t, to, z.size, maps)
	must(t, <-sent)
	closeAll(t, l, from, to)
	return got
}

// sendPages sends pages of the kernel, as sendfile does with those of a file: only such pages can be mapped by the
// receiver. They go through a pipe.
func sendPages(c net.Conn, size int) error {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	const chunk = 64 << 10 // what a pipe holds
	data := make([]byte, chunk)
	for ; size > 0 && err == nil; size -= chunk {
		if _, err = unix.Write(pipe[1], data); err != nil {
			break
		}
		left := int64(chunk)
		waitErr := raw.Write(func(fd uintptr) bool {
			var n int64
			for ; left > 0 && err == nil; left -= n {
				if n, err = unix.Splice(pipe[0], nil, int(fd), nil, int(left), 0); err == unix.EAGAIN {
					err = nil
					return false
				}
			}
			return true
		})
		err = errors.Join(err, waitErr)
	}
	return errors.Join(err, c.(*net.TCPConn).CloseWrite()) // which wakes the receiver also for less than its mark
}

// receive reads the data, or maps what can be mapped and reads the rest; in a thread of its own.
func receive(t *testing.T, c net.Conn, size int, maps bool) reception {
	t.Helper()
	var copied int
	var cpu time.Duration
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with its CPU time
		begun, err := threadCPU()
		if err == nil {
			copied, err = readOrMap(c, size, maps)
		}
		ended, e := threadCPU()
		cpu = ended - begun
		done <- errors.Join(err, e)
	}()
	must(t, <-done)
	return reception{1 - float64(copied)/float64(size), time.Duration(float64(cpu) * 1e9 / float64(size))}
}

func threadCPU() (time.Duration, error) {
	var u unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_THREAD, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}

// readOrMap returns how many of the size bytes were read.
func readOrMap(c net.Conn, size int, maps bool) (copied int, err error) {
	const window = 1 << 20
	buffer := make([]byte, window)
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var pages []byte
	if maps {
		controlErr := raw.Control(func(fd uintptr) {
			pages, err = unix.Mmap(int(fd), 0, window, unix.PROT_READ, unix.MAP_SHARED)
		})
		if err = errors.Join(controlErr, err); err != nil {
			return 0, err
		}
		defer unix.Munmap(pages)
	}
	for received := 0; received < size; {
		mapped, skip := 0, window
		if maps {
			if mapped, skip, err = zeroCopyReceive(raw, pages); err != nil {
				return copied, err
			}
		}
		n := 0
		if skip > 0 {
			if n, err = c.Read(buffer[:min(skip, window)]); err != nil {
				return copied, err
			}
		}
		received, copied = received+mapped+n, copied+n
	}
	return copied, nil
}

// zeroCopyReceive maps data that has arrived, and waits for some. skip is how many bytes have to be read before there can
// be more to map (struct tcp_zerocopy_receive in include/uapi/linux/tcp.h).
func zeroCopyReceive(c syscall.RawConn, pages []byte) (mapped, skip int, err error) {
	const tcpZerocopyReceive = 35
	waitErr := c.Read(func(fd uintptr) bool {
		z := struct {
			address      uint64
			length, skip uint32
		}{uint64(uintptr(unsafe.Pointer(&pages[0]))), uint32(len(pages)), 0}
		size := uint32(unsafe.Sizeof(z))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.IPPROTO_TCP, tcpZerocopyReceive, uintptr(unsafe.Pointer(&z)), uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			err = errno
			return true
		}
		mapped, skip = int(z.length), int(z.skip)
		return mapped > 0 || skip > 0
	})
	if waitErr != nil {
		err = waitErr
	}
	return mapped, skip, err
}
