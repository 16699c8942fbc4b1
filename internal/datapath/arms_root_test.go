package datapath

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// churn makes n connections, each from an address and a port of its own, and
// returns the samples of the clients and of the servers: all but those of unshown ends.
func (r *rig) churn(t testing.TB, n int) (clients, servers []tcp.Sample) {
	t.Helper()
	to := r.churnAll(t, n)
	out := func(want bool) []tcp.Sample {
		return r.countShown(t, n, func(s *tcp.Sample) bool {
			end := s.Local
			if want {
				end = s.Remote
			}
			return s.Has(tcp.FlagOutgoing) == want && end == to
		})
	}
	return out(true), out(false)
}

// churnAll returns the address of the listener. Connections come one after the other and
// the server closes first, so that both ends are over when the client's close returns. An
// end by a timer would happen in the context of the process that the timer interrupts
// (see unshown).
func (r *rig) churnAll(t testing.TB, n int) netip.AddrPort {
	t.Helper()
	l := listen(t, r.ns, "127.0.0.1:0", nil)
	to := addrPort(l.Addr())
	r.ns.Do(t, func() {
		for i := range n {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			must(t, err)
			must(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 1, byte(i >> 8), byte(i)}}))
			must(t, unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}))
			server, err := l.Accept()
			must(t, err)
			must(t, server.Close())
			must(t, unix.Close(fd))
		}
	})
	return to
}

// TestRootArmsFollowWeights draws many times, and compares with the weights by a
// chi-square test that a sound draw fails once in 100,000 runs.
func TestRootArmsFollowWeights(t *testing.T) {
	r := newRig(t)
	weights := map[string]uint32{"cubic": 39322, "reno": 19661, "nosuchcc": 6553}
	const holdOut = 6554 // 10 %
	r.policy(t, func(p *path.Policy) {
		arms(arm("cubic", weights["cubic"]), arm("reno", weights["reno"]), arm("nosuchcc", weights["nosuchcc"]))(p)
		p.HoldOut = holdOut
	})
	const n = 2000
	clients, servers := r.churn(t, n)
	for side, samples := range map[string][]tcp.Sample{"outgoing": clients, "incoming": servers} {
		held, drawn := 0, map[string]int{}
		for i := range samples {
			s := &samples[i]
			if s.Has(tcp.FlagHoldOut) {
				held++
				if s.Arm != (tcp.CC{}) || s.CC.String() != "cubic" {
					t.Errorf("a hold-out has arm %s and %s", s.Arm, s.CC)
				}
				continue
			}
			drawn[s.Arm.String()]++
			failed := s.Arm.String() == "nosuchcc"
			if s.Has(tcp.FlagArmFailed) != failed || !failed && s.CC != s.Arm || s.Has(tcp.FlagCCChanged) {
				t.Errorf("arm %s, in use %s, flags %b", s.Arm, s.CC, s.Flags)
			}
		}
		if want := float64(n) * holdOut / (1 << 16); math.Abs(float64(held)-want) > 4.5*math.Sqrt(want*0.9) {
			t.Errorf("%s: %d hold-outs of %d, want about %.0f", side, held, n, want)
		}
		chi := 0.0
		for name, w := range weights {
			want := float64(n-held) * float64(w) / (1 << 16)
			chi += (float64(drawn[name]) - want) * (float64(drawn[name]) - want) / want
		}
		t.Logf("%s: %d hold-outs, %v, chi-square %.1f", side, held, drawn, chi)
		if chi > 23 || len(drawn) != len(weights) { // 2 degrees of freedom
			t.Errorf("%s: drawn %v for weights %v", side, drawn, weights)
		}
	}
	c, err := r.Counters()
	must(t, err)
	if c.CCErrors[cc("nosuchcc")] == 0 || c.CCErrors[cc("nosuchcc")] != c.Decisions["cc-failed"] || c.CCErrors[cc("cubic")] != 0 {
		t.Errorf("errors are %v, decisions %v", c.CCErrors, c.Decisions)
	}
	if c.Decisions["hold-out"]+c.Decisions["policy"] != 2*n || c.Decisions["cc-same"] == 0 || c.Decisions["cc-set"] == 0 {
		t.Errorf("decisions are %v", c.Decisions)
	}
}

// TestRootSliceIsDrawnOnce: connections to one network that begin in the same slice of
// the wall clock have the same arm; the next slice may have another.
func TestRootSliceIsDrawnOnce(t *testing.T) {
	r := newRig(t)
	const shift = 23 // 8.4 ms
	r.policy(t, func(p *path.Policy) {
		arms(arm("cubic", 1<<15), arm("reno", 1<<15))(p)
		p.Slice = shift
	})
	const near = int64(time.Millisecond / 2) // the two clocks are read one after the other
	drawn := map[int64]tcp.CC{}
	count := map[tcp.CC]int{}
	for batch := 0; len(drawn) < 30 && batch < 300; batch++ {
		clients, _ := r.churn(t, 50)
		for i := range clients {
			s := &clients[i]
			begun := s.At - int64(s.Duration)
			slice := begun >> shift
			if (begun-near)>>shift != slice || (begun+near)>>shift != slice {
				continue
			}
			if was, ok := drawn[slice]; !ok {
				drawn[slice] = s.Arm
				count[s.Arm]++
			} else if was != s.Arm {
				t.Errorf("slice %d has connections with %s and %s", slice, was, s.Arm)
			}
		}
	}
	t.Logf("%d slices, by arm %v", len(drawn), count)
	if len(drawn) < 30 {
		t.Fatal("too few slices")
	}
	if half := float64(len(drawn)) / 2; math.Abs(float64(count[cc("reno")])-half) > 4.5*math.Sqrt(half/2) {
		t.Errorf("of %d slices %d have reno, want about half", len(drawn), count[cc("reno")])
	}
}

// TestRootMissedEnds: if the kernel skips a program that would interrupt itself, this is
// counted, and a second program is attached.
func TestRootMissedEnds(t *testing.T) {
	r := newRig(t)
	r.crash(t)
	r.noSpare = true
	r.open(t)
	r.policy(t, nil)
	if r.spare != nil || exists(filepath.Join(r.dir, sparePin)) {
		t.Error("there is a spare already")
	}
	const n, clients = 1000, 4
	var all sync.WaitGroup
	for range clients { // so that they interrupt each other
		all.Go(func() { r.churnAll(t, n/clients) })
	}
	all.Wait()
	var c *Counters
	eventually(t, func() (err error) {
		if c, err = r.Counters(); err == nil && (c.Samples > 2*n || c.Samples+c.Missed < uint64(2*n-unshown(n))) {
			err = fmt.Errorf("%d samples, %d missed, want %d", c.Samples, c.Missed, 2*n)
		}
		return err
	})
	t.Logf("%d of %d missed", c.Missed, 2*n)
	must(t, r.SetLease(time.Minute))
	if (r.spare != nil) != (c.Missed > 0) {
		t.Errorf("%d missed, spare attached: %v", c.Missed, r.spare != nil)
	}
	again, err := r.Counters()
	must(t, err)
	if again.Missed != c.Missed {
		t.Errorf("%d missed, then %d", c.Missed, again.Missed)
	}
}

// TestRootChosenCCsAreKept: congestion controls that the application or the administrator chose
// are not changed.
func TestRootChosenCCsAreKept(t *testing.T) {
	r := newRig(t)
	r.policy(t, arms(arm("reno", 1<<16)))
	if !strings.Contains(testenv.ReadSysctl(t, nil, "net.ipv4.tcp_available_congestion_control"), "bbr") {
		if _, _, err := loadBBR(t, r); err != nil {
			testenv.Missing(t, "no bbr, or another third congestion control: "+err.Error())
		}
	}
	type result struct {
		client, server   string // congestion controls
		cflags, sflags   tcp.Flags
		clientC, serverC tcp.CC
	}
	runAt := func(t *testing.T, ns *testenv.NS, address string, onListener, onClient control, late func(c, s net.Conn)) result {
		l := listen(t, ns, address, onListener)
		c := dial(t, r.ns, l.Addr().String(), onClient)
		s := accept(t, l)
		if late != nil {
			late(c, s)
		}
		res := result{client: ccOf(t, c), server: ccOf(t, s)}
		isC, isS := ofConn(c), ofConn(s)
		closeAll(t, c, s)
		a, b := r.find(t, "client", isC), r.find(t, "server", isS)
		const chosen = tcp.FlagAppCC | tcp.FlagCCChanged
		res.cflags, res.sflags, res.clientC, res.serverC = a.Flags&chosen, b.Flags&chosen, a.CC, b.CC
		return res
	}
	run := func(t *testing.T, onListener, onClient control, late func(c, s net.Conn)) result {
		return runAt(t, r.ns, "127.0.0.1:0", onListener, onClient, late)
	}
	reno, bbr := cc("reno"), cc("bbr")
	for _, c := range []struct {
		name               string
		onListener, onConn control
		late               func(c, s net.Conn)
		want               result
	}{
		{"not chosen", nil, nil, nil, result{"reno", "reno", 0, 0, reno, reno}},
		{"before connect", nil, wantCC("bbr"), nil, result{"bbr", "reno", tcp.FlagAppCC, 0, bbr, reno}},
		{"the arm itself", nil, wantCC("reno"), nil, result{"reno", "reno", tcp.FlagAppCC, 0, reno, reno}},
		{"on the listener", wantCC("bbr"), nil, nil, result{"reno", "bbr", 0, tcp.FlagAppCC, reno, bbr}},
		{"after connect", nil, nil, func(c, s net.Conn) { setCC(t, c, "bbr"); setCC(t, s, "bbr") },
			result{"bbr", "bbr", tcp.FlagCCChanged, tcp.FlagCCChanged, bbr, bbr}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := run(t, c.onListener, c.onConn, c.late); got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
	near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
	for name, congctl := range map[string][]string{
		"on the route": {"congctl", "bbr"}, "on the route, locked": {"congctl", "lock", "bbr"},
	} {
		t.Run(name, func(t *testing.T) {
			subnet := netip.PrefixFrom(far.V4, 24).Masked().String()
			r.ns.Run(t, "ip", append([]string{"route", "replace", subnet, "dev", near.Name}, congctl...)...)
			got := runAt(t, far.NS, netip.AddrPortFrom(far.V4, 0).String(), nil, nil, nil)
			if want := (result{"bbr", "reno", tcp.FlagAppCC, 0, bbr, reno}); got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
	t.Run("by a hold-out's application", func(t *testing.T) {
		r.policy(t, func(p *path.Policy) { p.HoldOut = 1 << 16 })
		if got, want := run(t, nil, wantCC("bbr"), nil), (result{"bbr", "cubic", tcp.FlagAppCC, 0, bbr, cc("cubic")}); got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	})
	c, err := r.Counters()
	must(t, err)
	if c.Decisions["app-chose"] != 5 {
		t.Errorf("decisions are %v", c.Decisions)
	}
}

// loadBBR makes the kernel load its bbr module, if it has one.
func loadBBR(t testing.TB, r *rig) (_, _ struct{}, err error) {
	l := listen(t, r.ns, "127.0.0.1:0", nil)
	withFD(l, func(fd int) { err = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "bbr") })
	return
}

// TestRootArmsAreAdopted: a later process knows the numbers of the arms of live
// connections, and does not use them for other arms.
func TestRootArmsAreAdopted(t *testing.T) {
	r := newRig(t)
	r.policy(t, arms(arm("reno", 1<<15), arm("cubic", 1<<15)))
	clients, servers := make([]net.Conn, 10), make([]net.Conn, 10)
	for i := range clients {
		clients[i], servers[i] = r.pair(t, "127.0.0.1:0")
	}
	r.crash(t)
	r.open(t)
	if !r.Adopted() {
		t.Error("not adopted")
	}
	r.policy(t, arms(arm("nosuchcc", 1<<16)))
	for i := range clients {
		want, is := ccOf(t, clients[i]), ofConn(clients[i])
		closeAll(t, clients[i], servers[i])
		if s := r.find(t, "client", is); s.Arm.String() != want || s.Has(tcp.FlagCCChanged|tcp.FlagArmFailed) {
			t.Errorf("arm %s of a connection with %s, flags %b", s.Arm, want, s.Flags)
		}
	}
}

// TestRootWatch counts callbacks of a share of connections, beside a program that is not
// tcpilot's.
func TestRootWatch(t *testing.T) {
	r := newRig(t)
	near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
	r.policy(t, nil)
	watchAll := class.Class{ID: 1, Watch: class.WatchRTO | class.WatchRetransmit | class.WatchState, WatchShare: 1 << 16}
	r.rules(t, class.Table{Classes: []class.Class{watchAll}})
	l := listen(t, far.NS, netip.AddrPortFrom(far.V4, 0).String(), nil)
	c := dial(t, r.ns, l.Addr().String(), nil)
	accept(t, l)
	vanish(t, near, far)
	setsockopt(t, c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 700)
	_, err := c.Write(make([]byte, 1000))
	must(t, err)
	awaitErr(t, c, unix.ETIMEDOUT)
	events := func() map[string]uint64 {
		got, err := r.Counters()
		must(t, err)
		out := map[string]uint64{}
		for _, e := range got.Events {
			if e.Class == 1 {
				out[e.Name] += e.Count
			}
		}
		return out
	}
	got := events()
	if got["rto"] == 0 || got["retransmit"] == 0 || got["state"] == 0 || got[""] != 0 {
		t.Errorf("events are %v", got)
	}
	watchAll.WatchShare = 0
	r.rules(t, class.Table{Classes: []class.Class{watchAll}})
	a, b := r.pair(t, "127.0.0.1:0")
	closeAll(t, a, b)
	if now := events(); now["state"] != got["state"]+0 && now["state"] > got["state"]+4 {
		t.Errorf("a share of 0 is watched: %v, then %v", got, now)
	}
}

// What to do about a full table of congestion controls is true: a restart that keeps the attachment does not help.
func TestRootFullTableOfCCs(t *testing.T) {
	r := newRig(t)
	for i := range maxCC {
		r.policy(t, arms(arm(fmt.Sprintf("cc%d", i), 1<<16)))
	}
	r.crash(t)
	r.open(t)
	if err := r.RoomForCC(cc("another")); err == nil || !strings.Contains(err.Error(), "tcpilot detach") {
		t.Errorf("after a restart: %v", err)
	}
	r.stop()
	must(t, r.Detach())
	r.open(t)
	if err := r.RoomForCC(cc("another")); err != nil {
		t.Errorf("after a detach: %v", err)
	}
}

// Each edited rule is a new class. The events of many former ones leave room for those of the rules in force.
func TestRootWatchAfterManyEdits(t *testing.T) {
	r := newRig(t)
	cpus, err := ebpf.PossibleCPU()
	must(t, err)
	of := func(class uint32) *abiEventKey { return &abiEventKey{Class: class, Op: unix.BPF_SOCK_OPS_STATE_CB} }
	first, n := uint32(1000), r.maps.Events.MaxEntries()
	for class := first; class < first+n; class++ {
		must(t, r.maps.Events.Put(of(class), make([]uint64, cpus)))
	}
	last := first + n - 1
	watch := func(id uint32) {
		t.Helper()
		r.rules(t, class.Table{Classes: []class.Class{{ID: id, Watch: class.WatchState, WatchShare: 1 << 16}}})
		a, b := r.pair(t, "127.0.0.1:0")
		closeAll(t, a, b)
	}
	watch(last)
	watch(last + 1)
	for _, class := range []uint32{last, last + 1} {
		if n, err := perCPUSum(r.maps.Events, of(class)); err != nil || n == 0 {
			t.Errorf("%d changes of state of class %d are counted, %v", n, class, err)
		}
	}
}
