package e2e

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/lab/load"
)

// liveEnv makes this program one end of a live stream: its value is a liveSpec.
const liveEnv = "TCPILOT_LIVE"

// frameSize is the length of a message of a live stream, in bytes.
const frameSize = 4096

// liveSpec is a stream of messages of a program that writes as soon as its socket is writable, and that
// decides only then what it writes. The first 8 bytes of each say when that was.
type liveSpec struct {
	Listen   string // the receiver; it prints the address first
	To       string // the sender
	Lowat    int    // TCP_NOTSENT_LOWAT that the program sets; 0: none
	Duration time.Duration
}

// sent is what a sender knows of a stream.
type sent struct {
	Switches int64 // voluntary context switches of its thread
	Writes   int64 // messages
	Wakeups  int64 // times that poll said that the socket is writable
	// Queued are the bytes of memory in the send queue (SK_MEMINFO_WMEM_QUEUED), on average and at most.
	Queued, MostQueued float64
	Lowat              int // the socket's
}

// received is what a receiver knows of a stream, from a second after its beginning on.
type received struct {
	Goodput float64       // bit/s
	P50     time.Duration // from write to arrival
	P99     time.Duration
}

// runIfLive does not return if this process is an end of a live stream.
func runIfLive() {
	text := os.Getenv(liveEnv)
	if text == "" {
		return
	}
	var s liveSpec
	var out any
	err := json.Unmarshal([]byte(text), &s)
	if err == nil && s.Listen != "" {
		out, err = s.receive()
	} else if err == nil {
		out, err = s.send()
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "live stream:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (s *liveSpec) receive() (r received, err error) {
	l, err := net.Listen("tcp", s.Listen)
	if err != nil {
		return r, err
	}
	fmt.Println(l.Addr())
	c, err := l.Accept()
	if err != nil {
		return r, err
	}
	defer c.Close()
	in, frame := bufio.NewReaderSize(c, 16*frameSize), make([]byte, frameSize)
	var delays []time.Duration
	begin := load.Now()
	var last load.Time
	for {
		if _, err := io.ReadFull(in, frame); err != nil {
			break // the sender's end
		}
		now := load.Now()
		if now.Sub(begin) < time.Second {
			continue
		}
		last = now
		delays = append(delays, now.Sub(load.Time(binary.LittleEndian.Uint64(frame))))
	}
	if len(delays) == 0 {
		return r, errors.New("nothing arrived")
	}
	slices.Sort(delays)
	r.P50, r.P99 = delays[len(delays)/2], delays[len(delays)*99/100]
	r.Goodput = float64(len(delays)*frameSize*8) / (last.Sub(begin) - time.Second).Seconds()
	return r, nil
}

func (s *liveSpec) send() (r sent, err error) {
	runtime.LockOSThread() // whose context switches are counted
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return r, err
	}
	if s.Lowat != 0 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, s.Lowat); err != nil {
			return r, err
		}
	}
	to, err := netip.ParseAddrPort(s.To)
	if err != nil {
		return r, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		return r, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return r, err
	}
	if r.Lowat, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT); err != nil {
		return r, err
	}
	var before, after unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &before); err != nil {
		return r, err
	}
	looks, frame, left := 0.0, make([]byte, frameSize), 0
	end, look := load.Now().Add(s.Duration), load.Now()
	for now := look; now < end; now = load.Now() {
		if now >= look {
			look = now.Add(10 * time.Millisecond)
			q, err := queued(fd)
			if err != nil {
				return r, err
			}
			looks++
			r.Queued, r.MostQueued = r.Queued+q, max(r.MostQueued, q)
		}
		if left == 0 {
			binary.LittleEndian.PutUint64(frame, uint64(now))
			left = frameSize
		}
		n, err := unix.Write(fd, frame[frameSize-left:])
		switch {
		case err == nil:
			if left -= n; left == 0 {
				r.Writes++
			}
		case errors.Is(err, unix.EAGAIN):
			if left == frameSize {
				left = 0 // another one, later
			}
			r.Wakeups++
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 1000); err != nil && !errors.Is(err, unix.EINTR) {
				return r, err
			}
		default:
			return r, err
		}
	}
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &after); err != nil {
		return r, err
	}
	r.Switches, r.Queued = after.Nvcsw-before.Nvcsw, r.Queued/looks
	return r, unix.Close(fd)
}

// queued is the memory of what a socket has to send, and has sent without an acknowledgement, in bytes.
func queued(fd int) (float64, error) {
	const wmemQueued = 5 // SK_MEMINFO_WMEM_QUEUED in include/uapi/linux/sock_diag.h
	var values [9]uint32 // SK_MEMINFO_VARS
	size := uint32(unsafe.Sizeof(values))
	if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&values)), uintptr(unsafe.Pointer(&size)), 0); errno != 0 {
		return 0, errno
	}
	return float64(values[wmemQueued]), nil
}

// live sends a live stream from the client to a port of a remote. The program sets TCP_NOTSENT_LOWAT to lowat
// itself, unless that is 0.
func (w *world) live(t testing.TB, r *remote, port int, d time.Duration, lowat int) (s sent, got received) {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	command := func(s liveSpec) *exec.Cmd {
		text, err := json.Marshal(s)
		must(t, err)
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env, cmd.Stderr = append(os.Environ(), liveEnv+"="+string(text)), os.Stderr
		return cmd
	}
	receiver := command(liveSpec{Listen: netip.AddrPortFrom(r.Addr4, uint16(port)).String()})
	out, err := receiver.StdoutPipe()
	must(t, err)
	must(t, r.Host.Start(receiver))
	lines := bufio.NewReader(out)
	at, err := lines.ReadString('\n')
	must(t, err)
	sender := command(liveSpec{To: at[:len(at)-1], Duration: d, Lowat: lowat})
	var text bytes.Buffer
	sender.Stdout = &text
	w.cgroup.Put(sender)
	must(t, w.star.Client.Start(sender))
	must(t, sender.Wait())
	must(t, json.Unmarshal(text.Bytes(), &s))
	must(t, json.NewDecoder(lines).Decode(&got))
	must(t, receiver.Wait())
	return s, got
}
