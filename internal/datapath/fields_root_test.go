package datapath

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// Options that package unix does not name.
const (
	optRTOMax   = 44 // TCP_RTO_MAX_MS
	optTxRehash = 74 // SO_TXREHASH
)

// fieldCase sets one field and reads it back from a socket.
type fieldCase struct {
	field tcp.Field
	value uint64
	read  func(t testing.TB, c socket) int
	want  int
	ends  string // which ends show it: client, server, both
	v6    bool
}

func opt(level, name int) func(testing.TB, socket) int {
	return func(t testing.TB, c socket) int { return sockopt(t, c, level, name) }
}

var fieldCases = []fieldCase{
	{tcp.InitCwnd, 42, func(t testing.TB, c socket) int { return int(tcpInfo(t, c).Snd_cwnd) }, 42, "both", false},
	{tcp.CwndClamp, 7, func(t testing.TB, c socket) int { return int(tcpInfo(t, c).Snd_ssthresh) }, 7, "both", false},
	{tcp.RTOMax, 2000, opt(unix.IPPROTO_TCP, optRTOMax), 2000, "both", false},
	{tcp.Sndbuf, 50_000, opt(unix.SOL_SOCKET, unix.SO_SNDBUF), 100_000, "both", false},
	{tcp.Rcvbuf, 50_000, opt(unix.SOL_SOCKET, unix.SO_RCVBUF), 100_000, "both", false},
	{tcp.WindowClamp, 30_000, opt(unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP), 30_000, "both", false},
	{tcp.NotsentLowat, 12_345, opt(unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT), 12_345, "both", false},
	{tcp.RcvLowat, 77, opt(unix.SOL_SOCKET, unix.SO_RCVLOWAT), 77, "both", false},
	{tcp.MaxPacingRate, 1_234_567, opt(unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE), 1_234_567, "both", false},
	{tcp.MaxSeg, 1000, func(t testing.TB, c socket) int { return int(tcpInfo(t, c).Snd_mss+12) / 100 * 100 }, 1000, "client", false},
	{tcp.NoDelay, 1, opt(unix.IPPROTO_TCP, unix.TCP_NODELAY), 1, "both", false},
	{tcp.ThinLinearTimeouts, 1, opt(unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS), 1, "both", false},
	{tcp.UserTimeout, 4321, opt(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT), 4321, "both", false},
	{tcp.SynCount, 3, opt(unix.IPPROTO_TCP, unix.TCP_SYNCNT), 3, "both", false},
	{tcp.SaveSyn, 1, opt(unix.IPPROTO_TCP, unix.TCP_SAVE_SYN), 1, "both", false},
	{tcp.KeepAlive, 1, opt(unix.SOL_SOCKET, unix.SO_KEEPALIVE), 1, "both", false},
	{tcp.KeepIdle, 99, opt(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE), 99, "both", false},
	{tcp.KeepInterval, 9, opt(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL), 9, "both", false},
	{tcp.KeepCount, 4, opt(unix.IPPROTO_TCP, unix.TCP_KEEPCNT), 4, "both", false},
	{tcp.Priority, 5, opt(unix.SOL_SOCKET, unix.SO_PRIORITY), 5, "both", false},
	{tcp.Mark, 4242, opt(unix.SOL_SOCKET, unix.SO_MARK), 4242, "both", false},
	{tcp.TxRehash, 0, opt(unix.SOL_SOCKET, optTxRehash), 0, "both", false},
	{tcp.TOS, 0x48, opt(unix.IPPROTO_IP, unix.IP_TOS), 0x48, "both", false},
	{tcp.TClass, 0x48, opt(unix.IPPROTO_IPV6, unix.IPV6_TCLASS), 0x48, "both", true},
}

// otherFieldTests are fields that no option shows; their effect is measured.
var otherFieldTests = map[tcp.Field]string{
	tcp.RTOMin: "TestRootRTOMin", tcp.DelackMax: "TestRootDelackMax", tcp.SynRTO: "TestRootSynRTO",
	tcp.SynAckRTO: "TestRootSynAckRTO", tcp.InitRwnd: "TestRootInitRwnd", tcp.ECN: "TestRootECN",
	tcp.AckPriority: "TestRootAckMarks", tcp.AckDSCP: "TestRootAckMarks",
	tcp.PeerOption: "TestRootPeerOption", tcp.ResumeCwnd: "TestRootResume",
	tcp.BaseRTT: "only the congestion control nv asks for it; see requestMask",
}

func TestEveryFieldIsTested(t *testing.T) {
	seen := map[tcp.Field]bool{}
	for _, c := range fieldCases {
		seen[c.field] = true
	}
	for f := range tcp.NumFields {
		if _, other := otherFieldTests[f]; seen[f] == other {
			t.Errorf("%s: read back %v, measured %v", f, seen[f], other)
		}
	}
}

// plainPair has sockets without any option set; package net sets some.
func plainPair(t testing.TB, r *rig, v6 bool) (client, server *os.File) {
	t.Helper()
	address, family := "127.0.0.1:0", unix.AF_INET
	if v6 {
		address, family = "[::1]:0", unix.AF_INET6
	}
	l := listen(t, r.ns, address, nil)
	to := addrPort(l.Addr())
	var sa unix.Sockaddr = &unix.SockaddrInet4{Port: int(to.Port()), Addr: [4]byte{127, 0, 0, 1}}
	if v6 {
		sa = &unix.SockaddrInet6{Port: int(to.Port()), Addr: netip.IPv6Loopback().As16()}
	}
	r.ns.Do(t, func() {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		must(t, unix.Connect(fd, sa))
		client = fileOf(t, fd)
	})
	lfd, err := l.(*net.TCPListener).File()
	must(t, err)
	defer lfd.Close()
	fd, _, err := unix.Accept4(int(lfd.Fd()), unix.SOCK_CLOEXEC)
	must(t, err)
	return client, fileOf(t, fd)
}

func fileOf(t testing.TB, fd int) *os.File {
	f := os.NewFile(uintptr(fd), "socket")
	t.Cleanup(func() { f.Close() })
	return f
}

func TestRootFieldsAreSet(t *testing.T) {
	r := newRig(t)
	for _, c := range fieldCases {
		t.Run(c.field.String(), func(t *testing.T) {
			r.policy(t, nil)
			plain, plainServer := plainPair(t, r, c.v6)
			id := r.policy(t, set(c.field, c.value))
			client, server := plainPair(t, r, c.v6)
			counters, err := r.Counters()
			must(t, err)
			if n := counters.FieldErrors[c.field]; n != 0 {
				if kernelLacks(c.field) {
					return // tried, refused, and counted, as it should be
				}
				t.Fatalf("%d errors", n)
			}
			is := ofConn(client)
			for name, pair := range map[string][2]socket{"client": {client, plain}, "server": {server, plainServer}} {
				if c.ends != "both" && c.ends != name {
					continue
				}
				got, before := c.read(t, pair[0]), c.read(t, pair[1])
				if got != c.want {
					t.Errorf("%s has %d, want %d", name, got, c.want)
				}
				// A default that equals the value would show nothing.
				if before == c.want {
					t.Errorf("%s has %d without a policy, too", name, before)
				}
			}
			closeAll(t, client, server)
			if s := r.find(t, "client", is); s.PolicyID != id {
				t.Errorf("policy %d, want %d", s.PolicyID, id)
			}
		})
	}
}

// kernelLacks are fields of kernels later than the oldest supported one. Whether a kernel
// accepts such an option is tested.
func kernelLacks(f tcp.Field) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	o := options[f]
	return unix.SetsockoptInt(fd, int(o.Level), int(o.Name), int(probeValues[f])) == unix.ENOPROTOOPT
}

// TestRootHoldOutAndYieldSetNothing compares with a connection that is older than the policies.
func TestRootHoldOutAndYieldSetNothing(t *testing.T) {
	r := newRig(t)
	base, _ := plainPair(t, r, false)
	var cookie uint64
	r.ns.Do(t, func() {
		var err error
		cookie, err = netns.Cookie(netns.Own)
		must(t, err)
	})
	mark := func(c socket) int { return sockopt(t, c, unix.SOL_SOCKET, unix.SO_MARK) }
	both := func(p *path.Policy) {
		arms(arm("reno", 1<<16))(p)
		p.Params.Set(tcp.Mark, 7)
		p.Params.Set(tcp.InitCwnd, 42)
		p.Params.Set(tcp.ECN, 1)
	}
	for _, c := range []struct {
		name     string
		prepare  func()
		mark     int
		cwnd     bool
		cc       string
		flag     tcp.Flags
		decision string
	}{
		{"policy", func() { r.policy(t, both) }, 7, true, "reno", 0, "policy"},
		{"hold-out", func() { r.policy(t, func(p *path.Policy) { both(p); p.HoldOut = 1 << 16 }) }, 0, false, "cubic", tcp.FlagHoldOut, "hold-out"},
		{"expired", func() { r.policyOf(t, path.Root(1, 0), time.Now().Add(-time.Millisecond), both) }, 0, false, "cubic", 0, "lease-expired"},
		{"field yielded", func() {
			r.policy(t, both)
			must(t, r.SetSettings(Settings{Fields: 1<<tcp.NumFields - 1, Yields: []Yield{{NetNS: cookie, Fields: 1 << tcp.Mark}}}))
		}, 0, true, "reno", 0, "policy"},
		{"congestion control yielded", func() {
			r.policy(t, both)
			must(t, r.SetSettings(Settings{Fields: 1<<tcp.NumFields - 1, Yields: []Yield{{NetNS: cookie, CC: true}}}))
		}, 7, true, "cubic", 0, "policy"},
		{"everything yielded to another namespace", func() {
			r.policy(t, both)
			must(t, r.SetSettings(Settings{Fields: 1<<tcp.NumFields - 1, Yields: []Yield{{NetNS: cookie + 1<<32, Fields: ^uint64(0), CC: true}}}))
		}, 7, true, "reno", 0, "policy"},
		{"a rule that names a namespace or cgroup overrides a yield", func() {
			r.rules(t, class.Table{Classes: []class.Class{{ID: 1, Named: true}}})
			r.policy(t, both)
			must(t, r.SetSettings(Settings{Fields: 1<<tcp.NumFields - 1, Inherited: []tcp.CC{cc("bbr")}, Yields: []Yield{{NetNS: cookie, Fields: ^uint64(0), CC: true}}}))
		}, 7, true, "reno", 0, "policy"},
		{"the default that namespaces inherit", func() {
			r.rules(t, class.Table{Classes: []class.Class{{ID: 1}}})
			r.policy(t, both)
			must(t, r.SetSettings(Settings{Fields: 1<<tcp.NumFields - 1, Inherited: []tcp.CC{cc("bbr"), cc("cubic")}}))
		}, 7, true, "reno", 0, "policy"},
		{"a namespace's own default", func() {
			r.policy(t, both)
			must(t, r.SetSettings(Settings{Fields: 1<<tcp.NumFields - 1, Inherited: []tcp.CC{cc("bbr")}}))
		}, 7, true, "cubic", tcp.FlagAppCC, "policy"},
		{"everything yielded", func() {
			r.policy(t, both)
			must(t, r.SetSettings(Settings{Fields: 1<<tcp.NumFields - 1, Yields: []Yield{{NetNS: cookie, Fields: ^uint64(0), CC: true}}}))
		}, 0, false, "cubic", 0, "policy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			testenv.Sysctl(t, r.ns, "net.ipv4.tcp_ecn", "0")
			before, err := r.Counters()
			must(t, err)
			c.prepare()
			a, b := plainPair(t, r, false)
			after, err := r.Counters()
			must(t, err)
			for _, conn := range []socket{a, b} {
				want := int(tcpInfo(t, base).Snd_cwnd)
				if c.cwnd {
					want = 42
				}
				if mark(conn) != c.mark || ccOf(t, conn) != c.cc || int(tcpInfo(t, conn).Snd_cwnd) != want {
					t.Errorf("mark %d, %s, window %d; want %d, %s, %d", mark(conn), ccOf(t, conn), tcpInfo(t, conn).Snd_cwnd, c.mark, c.cc, want)
				}
			}
			if n := after.Decisions[c.decision] - before.Decisions[c.decision]; n != 2 {
				t.Errorf("%d counted as %s", n, c.decision)
			}
			isA, isB := ofConn(a), ofConn(b)
			closeAll(t, a, b)
			for _, s := range []tcp.Sample{r.find(t, "client", isA), r.find(t, "server", isB)} {
				if !s.Has(c.flag) || s.Has(tcp.FlagCCChanged) {
					t.Errorf("flags %b", s.Flags)
				}
				// ECN is requested in the cases in which init_cwnd is set.
				if ecn := c.cwnd; s.Has(tcp.FlagECN) != ecn {
					t.Errorf("ECN %v, want %v", s.Has(tcp.FlagECN), ecn)
				}
			}
		})
	}
}

// TestRootPolicyExpiresInHandshake: a policy that is over by the end of the handshake sets no fields then.
func TestRootPolicyExpiresInHandshake(t *testing.T) {
	r := newRig(t)
	far := testenv.NetNS(t)
	near, farEnd := testenv.Veth(t, r.ns, far)
	l := listen(t, far, netip.AddrPortFrom(farEnd.V4, 0).String(), nil)
	for _, c := range []struct {
		name    string
		expires time.Duration // from the moment at which the SYN was sent
		want    uint32
	}{{"valid", valid, 42}, {"expired", -time.Second, 10}} {
		t.Run(c.name, func(t *testing.T) {
			r.policy(t, set(tcp.InitCwnd, 42))
			restore := vanish(t, near, farEnd)
			to := addrPort(l.Addr())
			var fd int
			r.ns.Do(t, func() {
				var err error
				fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
				must(t, err)
				if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != unix.EINPROGRESS {
					t.Fatalf("connect: %v", err)
				}
			})
			conn := connOf(t, fd)
			r.policyOf(t, path.Root(1, 0), time.Now().Add(c.expires), set(tcp.InitCwnd, 42))
			restore()
			accept(t, l)
			if got := tcpInfo(t, conn); got.Snd_cwnd != c.want || got.Total_retrans == 0 {
				t.Errorf("window %d, want %d; %d retransmissions", got.Snd_cwnd, c.want, got.Total_retrans)
			}
		})
	}
}

// TestRootLease: no connection is changed once the lease has expired, whatever the maps
// contain.
func TestRootLease(t *testing.T) {
	r := newRig(t)
	r.policy(t, arms(arm("reno", 1<<16)))
	var a, b net.Conn
	r.inLease(t, 300*time.Millisecond, func() { a, b = r.pair(t, "127.0.0.1:0") }, func() {})
	if ccOf(t, a) != "reno" || ccOf(t, b) != "reno" {
		t.Error("the lease has no effect yet")
	}
	c, d := r.pair(t, "127.0.0.1:0")
	if ccOf(t, c) != "cubic" || ccOf(t, d) != "cubic" {
		t.Error("the lease has expired, and connections are still changed")
	}
	isA := ofConn(a)
	closeAll(t, a, b, c, d)
	r.find(t, "a connection that began within the lease", isA)
	must(t, r.SetLease(time.Minute))
	e, f := r.pair(t, "127.0.0.1:0")
	if ccOf(t, e) != "reno" || ccOf(t, f) != "reno" {
		t.Error("a renewed lease has no effect")
	}
}

// TestRootFieldRefused: fields that the kernel refuses are counted, and the others are
// set all the same.
func TestRootFieldRefused(t *testing.T) {
	r := newRig(t)
	r.policy(t, func(p *path.Policy) {
		p.Params.Set(tcp.KeepIdle, 40_000) // more than MAX_TCP_KEEPIDLE
		p.Params.Set(tcp.Mark, 9)
	})
	c, s := r.pair(t, "127.0.0.1:0")
	for _, conn := range []net.Conn{c, s} {
		if sockopt(t, conn, unix.SOL_SOCKET, unix.SO_MARK) != 9 {
			t.Error("the field after the refused one is not set")
		}
	}
	got, err := r.Counters()
	must(t, err)
	if n := got.FieldErrors[tcp.KeepIdle]; n != 2 || len(got.FieldErrors) != 1 {
		t.Errorf("refusals are %v", got.FieldErrors)
	}
}

// TestRootProbe: the result of the probe agrees with what the programs can set.
func TestRootProbe(t *testing.T) {
	testenv.Root(t)
	cg := testenv.Cgroup(t)
	verdicts, err := Probe(cg.Path, []tcp.CC{cc("reno"), cc("nosuchcc")})
	must(t, err)
	n := 0
	for _, v := range verdicts {
		if v.Err == errNoAnswer {
			t.Errorf("%s at %s: %v", v.Option, v.Hook, v.Err)
		}
		if v.Option == "nosuchcc" && v.Err == nil || v.Option == "reno" && v.Err != nil {
			t.Errorf("%s at %s: %v", v.Option, v.Hook, v.Err)
		}
		if f, ok := tcp.FieldByName(v.Option); ok {
			n++
			usual := tcp.Fields[f].When == tcp.AtEstablished == (v.Hook != HookConnect)
			if v.Err != nil && usual && !kernelLacks(f) {
				t.Errorf("%s at %s: %v", v.Option, v.Hook, v.Err)
			}
		}
	}
	if n != len(options)*len(hooks) {
		t.Errorf("%d verdicts on %d options", n, len(options))
	}
}

// TestRootInitCwndComesFirst: a congestion control starts with the policy's window, on
// both ends: bbr computes its first pacing rate from it.
func TestRootInitCwndComesFirst(t *testing.T) {
	r := newRig(t)
	if _, _, err := loadBBR(t, r); err != nil {
		testenv.Missing(t, "no bbr: "+err.Error())
	}
	near, far := testenv.Veth(t, r.ns, testenv.NetNS(t)) // its packets are of 1500 bytes
	_ = near
	const window = 80
	r.policy(t, func(p *path.Policy) {
		arms(arm("bbr", 1<<16))(p)
		p.Params.Set(tcp.InitCwnd, window)
	})
	l := listen(t, far.NS, netip.AddrPortFrom(far.V4, 0).String(), nil)
	c := dial(t, r.ns, l.Addr().String(), nil)
	s := accept(t, l)
	for end, conn := range map[string]net.Conn{"outgoing": c, "incoming": s} {
		i := tcpInfo(t, conn)
		// bbr_init_pacing_rate_from_rtt: the window a round trip, times bbr_high_gain, less 1 %
		want := 0.99 * 2885.0 / 1000 * window * float64(i.Snd_mss) / (float64(i.Rtt) / 1e6)
		got := float64(i.Pacing_rate)
		t.Logf("%s: %s with window %d, first pacing rate %.2f of what it gives", end, ccOf(t, conn), i.Snd_cwnd, got/want)
		if ccOf(t, conn) != "bbr" || i.Snd_cwnd != window || got < 0.9*want || got > 1.2*want {
			t.Errorf("%s: %s, window %d, first pacing rate %.0f, want %.0f", end, ccOf(t, conn), i.Snd_cwnd, got, want)
		}
	}
}
