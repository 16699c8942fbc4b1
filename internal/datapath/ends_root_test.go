package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// ending is one way in which a connection ends.
type ending struct {
	name           string
	do             func(t *testing.T, client, server net.Conn)
	client, server tcp.End
}

func TestRootEnds(t *testing.T) {
	read := func(t *testing.T, c net.Conn, want error) {
		t.Helper()
		must(t, c.SetReadDeadline(time.Now().Add(5*time.Second)))
		if _, err := io.ReadAll(c); !isErr(err, want) {
			t.Errorf("read: %v, want %v", err, want)
		}
	}
	r := newRig(t)
	r.policy(t, nil)
	for _, e := range []ending{
		{"client closes", func(t *testing.T, c, s net.Conn) {
			must(t, c.Close())
			read(t, s, nil)
			must(t, s.Close())
		}, tcp.EndFin, tcp.EndFin},
		{"server closes", func(t *testing.T, c, s net.Conn) {
			must(t, s.Close())
			read(t, c, nil)
			must(t, c.Close())
		}, tcp.EndFin, tcp.EndFin},
		{"both close at once", func(t *testing.T, c, s net.Conn) {
			closeAll(t, c, s)
		}, tcp.EndFin, tcp.EndFin},
		{"half-closed first", func(t *testing.T, c, s net.Conn) {
			must(t, c.(*net.TCPConn).CloseWrite())
			read(t, s, nil)
			exchange(t, s, c, 5000)
			closeAll(t, s, c)
		}, tcp.EndFin, tcp.EndFin},
		{"client aborts with SO_LINGER 0", func(t *testing.T, c, s net.Conn) {
			must(t, c.(*net.TCPConn).SetLinger(0))
			must(t, c.Close())
			read(t, s, unix.ECONNRESET)
			must(t, s.Close())
		}, tcp.EndAborted, tcp.EndReset},
		{"server aborts with SO_LINGER 0, the client never looks", func(t *testing.T, c, s net.Conn) {
			must(t, s.(*net.TCPConn).SetLinger(0))
			must(t, s.Close())
			eventually(t, func() error {
				if state := tcpInfo(t, c).State; state != unix.BPF_TCP_CLOSE {
					return fmt.Errorf("state %d after a reset", state)
				}
				return nil
			})
			must(t, c.Close())
		}, tcp.EndReset, tcp.EndAborted},
		{"client closes with unread data", func(t *testing.T, c, s net.Conn) {
			_, err := s.Write([]byte("nobody reads this"))
			must(t, err)
			eventually(t, func() (err error) {
				n := 0
				withFD(c, func(fd int) { n, err = unix.IoctlGetInt(fd, unix.SIOCINQ) })
				if n == 0 && err == nil {
					err = errors.New("no data came")
				}
				return err
			})
			must(t, c.Close())
			read(t, s, unix.ECONNRESET)
			must(t, s.Close())
		}, tcp.EndAborted, tcp.EndReset},
		{"client disconnects by connecting to AF_UNSPEC", func(t *testing.T, c, s net.Conn) {
			disconnect(t, c)
			read(t, s, unix.ECONNRESET)
			closeAll(t, c, s)
		}, tcp.EndAborted, tcp.EndReset},
	} {
		t.Run(e.name, func(t *testing.T) {
			c, s := r.pair(t, "127.0.0.1:0")
			isClient, isServer := ofConn(c), ofConn(s)
			local, remote := addrPort(c.LocalAddr()), addrPort(c.RemoteAddr())
			exchange(t, c, s, 50_000)
			exchange(t, s, c, 20_000)
			e.do(t, c, s)
			a, b := r.find(t, "client", isClient), r.find(t, "server", isServer)
			if a.Kind != tcp.KindClose || b.Kind != tcp.KindClose || a.End != e.client || b.End != e.server {
				t.Errorf("client %s %s, server %s %s; want close %s and %s", a.Kind, a.End, b.Kind, b.End, e.client, e.server)
			}
			if a.Local != local || a.Remote != remote || b.Local != remote || b.Remote != local {
				t.Errorf("client %s to %s, server %s to %s, want %s and %s", a.Local, a.Remote, b.Local, b.Remote, local, remote)
			}
			if a.BytesAcked < 50_000 || a.BytesReceived < 20_000 || b.BytesAcked < 20_000 || b.BytesReceived < 50_000 || a.SegsOut == 0 || a.SRTT == 0 {
				t.Errorf("counters were wiped: %+v and %+v", a, b)
			}
			time.Sleep(10 * time.Millisecond)
			for _, is := range []func(*tcp.Sample) bool{isClient, isServer} {
				if n := len(r.count(t, 1, is)); n != 1 {
					t.Errorf("%d samples of one connection", n)
				}
			}
		})
	}
}

func disconnect(t testing.TB, c net.Conn) {
	t.Helper()
	var errno unix.Errno
	withFD(c, func(fd int) { errno = connectUnspec(fd) })
	if errno != 0 {
		t.Fatal(errno)
	}
}

func addrPort(a net.Addr) netip.AddrPort { return netip.MustParseAddrPort(a.String()) }

// TestRootEndWithoutAnswer has a timer end connections whose peer has vanished.
func TestRootEndWithoutAnswer(t *testing.T) {
	r := newRig(t)
	far := testenv.NetNS(t)
	near, farEnd := testenv.Veth(t, r.ns, far)
	r.policy(t, nil)
	for _, c := range []struct {
		name string
		late func(t *testing.T, c net.Conn)
		want tcp.End
	}{
		{"user timeout", func(t *testing.T, c net.Conn) {
			setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 300)
			_, err := c.Write(make([]byte, 1000))
			must(t, err)
			awaitErr(t, c, unix.ETIMEDOUT)
		}, tcp.EndTimeout},
		{"user timeout after close", func(t *testing.T, c net.Conn) {
			setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 300)
			_, err := c.Write(make([]byte, 1000))
			must(t, err)
		}, tcp.EndTimeout},
		{"keepalive", func(t *testing.T, c net.Conn) {
			setsockopt(t, c, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
			setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 1)
			setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 1)
			setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 1)
			awaitErr(t, c, unix.ETIMEDOUT)
		}, tcp.EndTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			const n = 3
			l := listen(t, far, netip.AddrPortFrom(farEnd.V4, 0).String(), nil)
			var conns [n]net.Conn
			mine := map[uint64]bool{}
			for i := range conns {
				conns[i] = dial(t, r.ns, l.Addr().String(), nil)
				mine[cookieOf(conns[i])] = true
				exchange(t, conns[i], accept(t, l), 1000)
			}
			vanish(t, near, farEnd)
			for _, conn := range conns {
				c.late(t, conn)
				must(t, conn.Close())
				time.Sleep(30 * time.Millisecond) // one softirq would end them all, and may not be shown (see unshown)
			}
			for _, s := range r.countShown(t, n, func(s *tcp.Sample) bool {
				return mine[s.Cookie] && s.Kind != tcp.KindInterval
			}) {
				if s.Kind != tcp.KindClose || s.End != c.want || s.Remote != addrPort(l.Addr()) {
					t.Errorf("%s %s %s, want close %s", s.Kind, s.End, s.Remote, c.want)
				}
				if c.name == "user timeout" && (s.Retrans == 0 || s.Busy < 100*time.Millisecond) {
					t.Errorf("%d retransmits, busy %v", s.Retrans, s.Busy)
				}
			}
		})
	}
}

// vanish directs packets for the far end to a link-layer address that does not exist,
// until the test ends.
func vanish(t testing.TB, near, far testenv.End) (restore func()) {
	t.Helper()
	neigh := func(args ...string) {
		near.NS.Run(t, "ip", append([]string{"neigh"}, append(args, "dev", near.Name)...)...)
	}
	neigh("replace", far.V4.String(), "lladdr", "02:00:00:00:00:99", "nud", "permanent")
	restore = sync.OnceFunc(func() { neigh("del", far.V4.String()) })
	t.Cleanup(restore)
	return restore
}

func awaitErr(t testing.TB, c net.Conn, want error) {
	t.Helper()
	must(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	if _, err := c.Read(make([]byte, 1)); !isErr(err, want) {
		t.Errorf("read: %v, want %v", err, want)
	}
}

// TestRootResetBeforeConnectReturns resets a connection before its call of connect returns, which
// then resets the socket's addresses and counters. The socket stays open.
func TestRootResetBeforeConnectReturns(t *testing.T) {
	r := newRig(t)
	r.policy(t, arms(arm("reno", 1<<16)))
	l := listen(t, r.ns, "127.0.0.1:0", nil)
	to := addrPort(l.Addr())
	sa := &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	var fd int
	r.ns.Do(t, func() {
		var err error
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		must(t, err)
		if err := unix.Connect(fd, sa); err != unix.EINPROGRESS {
			t.Fatalf("connect: %v", err)
		}
	})
	t.Cleanup(func() { must(t, unix.Close(fd)) })
	s := accept(t, l)
	must(t, s.(*net.TCPConn).SetLinger(0))
	must(t, s.Close())
	if err := unix.Connect(fd, sa); err != unix.ECONNRESET {
		t.Errorf("connect again: %v", err)
	}
	got := r.find(t, "client", func(s *tcp.Sample) bool { return s.Remote == to })
	if got.Kind != tcp.KindClose || got.End != tcp.EndReset || got.Arm.String() != "reno" || !got.Has(tcp.FlagOutgoing) {
		t.Errorf("%+v", got)
	}
	if n, err := r.Counters(); err != nil || n.Backwards != 0 {
		t.Errorf("%+v, %v", n, err)
	}
}

func TestRootFailedConnects(t *testing.T) {
	r := newRig(t)
	far := testenv.NetNS(t)
	near, farEnd := testenv.Veth(t, r.ns, far)
	r.policy(t, arms(arm("reno", 1<<16)))
	to := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 81) }
	lost := func(s *tcp.Sample, remote netip.AddrPort) bool {
		return s.Kind == tcp.KindFailedConnect && s.Remote == remote
	}
	t.Run("refused", func(t *testing.T) {
		for _, to := range []netip.AddrPort{to(farEnd.V4), to(farEnd.V6)} {
			if _, err := dialErr(t, r.ns, "", to.String(), nil); !isErr(err, unix.ECONNREFUSED) {
				t.Errorf("connect: %v", err)
			}
			s := r.find(t, "refused connect", func(s *tcp.Sample) bool { return lost(s, to) })
			if s.End != tcp.EndRefused || !s.Has(tcp.FlagOutgoing) || s.Has(tcp.FlagCCChanged) || s.Class != 1 || s.Local.Port() == 0 || s.BytesAcked != 0 {
				t.Errorf("%+v", s)
			}
		}
	})
	t.Run("refused, then accepted on the same socket", func(t *testing.T) {
		port := netip.AddrPortFrom(farEnd.V4, 82)
		var fd int
		sa := &unix.SockaddrInet4{Port: 82, Addr: farEnd.V4.As4()}
		r.ns.Do(t, func() {
			var err error
			fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			must(t, err)
			if err := unix.Connect(fd, sa); err != unix.ECONNREFUSED {
				t.Errorf("connect: %v", err)
			}
		})
		// A connect that blocks resets its socket's counters before it returns.
		s := r.find(t, "refused connect", func(s *tcp.Sample) bool { return lost(s, port) })
		if s.End != tcp.EndRefused {
			t.Errorf("%+v", s)
		}
		l := listen(t, far, port.String(), nil)
		must(t, unix.Connect(fd, sa))
		c := connOf(t, fd)
		is := ofConn(c)
		server := accept(t, l)
		if got := ccOf(t, c); got != "reno" {
			t.Errorf("the second connection has %s", got)
		}
		exchange(t, c, server, 1000)
		closeAll(t, c, server)
		again := r.find(t, "second connection", func(s *tcp.Sample) bool { return is(s) && s.Kind == tcp.KindClose })
		if again.End != tcp.EndFin || again.Cookie != s.Cookie || again.Remote != port || again.Duration > s.Duration+5*time.Second {
			t.Errorf("%+v", again)
		}
	})
	t.Run("aborted", func(t *testing.T) {
		vanish(t, near, farEnd)
		at := netip.AddrPortFrom(farEnd.V4, 83)
		var fd int
		r.ns.Do(t, func() {
			var err error
			fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			must(t, err)
			if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 83, Addr: farEnd.V4.As4()}); err != unix.EINPROGRESS {
				t.Errorf("connect: %v", err)
			}
		})
		must(t, unix.Close(fd))
		if s := r.find(t, "aborted connect", func(s *tcp.Sample) bool { return lost(s, at) }); s.End != tcp.EndAborted {
			t.Errorf("%+v", s)
		}
	})
	t.Run("timeout", func(t *testing.T) {
		vanish(t, near, farEnd)
		r.policy(t, func(p *path.Policy) {
			p.Params.Set(tcp.SynCount, 1)
			p.Params.Set(tcp.SynRTO, 100)
		})
		const n = 3
		at := netip.AddrPortFrom(farEnd.V4, 84)
		for range n {
			if _, err := dialErr(t, r.ns, "", at.String(), nil); !isErr(err, unix.ETIMEDOUT) {
				t.Errorf("connect: %v", err)
			}
		}
		for _, s := range r.mostlyEnd(t, n, tcp.EndTimeout, func(s *tcp.Sample) bool { return lost(s, at) }) {
			if s.Duration < 100*time.Millisecond || s.Retrans == 0 {
				t.Errorf("%+v", s)
			}
		}
	})
	t.Run("unreachable", func(t *testing.T) {
		// No host has the address; the kernel's neighbour lookup fails after
		// 50 ms.
		testenv.Sysctl(t, r.ns, "net.ipv4.neigh."+near.Name+".mcast_solicit", "1")
		testenv.Sysctl(t, r.ns, "net.ipv4.neigh."+near.Name+".retrans_time_ms", "50")
		at := to(farEnd.V4.Next().Next())
		const n = 3
		for range n {
			if _, err := dialErr(t, r.ns, "", at.String(), nil); !isErr(err, unix.EHOSTUNREACH) {
				t.Errorf("connect: %v", err)
			}
		}
		r.mostlyEnd(t, n, tcp.EndOther, func(s *tcp.Sample) bool { return lost(s, at) })
	})
}

// mostlyEnd returns the samples of n connects that failed, most of them as wanted. The kernel wakes the application before it reports
// the error (tcp_done_with_error). If that has read the error by then, it looks as if the application had given up.
func (r *rig) mostlyEnd(t *testing.T, n int, want tcp.End, is func(*tcp.Sample) bool) []tcp.Sample {
	t.Helper()
	samples := r.countShown(t, n, is)
	wanted := 0
	for _, s := range samples {
		switch s.End {
		case want:
			wanted++
		case tcp.EndAborted:
		default:
			t.Errorf("%+v", s)
		}
	}
	if wanted < n/2 {
		t.Errorf("%d of %d connects are reported to end by %s", wanted, n, want)
	}
	return samples
}

// TestRootDisconnectInSynSent: a socket aborts one connect and begins another.
func TestRootDisconnectInSynSent(t *testing.T) {
	r := newRig(t)
	far := testenv.NetNS(t)
	near, farEnd := testenv.Veth(t, r.ns, far)
	r.policy(t, nil)
	var fd int
	t.Run("lost", func(t *testing.T) {
		vanish(t, near, farEnd)
		r.ns.Do(t, func() {
			var err error
			fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			must(t, err)
			if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 86, Addr: farEnd.V4.As4()}); err != unix.EINPROGRESS {
				t.Errorf("connect: %v", err)
			}
		})
		time.Sleep(300 * time.Millisecond)
		if errno := connectUnspec(fd); errno != 0 {
			t.Fatal(errno)
		}
	})
	must(t, unix.SetNonblock(fd, false))
	l := listen(t, r.ns, "127.0.0.1:0", nil)
	begun := time.Now()
	must(t, unix.Connect(fd, &unix.SockaddrInet4{Port: int(addrPort(l.Addr()).Port()), Addr: [4]byte{127, 0, 0, 1}}))
	c := connOf(t, fd)
	is := ofConn(c)
	exchange(t, c, accept(t, l), 100)
	must(t, c.Close())
	first := r.find(t, "first connection", is)
	if first.Kind != tcp.KindFailedConnect || first.End != tcp.EndAborted || first.Remote.Addr() != farEnd.V4 {
		t.Errorf("the first connection: %+v", first)
	}
	most := max(time.Since(begun)+time.Millisecond, 250*time.Millisecond)
	s := r.find(t, "second connection", func(s *tcp.Sample) bool { return is(s) && s.Kind == tcp.KindClose })
	if s.End != tcp.EndFin || s.Duration > most || s.Connect > most {
		t.Errorf("the second connection has remains of the first: %+v", s)
	}
}

// TestRootSoftErrors: an ICMP error that the application asked for (IP_RECVERR) does not end the connection, and says nothing of the end
// that comes later.
func TestRootSoftErrors(t *testing.T) {
	r := newRig(t)
	far := testenv.NetNS(t)
	near, farEnd := testenv.Veth(t, r.ns, far)
	r.policy(t, nil)
	read := func(t *testing.T, c net.Conn) {
		t.Helper()
		eventually(t, func() error {
			if got := sockopt(t, c, unix.SOL_SOCKET, unix.SO_ERROR); got != int(unix.EHOSTUNREACH) && got != int(unix.ECONNREFUSED) {
				return fmt.Errorf("SO_ERROR is %w", unix.Errno(got))
			}
			return nil
		})
	}
	for _, c := range []struct {
		name string
		code byte // of ICMP
		end  func(t *testing.T, c, s net.Conn)
		want tcp.End
	}{
		{"read, then closed", icmpHostUnreachable, func(t *testing.T, c, s net.Conn) {
			read(t, c)
			exchange(t, c, s, 1000)
			closeAll(t, c, s)
		}, tcp.EndFin},
		{"port, read, then closed", icmpPortUnreachable, func(t *testing.T, c, s net.Conn) {
			read(t, c)
			exchange(t, c, s, 1000)
			closeAll(t, c, s)
		}, tcp.EndFin},
		{"never read, closed", icmpHostUnreachable, func(t *testing.T, c, s net.Conn) {
			closeAll(t, c, s)
		}, tcp.EndFin},
		{"port, never read, closed by the peer", icmpPortUnreachable, func(t *testing.T, c, s net.Conn) {
			closeAll(t, s, c)
		}, tcp.EndFin},
		{"read, then aborted", icmpHostUnreachable, func(t *testing.T, c, s net.Conn) {
			read(t, c)
			must(t, c.(*net.TCPConn).SetLinger(0))
			closeAll(t, c, s)
		}, tcp.EndAborted},
		{"port, never read, aborted", icmpPortUnreachable, func(t *testing.T, c, s net.Conn) {
			must(t, c.(*net.TCPConn).SetLinger(0))
			closeAll(t, c, s)
		}, tcp.EndAborted},
		{"read, then reset", icmpHostUnreachable, func(t *testing.T, c, s net.Conn) {
			read(t, c)
			must(t, s.(*net.TCPConn).SetLinger(0))
			must(t, s.Close())
			awaitErr(t, c, unix.ECONNRESET)
			must(t, c.Close())
		}, tcp.EndReset},
		{"read, then no answer", icmpHostUnreachable, func(t *testing.T, c, s net.Conn) {
			read(t, c)
			defer vanish(t, near, farEnd)()
			setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 300)
			_, err := c.Write(make([]byte, 1000))
			must(t, err)
			awaitErr(t, c, unix.ETIMEDOUT)
			must(t, c.Close())
		}, tcp.EndTimeout},
		// The error takes the place of that of the timeout.
		{"not asked for, then no answer", icmpHostUnreachable, func(t *testing.T, c, s net.Conn) {
			defer vanish(t, near, farEnd)()
			setsockopt(t, c, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
			for _, o := range []int{unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT, unix.TCP_KEEPIDLE} {
				setsockopt(t, c, unix.IPPROTO_TCP, o, 1)
			}
			awaitSockErr(t, c)
			must(t, c.Close())
		}, tcp.EndOther},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := listen(t, far, netip.AddrPortFrom(farEnd.V4, 0).String(), nil)
			conn := dial(t, r.ns, l.Addr().String(), nil)
			s := accept(t, l)
			exchange(t, conn, s, 1000)
			is := ofConn(conn)
			if c.want != tcp.EndOther {
				setsockopt(t, conn, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
			}
			sendUnreachable(t, far, conn, c.code)
			if c.want != tcp.EndOther {
				awaitSockErr(t, conn)
			}
			c.end(t, conn, s)
			if got := r.find(t, "client", is); got.Kind != tcp.KindClose || got.End != c.want {
				t.Errorf("%s %s, want close %s", got.Kind, got.End, c.want)
			}
		})
	}
}

// Codes of ICMP destination unreachable (RFC 792).
const icmpHostUnreachable, icmpPortUnreachable = 1, 3

// sendUnreachable sends an ICMP error about the latest segment of an idle connection, which is also its next one.
func sendUnreachable(t *testing.T, from *testenv.NS, c net.Conn, code byte) {
	t.Helper()
	const repairQueue, queueSeq, sendQueue = 20, 21, 2 // TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ, TCP_SEND_QUEUE
	setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_REPAIR, unix.TCP_REPAIR_ON)
	setsockopt(t, c, unix.IPPROTO_TCP, repairQueue, sendQueue)
	seq := sockopt(t, c, unix.IPPROTO_TCP, queueSeq)
	setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_REPAIR, unix.TCP_REPAIR_OFF_NO_WP)

	local, remote := addrPort(c.LocalAddr()), addrPort(c.RemoteAddr())
	icmp := []byte{3, code, 0, 0, 0, 0, 0, 0, // type, code, checksum, unused
		0x45, 0, 0, 40, 0, 0, 0, 0, 64, unix.IPPROTO_TCP, 0, 0} // IPv4
	icmp = append(append(icmp, local.Addr().AsSlice()...), remote.Addr().AsSlice()...)
	icmp = binary.BigEndian.AppendUint16(icmp, local.Port())
	icmp = binary.BigEndian.AppendUint16(icmp, remote.Port())
	icmp = binary.BigEndian.AppendUint32(icmp, uint32(seq))
	var sum uint32
	for i := 0; i < len(icmp); i += 2 {
		sum += uint32(icmp[i])<<8 | uint32(icmp[i+1])
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(icmp[2:], ^uint16(sum+sum>>16))
	from.Do(t, func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		must(t, err)
		defer unix.Close(fd)
		must(t, unix.Sendto(fd, icmp, 0, &unix.SockaddrInet4{Addr: local.Addr().As4()}))
	})
}

// awaitSockErr waits until a socket has an error that the application has not read.
func awaitSockErr(t *testing.T, c net.Conn) {
	t.Helper()
	eventually(t, func() (err error) {
		p := []unix.PollFd{{}}
		withFD(c, func(fd int) {
			p[0].Fd = int32(fd)
			_, err = unix.Poll(p, 0)
		})
		if err == nil && p[0].Revents&unix.POLLERR == 0 {
			err = unix.EAGAIN
		}
		return err
	})
}

func isErr(err, want error) bool {
	if want == nil {
		return err == nil
	}
	return errors.Is(err, want)
}
