package datapath

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestRootSamplesOfBothEnds(t *testing.T) {
	r := newRig(t)
	id := r.policy(t, arms(arm("reno", 1<<16)))
	cookie := netnsOf(t, r.ns)
	for _, c := range []struct{ name, listen, dial, client string }{
		{"IPv4", "127.0.0.1:0", "127.0.0.1", "127.0.0.1"},
		{"IPv6", "[::1]:0", "::1", "::1"},
		{"IPv4 to a dual-stack listener", "[::]:0", "127.0.0.1", "127.0.0.1"},
		{"IPv6 to a dual-stack listener", "[::]:0", "::1", "::1"},
		{"IPv4 from a dual-stack socket", "127.0.0.1:0", "::ffff:127.0.0.1", "127.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := listen(t, r.ns, c.listen, nil)
			time.Sleep(20 * time.Millisecond)
			begun := time.Now()
			port := netip.MustParseAddrPort(l.Addr().String()).Port()
			to := netip.AddrPortFrom(netip.MustParseAddr(c.dial), port)
			var client net.Conn
			if to.Addr().Is4In6() {
				client = dialMapped(t, r.ns, to)
			} else {
				client = dial(t, r.ns, to.String(), nil)
			}
			server := accept(t, l)
			accepted := time.Now()
			isClient, isServer := ofConn(client), ofConn(server)
			cc, sc := ccOf(t, client), ccOf(t, server)
			exchange(t, client, server, 300_000)
			exchange(t, server, client, 1000)
			least := time.Since(accepted)
			closeAll(t, client, server)
			most := time.Since(begun)
			a, b := r.find(t, "client", isClient), r.find(t, "server", isServer)
			for _, s := range []tcp.Sample{a, b} {
				if s.Kind != tcp.KindClose || s.End != tcp.EndFin || s.Class != 1 || s.PolicyID != id || s.Arm.String() != "reno" ||
					s.CC.String() != "reno" || s.NetNS != cookie || s.Cgroup != r.cg.ID || s.MSS == 0 || s.SRTT == 0 ||
					s.MinRTT == 0 || s.Cwnd == 0 || s.DeliveryRate == 0 {
					t.Errorf("unexpected sample %+v", s)
				}
				if d := time.Since(time.Unix(0, s.At)); d < 0 || d > 20*time.Second || s.Duration < least-time.Millisecond || s.Duration > most {
					t.Errorf("taken %v ago, after %v, want %v to %v", d, s.Duration, least, most)
				}
			}
			if cc != "reno" || sc != "reno" {
				t.Errorf("congestion controls are %s and %s", cc, sc)
			}
			if !a.Has(tcp.FlagOutgoing) || b.Has(tcp.FlagOutgoing) || a.Connect <= 0 || b.Connect != 0 {
				t.Errorf("directions are wrong: %+v and %+v", a, b)
			}
			want := netip.AddrPortFrom(netip.MustParseAddr(c.client), a.Local.Port())
			if a.Local != want || b.Remote != want || a.Remote != b.Local || a.Remote.Port() != port || a.Local.Port() == 0 {
				t.Errorf("client %s to %s, server %s from %s, want %s", a.Local, a.Remote, b.Local, b.Remote, want)
			}
			// A SYN and a FIN count as one byte each.
			if b.BytesReceived < 300_000 || b.BytesReceived > 300_002 || a.BytesAcked < 300_000 || a.BytesAcked > 300_002 ||
				a.BytesReceived < 1000 || a.BytesReceived > 1002 {
				t.Errorf("bytes acked %d, received %d and %d", a.BytesAcked, b.BytesReceived, a.BytesReceived)
			}
		})
	}
	got, err := r.Counters()
	must(t, err)
	if got.Decisions["policy"] < 10 || got.Decisions["cc-set"] < 10 || got.Slots < 10 || got.Untracked+got.SamplesLost+got.SamplesBad+got.Forgotten != 0 {
		t.Errorf("counters are %+v", got)
	}
	if n, err := r.ClassCounts([]uint32{1}); err != nil || n[0] != (ClassCount{Outgoing: 5, Incoming: 5}) {
		t.Errorf("class 1 has %+v, %v", n, err)
	}
	const later = 1 + maxClassCounts // it has the place of class 1
	r.rules(t, class.Table{Classes: []class.Class{{ID: later}}})
	r.pair(t, "127.0.0.1:0")
	if n, err := r.ClassCounts([]uint32{later}); err != nil || n[0] != (ClassCount{Outgoing: 1, Incoming: 1}) {
		t.Errorf("a later class has %+v, %v", n, err)
	}
}

// TestRootClassCounts: connections without a rule share no place with a class, and a table that does not come into force leaves the
// counts of the present one alone.
func TestRootClassCounts(t *testing.T) {
	r := newRig(t)
	check := func(when string, class uint32, want ClassCount) {
		t.Helper()
		if n, err := r.ClassCounts([]uint32{class}); err != nil || n[0] != want {
			t.Errorf("%s, class %d has %+v, %v; want %+v", when, class, n, err, want)
		}
	}
	none := class.Table{}
	r.rules(t, none)
	r.pair(t, "127.0.0.1:0")
	check("without rules", 0, ClassCount{1, 1})

	const first = maxClassCounts
	r.rules(t, class.Table{Classes: []class.Class{{ID: first}}})
	r.pair(t, "127.0.0.1:0")
	check("with a rule", 0, ClassCount{1, 1})
	check("with a rule", first, ClassCount{1, 1})
	r.rules(t, none)
	r.pair(t, "127.0.0.1:0")
	check("without rules again", 0, ClassCount{2, 2})

	const second = 2 * maxClassCounts // it has the place of the first
	r.rules(t, class.Table{Classes: []class.Class{{ID: second}}})
	r.pair(t, "127.0.0.1:0")
	check("with another rule", second, ClassCount{1, 1})
	config := r.maps.RuntimeConfig
	r.maps.RuntimeConfig = r.maps.RuleBanks // its values have another size
	if err := r.WriteRules(&class.Table{Classes: []class.Class{{ID: 7}}}); err == nil {
		t.Error("rules came into force without a configuration")
	}
	r.maps.RuntimeConfig = config
	check("after a table that could not be written", second, ClassCount{1, 1})
	r.pair(t, "127.0.0.1:0")
	check("after a table that could not be written", second, ClassCount{2, 2})
}

// TestRootSamplesAreRead: with the daemon's own pauses, all samples of single connections and of
// bursts are read long before the reader looks without a wake-up.
func TestRootSamplesAreRead(t *testing.T) {
	r := newRig(t)
	r.crash(t)
	r.wait = pauses{batchPause, busyPause, safetyPoll}
	r.open(t)
	r.policy(t, nil)
	for _, n := range []int{1, 40, 1, 1, 40} {
		begun := time.Now()
		r.churn(t, n)
		if took := time.Since(begun); took > safetyPoll/2 {
			t.Errorf("samples of %d connections are read after %v", n, took)
		}
	}
}

// dialMapped connects an IPv6 socket to an IPv4 address.
func dialMapped(t testing.TB, ns *testenv.NS, to netip.AddrPort) net.Conn {
	t.Helper()
	var c net.Conn
	ns.Do(t, func() {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		must(t, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0))
		must(t, unix.Connect(fd, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}))
		c = connOf(t, fd)
	})
	return c
}

func netnsOf(t testing.TB, ns *testenv.NS) (cookie uint64) {
	ns.Do(t, func() {
		var err error
		cookie, err = netns.Cookie(netns.Own)
		must(t, err)
	})
	return cookie
}

// TestRootSampleAgreesWithTCPInfo compares with what the kernel reports to the
// application just before the end.
func TestRootSampleAgreesWithTCPInfo(t *testing.T) {
	r := newRig(t)
	far := testenv.NetNS(t)
	_, farEnd := testenv.Veth(t, r.ns, far)
	r.policy(t, nil)
	l := listen(t, far, netip.AddrPortFrom(farEnd.V4, 0).String(), func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 20_000)
	})
	c := dial(t, r.ns, l.Addr().String(), nil)
	s := accept(t, l)
	is := ofConn(c)
	const size = 400_000
	all := make(chan struct{})
	go func() { // a slow reader: the window bounds the sender
		buf := make([]byte, 4096)
		for left := size; ; {
			n, err := s.Read(buf)
			if err != nil {
				return
			}
			if left -= n; left == 0 {
				close(all)
			}
			time.Sleep(time.Millisecond)
		}
	}()
	_, err := c.Write(make([]byte, size))
	must(t, err)
	for tcpInfo(t, c).Unacked > 0 || tcpInfo(t, c).Notsent_bytes > 0 {
		time.Sleep(time.Millisecond)
	}
	<-all // until then it sends window updates
	time.Sleep(10 * time.Millisecond)
	info := tcpInfo(t, c)
	must(t, c.(*net.TCPConn).SetLinger(0)) // no FIN that would change the counters
	must(t, c.Close())
	got := r.find(t, "connection", is)
	type number struct {
		name            string
		sample, kernels uint64
	}
	us := func(d time.Duration) uint64 { return uint64(d / time.Microsecond) }
	for _, n := range []number{
		{"bytes acked", got.BytesAcked, info.Bytes_acked}, {"bytes received", got.BytesReceived, info.Bytes_received},
		{"bytes retransmitted", got.BytesRetrans, info.Bytes_retrans},
		{"segments in", uint64(got.SegsIn), uint64(info.Segs_in)},
		{"data segments", uint64(got.DataSegsOut), uint64(info.Data_segs_out)},
		{"retransmits", uint64(got.Retrans), uint64(info.Total_retrans)},
		{"delivered", uint64(got.Delivered), uint64(info.Delivered)}, {"delivered CE", uint64(got.DeliveredCE), uint64(info.Delivered_ce)},
		{"min RTT", uint64(got.MinRTT), uint64(info.Min_rtt)}, {"srtt", uint64(got.SRTT), uint64(info.Rtt)},
		{"rttvar", uint64(got.RTTVar), uint64(info.Rttvar)}, {"cwnd", uint64(got.Cwnd), uint64(info.Snd_cwnd)},
		{"ssthresh", uint64(got.Ssthresh), uint64(info.Snd_ssthresh)}, {"mss", uint64(got.MSS), uint64(info.Snd_mss)},
		{"delivery rate", got.DeliveryRate, info.Delivery_rate},
		{"busy", us(got.Busy), info.Busy_time}, {"rwnd-limited", us(got.RwndLtd), info.Rwnd_limited},
		{"sndbuf-limited", us(got.SndbufLtd), info.Sndbuf_limited},
	} {
		if n.sample != n.kernels {
			t.Errorf("%s: sample %d, tcp_info %d", n.name, n.sample, n.kernels)
		}
	}
	if out := uint64(got.SegsOut); out < uint64(info.Segs_out) || out > uint64(info.Segs_out)+1 { // the RST
		t.Errorf("segments out: sample %d, tcp_info %d", out, info.Segs_out)
	}
	if got.Busy < 20*time.Millisecond || got.RwndLtd < 10*time.Millisecond {
		t.Errorf("busy %v, limited by the receiver for %v", got.Busy, got.RwndLtd)
	}
	// tcpi_delivery_rate_app_limited, a bit that package unix leaves out
	if limited := (*[8]byte)(unsafe.Pointer(info))[7]&1 != 0; limited != got.Has(tcp.FlagAppLimited) {
		t.Errorf("application-limited: sample %v, tcp_info %v", got.Has(tcp.FlagAppLimited), limited)
	}
}

// TestRootRingOverflow fills the ring while it is not read.
func TestRootRingOverflow(t *testing.T) {
	r := newRig(t)
	r.policy(t, nil)
	r.stop()
	capacity := int(r.maps.Samples.MaxEntries()) / (sampleSize + 8) // header of a record
	n := capacity/2 + 500
	l := listen(t, r.ns, "127.0.0.1:0", nil)
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for range n {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
	}()
	to := addrPort(l.Addr())
	begun := time.Now()
	r.ns.Do(t, func() {
		sa := &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
		for range n {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			must(t, err)
			if err := unix.Connect(fd, sa); err != nil && err != unix.ECONNRESET { // the server is fast
				t.Fatal(err)
			}
			must(t, unix.Close(fd))
		}
	})
	t.Logf("%d connections in %v", n, time.Since(begun))
	select {
	case <-accepted:
	case <-time.After(20 * time.Second):
		t.Error("connections are missing")
	}
	must(t, l.Close())
	var got *Counters
	for range 500 {
		var err error
		got, err = r.Counters()
		must(t, err)
		if got.Samples+got.SamplesLost >= uint64(2*n) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if ends := int(got.Samples + got.SamplesLost); ends > 2*n || ends < 2*n-unshown(2*n) || got.SamplesLost < 500 || got.Samples > uint64(capacity) || got.Samples < uint64(capacity)-1 || got.Backwards != 0 {
		t.Errorf("%d ends of connections, %d samples for a ring of %d, %d lost: %+v", 2*n, got.Samples, capacity, got.SamplesLost, got)
	}
	// Reading makes room.
	r.crash(t)
	r.open(t)
	r.count(t, capacity-1, func(*tcp.Sample) bool { return true })
	c, s := r.pair(t, "127.0.0.1:0")
	is := ofConn(c)
	closeAll(t, c, s)
	r.find(t, "a connection after the overflow", is)
}

// TestRootRecordsDoNotWait: single samples and bursts arrive soon, whenever they come in
// the reader's cycle.
func TestRootRecordsDoNotWait(t *testing.T) {
	r := newRig(t)
	r.policy(t, nil)
	l := listen(t, r.ns, "127.0.0.1:0", nil)
	var worst, sum time.Duration
	const n = 60
	for i := range n {
		c := dial(t, r.ns, l.Addr().String(), nil)
		s := accept(t, l)
		isClient, isServer := ofConn(c), ofConn(s)
		time.Sleep(time.Duration(i%15) * time.Millisecond)
		closeAll(t, c, s)
		begun := time.Now()
		r.find(t, "client", isClient)
		r.find(t, "server", isServer)
		d := time.Since(begun)
		worst, sum = max(worst, d), sum+d
	}
	t.Logf("mean %v, worst %v", sum/n, worst)
	if worst > 1500*time.Millisecond {
		t.Errorf("a record waited for %v", worst)
	}
	if sum/n > 100*time.Millisecond {
		t.Errorf("records wait for %v on average", sum/n)
	}
}

// TestRootNoRuleAndLeave: a connection that no rule matches, or that a rule leaves alone,
// is neither changed nor reported.
func TestRootNoRuleAndLeave(t *testing.T) {
	r := newRig(t)
	r.policy(t, arms(arm("reno", 1<<16)))
	for _, c := range []struct {
		name, counter string
		classes       []class.Class
	}{
		{"no rule", "no-rule", nil},
		{"leave", "left-alone", []class.Class{{ID: 1, Leave: true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.rules(t, class.Table{Classes: c.classes})
			before, err := r.Counters()
			must(t, err)
			a, b := r.pair(t, "127.0.0.1:0")
			if ccOf(t, a) != "cubic" || ccOf(t, b) != "cubic" {
				t.Error("changed")
			}
			must(t, r.SetSettings(Settings{Interval: time.Millisecond}))
			for range 3 {
				exchange(t, a, b, 1000)
				r.ns.Do(t, func() { must(t, r.SampleLive()) })
			}
			closeAll(t, a, b)
			after, err := r.Counters()
			must(t, err)
			if n := after.Decisions[c.counter] - before.Decisions[c.counter]; n != 2 {
				t.Errorf("%d counted as %s", n, c.counter)
			}
			if after.Samples != before.Samples {
				t.Errorf("%d samples", after.Samples-before.Samples)
			}
		})
	}
}

// TestRootFastOpen sends data with the SYN. The kernel has not read the clock for the accepted socket when it
// begins: its duration must not begin with the listener's.
func TestRootFastOpen(t *testing.T) {
	r := newRig(t)
	r.policy(t, arms(arm("reno", 1<<16)))
	testenv.Sysctl(t, r.ns, "net.ipv4.tcp_fastopen", "1543") // client, server, and no cookie needed
	l := listen(t, r.ns, "127.0.0.1:0", func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN, 16)
	})
	for range 2 {
		time.Sleep(50 * time.Millisecond)
		begun := time.Now()
		c := dial(t, r.ns, l.Addr().String(), func(fd int) error {
			return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1)
		})
		_, err := c.Write(make([]byte, 500))
		must(t, err)
		s := accept(t, l)
		_, err = io.ReadFull(s, make([]byte, 500))
		must(t, err)
		isClient, isServer := ofConn(c), ofConn(s)
		exchange(t, s, c, 100)
		if ccOf(t, c) != "reno" || ccOf(t, s) != "reno" {
			t.Errorf("%s and %s", ccOf(t, c), ccOf(t, s))
		}
		accepted := time.Now()
		time.Sleep(20 * time.Millisecond)
		least := time.Since(accepted)
		closeAll(t, c, s)
		most := time.Since(begun)
		a, b := r.find(t, "client", isClient), r.find(t, "server", isServer)
		for _, s := range []tcp.Sample{a, b} {
			if s.Duration < least-time.Millisecond || s.Duration > most {
				t.Errorf("duration %v, want %v to %v", s.Duration, least, most)
			}
		}
		if a.End != tcp.EndFin || b.End != tcp.EndFin || a.Kind != tcp.KindClose || b.Kind != tcp.KindClose || b.BytesReceived < 500 || a.Connect <= 0 {
			t.Errorf("%+v\n%+v", a, b)
		}
	}
}

// TestRootRepairedConnection: a connection that TCP_REPAIR restores has no handshake, and begins at a time at
// which the kernel has not read the clock for its socket.
func TestRootRepairedConnection(t *testing.T) {
	r := newRig(t)
	r.policy(t, nil)
	l := listen(t, r.ns, "127.0.0.1:0", nil)
	begun := time.Now()
	c := dial(t, r.ns, l.Addr().String(), func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, unix.TCP_REPAIR_ON)
	})
	// If a socket is closed in repair mode, the kernel resets its counters first.
	setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_REPAIR, unix.TCP_REPAIR_OFF_NO_WP)
	must(t, c.(*net.TCPConn).SetLinger(0)) // nobody would answer its FIN
	is := ofConn(c)
	must(t, c.Close())
	most := time.Since(begun)
	if s := r.find(t, "repaired", is); s.Connect != 0 || s.Duration <= 0 || s.Duration > most {
		t.Errorf("connect %v, duration %v, want 0 and at most %v", s.Connect, s.Duration, most)
	}
}

// TestRootMultipath has MPTCP connections: each subflow is a connection. The kernel resets the first subflow of an end
// (tcp_disconnect in __mptcp_subflow_disconnect) if it is closed before that end is, or at that time.
func TestRootMultipath(t *testing.T) {
	r := newRig(t)
	r.policy(t, nil)
	r.multipathEnds(t, func(c, s *net.TCPConn) { closeAll(t, c, s) })
	r.multipathEnds(t, func(c, s *net.TCPConn) { closeAll(t, s, c) })
	r.multipathEnds(t, func(c, s *net.TCPConn) {
		must(t, c.CloseWrite())
		_, err := io.ReadAll(s)
		must(t, err)
		must(t, s.CloseWrite())
		_, err = io.ReadAll(c)
		must(t, err)
		time.Sleep(50 * time.Millisecond) // both subflows are over
		closeAll(t, c, s)
	})
	r.multipathEnds(t, func(c, s *net.TCPConn) { // while no process runs
		r.crash(t)
		closeAll(t, c, s)
		r.open(t)
	})
	if n, err := r.Counters(); err != nil || len(n.Events) > 0 {
		t.Errorf("events %+v, %v: no rule asks for them", n.Events, err)
	}
}

// multipathEnds has a connection of MPTCP that end ends, and checks the samples of its two subflows.
func (r *rig) multipathEnds(t *testing.T, end func(c, s *net.TCPConn)) {
	t.Helper()
	c, s := r.multipath(t)
	local := addrPort(c.LocalAddr())
	exchange(t, c, s, 100_000)
	end(c, s)
	for _, s := range r.count(t, 2, func(s *tcp.Sample) bool { return s.Local == local || s.Remote == local }) {
		bytes := s.BytesReceived
		if s.Local == local {
			bytes = s.BytesAcked
		}
		if s.Kind != tcp.KindClose || s.Class != 1 || bytes < 100_000 || s.End != tcp.EndFin {
			t.Errorf("%+v", s)
		}
	}
	if n, err := r.Counters(); err != nil || n.Backwards > 0 {
		t.Errorf("%d subflows without a sample, %v", n.Backwards, err)
	}
}

// multipath is a connection of MPTCP, if the kernel has it.
func (r *rig) multipath(t testing.TB) (c, s *net.TCPConn) {
	t.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(true)
	var d net.Dialer
	d.SetMultipathTCP(true)
	var l net.Listener
	r.ns.Do(t, func() {
		var err error
		l, err = lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		must(t, err)
		conn, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
		must(t, err)
		c = conn.(*net.TCPConn)
	})
	s = accept(t, l).(*net.TCPConn)
	must(t, l.Close())
	if on, err := c.MultipathTCP(); err != nil || !on {
		testenv.Missing(t, fmt.Sprintf("the kernel has no MPTCP: %v", err))
	}
	return c, s
}

// subflows returns samples of both ends of a connection of MPTCP while it lives.
func (r *rig) subflows(t testing.TB) []tcp.Sample {
	t.Helper()
	r.needLive(t)
	must(t, r.SetSettings(Settings{Fields: 1<<tcp.NumFields - 1, Interval: 10 * time.Millisecond}))
	c, s := r.multipath(t)
	exchange(t, c, s, 100_000)
	exchange(t, s, c, 100_000)
	time.Sleep(20 * time.Millisecond)
	r.walk(t, r.ns)
	defer closeAll(t, c, s)
	return r.count(t, 2, func(s *tcp.Sample) bool { return s.Kind == tcp.KindInterval })
}
