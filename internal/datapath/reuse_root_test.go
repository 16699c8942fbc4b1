package datapath

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// disconnected is a socket whose connection had an interval sample of 200 kB or more, and then sent
// 50 kB. It was disconnected after the server had reset it, or else in repair mode, which no hook sees.
// The socket can begin another connection.
func (r *rig) disconnected(t *testing.T, reset bool) (fd int, l net.Listener) {
	t.Helper()
	l = listen(t, r.ns, "127.0.0.1:0", nil)
	fd = r.connectTo(t, l, -1)
	c, s := connOf(t, dup(t, fd)), accept(t, l)
	isInterval := intervalOf(c)
	exchange(t, c, s, 200_000)
	exchange(t, s, c, 200_000)
	time.Sleep(20 * time.Millisecond)
	r.walk(t, r.ns)
	r.find(t, "live connection", isInterval)
	exchange(t, c, s, 50_000)
	exchange(t, s, c, 1) // acknowledges them
	must(t, s.(*net.TCPConn).SetLinger(0))
	if reset {
		must(t, s.Close())
		eventually(t, func() error {
			_, err := c.Write([]byte{1})
			if err == nil {
				return unix.EAGAIN
			}
			return nil
		})
	} else {
		setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_REPAIR, unix.TCP_REPAIR_ON)
	}
	must(t, c.Close())
	if errno := connectUnspec(fd); errno != 0 {
		t.Fatal(errno)
	}
	if !reset {
		must(t, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, unix.TCP_REPAIR_OFF_NO_WP))
		must(t, s.Close())
	}
	return fd, l
}

func dup(t *testing.T, fd int) int {
	t.Helper()
	fd, err := unix.Dup(fd)
	must(t, err)
	return fd
}

// connectTo connects a socket, or a new one for -1.
func (r *rig) connectTo(t *testing.T, l net.Listener, fd int) int {
	t.Helper()
	r.ns.Do(t, func() {
		var err error
		if fd < 0 {
			fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			must(t, err)
		}
		must(t, unix.SetNonblock(fd, false))
		must(t, unix.Connect(fd, &unix.SockaddrInet4{Port: int(addrPort(l.Addr()).Port()), Addr: [4]byte{127, 0, 0, 1}}))
	})
	return fd
}

// implausible reports whether a sample has more bytes or segments than any test here sends.
func implausible(s *tcp.Sample) bool {
	return s.BytesAcked > 1<<40 || s.BytesReceived > 1<<40 || s.BytesRetrans > 1<<40 || s.SegsOut > 1<<30 || s.SegsIn > 1<<30 ||
		s.DataSegsOut > 1<<30 || s.Delivered > 1<<30 || s.Lost > 1<<30 || s.Busy > 24*time.Hour
}

// awaitPlausible waits for n samples, and checks all.
func (r *rig) awaitPlausible(t *testing.T, n int) {
	t.Helper()
	for _, s := range r.count(t, n, func(*tcp.Sample) bool { return true }) {
		if implausible(&s) {
			t.Errorf("a sample has %+v", s)
		}
	}
}

// TestRootSocketReused: a socket whose connection was disconnected unseen begins the next
// one without any state of the one before, whatever tcpilot does at that moment.
func TestRootSocketReused(t *testing.T) {
	for name, without := range map[string]bool{"in the lease": false, "out of the lease": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.needLive(t)
			id := r.policy(t, arms(arm("reno", 1<<16)))
			must(t, r.SetSettings(Settings{Interval: 10 * time.Millisecond}))
			fd, l := r.disconnected(t, false)
			id2 := r.policy(t, arms(arm("reno", 1<<16)))
			must(t, r.SetSettings(Settings{Interval: 10 * time.Millisecond}))
			if without {
				must(t, r.SetLease(-time.Second))
			}
			r.connectTo(t, l, fd)
			must(t, r.SetLease(time.Minute))
			c, s := connOf(t, fd), accept(t, l)
			cookie := cookieOf(c)
			before := r.samplesOf(cookie)
			exchange(t, c, s, 30_000)
			time.Sleep(20 * time.Millisecond)
			r.walk(t, r.ns)
			exchange(t, c, s, 30_000)
			time.Sleep(20 * time.Millisecond)
			r.walk(t, r.ns)
			closeAll(t, c, s)
			var sum uint64
			var after []tcp.Sample
			eventually(t, func() error {
				after = r.samplesOf(cookie)[len(before):]
				if len(after) == 0 || after[len(after)-1].Kind != tcp.KindClose {
					return unix.EAGAIN
				}
				return nil
			})
			for _, x := range after {
				sum += x.BytesAcked
				if implausible(&x) {
					t.Errorf("a sample has %+v", x)
				}
				if x.PolicyID == id || !without && x.PolicyID != id2 {
					t.Errorf("policy %d, want that of the second connection, %d", x.PolicyID, id2)
				}
			}
			if sum < 30_000 || sum > 60_100 {
				t.Errorf("the second connection sent %d bytes: %+v", sum, after)
			}
		})
	}
}

func (r *rig) samplesOf(cookie uint64) (out []tcp.Sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.samples {
		if r.samples[i].Cookie == cookie {
			out = append(out, r.samples[i])
		}
	}
	return out
}

// TestRootResetThenDisconnected: the sample of a connection that was reset is taken then, before a disconnect
// resets the counters.
func TestRootResetThenDisconnected(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	r.policy(t, nil)
	must(t, r.SetSettings(Settings{Interval: 10 * time.Millisecond}))
	fd, _ := r.disconnected(t, true)
	defer func() { must(t, unix.Close(fd)) }()
	s := r.find(t, "end of the client's connection", func(s *tcp.Sample) bool { return s.Kind == tcp.KindClose && s.Has(tcp.FlagOutgoing) })
	var sum uint64
	for _, x := range r.samplesOf(s.Cookie) {
		sum += x.BytesAcked
	}
	if s.End != tcp.EndReset || !s.Has(tcp.FlagLater) || sum < 250_000 || sum > 250_100 {
		t.Errorf("%d bytes acknowledged, %+v", sum, s)
	}
	if n, err := r.Counters(); err != nil || n.Backwards != 0 {
		t.Errorf("%+v, %v", n, err)
	}
}

// TestRootCountersThatShrank: if the kernel reset the counters before the end, no sample
// is sent, and this is counted.
func TestRootCountersThatShrank(t *testing.T) {
	t.Run("disconnected in repair mode", func(t *testing.T) {
		r := newRig(t)
		r.needLive(t)
		r.policy(t, nil)
		must(t, r.SetSettings(Settings{Interval: 10 * time.Millisecond}))
		fd, _ := r.disconnected(t, false)
		must(t, unix.Close(fd))
		r.shrank(t)
		r.awaitPlausible(t, 2)
	})
}

func (r *rig) shrank(t *testing.T) {
	t.Helper()
	eventually(t, func() error {
		n, err := r.Counters()
		if err == nil && n.Backwards == 0 {
			err = unix.EAGAIN
		}
		return err
	})
}

// TestRootReusedSocketHasNothingLeft: what tcpilot set for a socket's first connection does not count as the application's choice for the
// second one, however the first one ended.
func TestRootReusedSocketHasNothingLeft(t *testing.T) {
	reno := arms(arm("reno", 1<<16))
	lowat := func(v uint64) func(*path.Policy) {
		return func(p *path.Policy) {
			p.Params.Set(tcp.NotsentLowat, v)
			p.Defaults = 1 << tcp.NotsentLowat
		}
	}
	all := func(of ...func(*path.Policy)) func(*path.Policy) {
		return func(p *path.Policy) {
			for _, f := range of {
				f(p)
			}
		}
	}
	r := newRig(t)
	type result struct {
		cc    string
		lowat int
		clamp bool
		flags tcp.Flags
	}
	const flags = tcp.FlagAppCC | tcp.FlagHoldOut | tcp.FlagDefaultArm
	ends := map[string]func(t *testing.T, c, s net.Conn){
		"disconnected": func(t *testing.T, c, s net.Conn) { disconnect(t, c) },
		"reset": func(t *testing.T, c, s net.Conn) {
			must(t, s.(*net.TCPConn).SetLinger(0))
			must(t, s.Close())
			awaitSockErr(t, c) // a read would wait in epoll, which may report an error of the socket as its own
			disconnect(t, c)
		},
		"unseen": func(t *testing.T, c, s net.Conn) {
			setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_REPAIR, unix.TCP_REPAIR_ON)
			disconnect(t, c)
			setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_REPAIR, unix.TCP_REPAIR_OFF_NO_WP)
		},
	}
	for _, x := range []struct {
		name    string
		between func(t *testing.T, c net.Conn)
		second  func(*path.Policy)
		want    result
	}{
		{"the default", nil, arms(path.Arm{CC: cc("cubic"), Weight: 1 << 16, Default: true}), result{"cubic", 0, false, tcp.FlagDefaultArm}},
		{"hold-out", nil, all(reno, lowat(5000), func(p *path.Policy) { p.HoldOut = 1 << 16 }), result{"cubic", 0, false, tcp.FlagHoldOut}},
		{"the same", nil, all(reno, lowat(5000), clamped(400)), result{"reno", 5000, true, 0}},
		{"other values", nil, all(reno, lowat(6000), clamped(300)), result{"reno", 6000, true, 0}},
		{"no policy of the path", nil, nil, result{"cubic", 0, false, 0}},
		{"the application chooses", func(t *testing.T, c net.Conn) {
			setCC(t, c, "cubic")
			setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, 7000)
		}, all(reno, lowat(5000)), result{"cubic", 7000, false, tcp.FlagAppCC}},
	} {
		for end, do := range ends {
			t.Run(x.name+", "+end, func(t *testing.T) {
				r.policy(t, all(reno, lowat(5000), clamped(200)))
				l := listen(t, r.ns, "127.0.0.1:0", nil)
				fd := r.connectTo(t, l, -1)
				c, s := connOf(t, dup(t, fd)), accept(t, l)
				exchange(t, c, s, 1000)
				if cc, v := ccOf(t, c), sockopt(t, c, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT); cc != "reno" || v != 5000 || ssthreshOf(t, c) == infinite {
					t.Fatalf("the first connection has %s, %d, %d", cc, v, ssthreshOf(t, c))
				}
				do(t, c, s)
				must(t, r.DeletePoliciesExcept(func(uint32) bool { return false }))
				if x.second != nil {
					r.policy(t, x.second)
				}
				for _, which := range []string{"second", "third"} {
					if which == "second" && x.between != nil {
						x.between(t, c)
					}
					must(t, unix.SetNonblock(fd, false))
					r.connectTo(t, l, fd)
					c, s = connOf(t, dup(t, fd)), accept(t, l) // what epoll reported of the one before stays with its net.Conn
					for range 10 {
						exchange(t, c, s, 1)
						exchange(t, s, c, 1)
					}
					got := result{cc: ccOf(t, c), lowat: sockopt(t, c, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT), clamp: ssthreshOf(t, c) != infinite}
					before := len(r.samplesOf(cookieOf(c)))
					must(t, s.(*net.TCPConn).SetLinger(0))
					disconnect(t, c)
					must(t, s.Close())
					eventually(t, func() error {
						is := r.samplesOf(cookieOf(c))
						if len(is) <= before {
							return unix.EAGAIN
						}
						got.flags = is[len(is)-1].Flags & flags
						return nil
					})
					if got != x.want {
						t.Errorf("the %s connection has %+v, want %+v", which, got, x.want)
					}
				}
				must(t, unix.Close(fd))
			})
		}
	}
}

// TestRootRefusedSocketHasNothingLeft: the same after a connection that was refused.
func TestRootRefusedSocketHasNothingLeft(t *testing.T) {
	r := newRig(t)
	low := func(p *path.Policy) {
		p.Params.Set(tcp.NotsentLowat, 5000)
		p.Defaults = 1 << tcp.NotsentLowat
	}
	l := listen(t, r.ns, "127.0.0.1:0", nil)
	to := &unix.SockaddrInet4{Port: int(addrPort(l.Addr()).Port()), Addr: [4]byte{127, 0, 0, 1}}
	must(t, l.Close())
	r.policy(t, low)
	var fd int
	r.ns.Do(t, func() {
		var err error
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		if err := unix.Connect(fd, to); err != unix.ECONNREFUSED {
			t.Errorf("connect: %v", err)
		}
	})
	t.Cleanup(func() { must(t, unix.Close(fd)) })
	c := connOf(t, dup(t, fd))
	lowat := func() int { return sockopt(t, c, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT) }
	if got := lowat(); got != 5000 {
		t.Errorf("TCP_NOTSENT_LOWAT is %d", got)
	}
	r.policy(t, func(p *path.Policy) { low(p); p.HoldOut = 1 << 16 })
	listen(t, r.ns, l.Addr().String(), nil)
	must(t, unix.SetNonblock(fd, false))
	must(t, unix.Connect(fd, to))
	if got := lowat(); got != 0 {
		t.Errorf("TCP_NOTSENT_LOWAT of the second connection is %d", got)
	}
}

// TestRootRefusedSocketKeepsItsChoice: a congestion control that the application set before a connection that was refused is its
// choice in the next one, also if the policy drew the same.
func TestRootRefusedSocketKeepsItsChoice(t *testing.T) {
	r := newRig(t)
	l := listen(t, r.ns, "127.0.0.1:0", nil)
	to := &unix.SockaddrInet4{Port: int(addrPort(l.Addr()).Port()), Addr: [4]byte{127, 0, 0, 1}}
	must(t, l.Close())
	r.policy(t, arms(arm("reno", 1<<16)))
	var fd int
	r.ns.Do(t, func() {
		var err error
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		must(t, unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno"))
		if err := unix.Connect(fd, to); err != unix.ECONNREFUSED {
			t.Errorf("connect: %v", err)
		}
	})
	t.Cleanup(func() { must(t, unix.Close(fd)) })
	r.policy(t, func(p *path.Policy) { p.HoldOut = 1 << 16 })
	listen(t, r.ns, l.Addr().String(), nil)
	must(t, unix.SetNonblock(fd, false))
	must(t, unix.Connect(fd, to))
	if got := ccOf(t, connOf(t, dup(t, fd))); got != "reno" {
		t.Errorf("the second connection has %s, want reno", got)
	}
}

// TestRootReusedSocketHasNoMarksLeft: the same of the priority and DSCP of a connection that mostly received.
func TestRootReusedSocketHasNoMarksLeft(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	for _, v6 := range []bool{false, true} {
		for _, own := range [][2]int{{}, {4, 10}} { // what the application sets in between
			r.policy(t, ackMarks(6, 46))
			address := "127.0.0.1:0"
			if v6 {
				address = "[::1]:0"
			}
			c, s := r.pair(t, address)
			r.receive(t, s, c)
			if got := marksOf(t, c, v6); got != [2]int{6, 46} {
				t.Fatalf("the first connection has %v", got)
			}
			must(t, s.(*net.TCPConn).SetLinger(0))
			disconnect(t, c)
			if own[0] != 0 {
				if v6 {
					setsockopt(t, c, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, own[1]<<2)
				} else {
					setsockopt(t, c, unix.IPPROTO_IP, unix.IP_TOS, own[1]<<2)
				}
				setsockopt(t, c, unix.SOL_SOCKET, unix.SO_PRIORITY, own[0])
			}
			r.policy(t, nil)
			l := listen(t, r.ns, address, nil)
			port := int(addrPort(l.Addr()).Port())
			var sa unix.Sockaddr = &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
			if v6 {
				sa = &unix.SockaddrInet6{Port: port, Addr: [16]byte{15: 1}}
			}
			withFD(c, func(fd int) {
				if err := unix.Connect(fd, sa); err != unix.EINPROGRESS {
					must(t, err)
				}
			})
			accept(t, l)
			if got := marksOf(t, c, v6); got != own {
				t.Errorf("IPv6 %v: the second connection has priority and DSCP %v, want %v", v6, got, own)
			}
		}
	}
}
