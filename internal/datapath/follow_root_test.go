package datapath

import (
	"io"
	"math"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// sumOf adds up how many connections samples stand for, and the variance of that sum.
func sumOf(samples []tcp.Sample, is func(*tcp.Sample) bool) (sum, variance float64) {
	for i := range samples {
		if is(&samples[i]) {
			k := float64(samples[i].StandsFor)
			sum += k
			variance += k * (k - 1)
		}
	}
	return sum, variance
}

// rateOf measures how many ends a second there are if open opens n connections.
func rateOf(n int, open func(n int)) uint32 {
	begun := time.Now()
	open(n)
	return uint32(2 * float64(n) / time.Since(begun).Seconds())
}

func each(*tcp.Sample) bool { return true }

// TestRootNotFollowed: of many connections that get nothing, most have no state, and for those nothing is drawn. The samples
// of the others stand for them, hold-outs included, and counters are exact.
func TestRootNotFollowed(t *testing.T) {
	const n, first = 6000, 500
	r := newRig(t)
	rate := rateOf(first, func(n int) { r.churnAll(t, n) }) // without a policy
	before := r.ends(t, first)
	r.policy(t, func(p *path.Policy) {
		arms(theDefault(1 << 16))(p)
		p.HoldOut = 1 << 14
	})
	must(t, r.SetSettings(Settings{ReportRate: rate / 8}))
	r.churnAll(t, n)
	c := r.ends(t, first+n)
	samples := r.count(t, int(c.Samples-before.Samples), func(s *tcp.Sample) bool { return s.PolicyID != 0 })
	sum, variance := sumOf(samples, each)
	held, heldVariance := sumOf(samples, func(s *tcp.Sample) bool { return s.Has(tcp.FlagHoldOut) })
	t.Logf("%d samples stand for %.0f ± %.0f connections, and for %.0f ± %.0f hold-outs; %d were not followed, %d in slots",
		len(samples), sum, math.Sqrt(variance), held, math.Sqrt(heldVariance), c.NotFollowed, c.Slots)
	if math.Abs(sum-2*n) > 4.5*math.Sqrt(variance)+float64(unshown(2*n)) {
		t.Errorf("the samples stand for %g connections, there were %d", sum, 2*n)
	}
	if got := c.Decisions["hold-out"]; math.Abs(held-n/2) > 4.5*math.Sqrt(heldVariance+n/2*0.75)+float64(unshown(2*n)) ||
		got > uint64(len(samples)+unshown(2*n)) {
		t.Errorf("the samples stand for %g hold-outs, %d were drawn, of %d connections, want a quarter", held, got, 2*n)
	}
	if c.NotFollowed < n || c.Thinned < c.NotFollowed || c.Thinned > c.NotFollowed+n/10 || c.Slots+c.Storages+c.NotFollowed != 2*(first+n) {
		t.Errorf("%d not followed, %d thinned, %d in slots, %d in storage", c.NotFollowed, c.Thinned, c.Slots, c.Storages)
	}
	classes, err := r.ClassCounts([]uint32{1})
	must(t, err)
	if classes[0] != (ClassCount{first + n, first + n}) || c.Decisions["policy"]+c.Decisions["hold-out"]+c.Decisions["not-followed"] != 2*n || c.Ends != 2*n {
		t.Errorf("%+v connections of the class, %v, %d ends", classes[0], c.Decisions, c.Ends)
	}
	for i := range samples {
		if s := &samples[i]; s.Class != 1 || s.StandsFor == 0 || s.Has(tcp.FlagOutgoing) && s.Connect == 0 {
			t.Errorf("%+v", s)
		}
	}
}

// TestRootFollowed: connections that get something, or that the rule may change later, are all followed, however many
// there are.
func TestRootFollowed(t *testing.T) {
	const conns = 1000
	r := newRig(t)
	begun, before := 0, &Counters{}
	def := arms(theDefault(1 << 16))
	for name, c := range map[string]struct {
		class  class.Class
		policy func(*path.Policy)
	}{
		"get nothing":          {class.Class{}, def},
		"an arm":               {class.Class{}, arms(arm("reno", 1<<16))},
		"one of two arms":      {class.Class{}, arms(theDefault(1<<15), arm("reno", 1<<15))},
		"a field":              {class.Class{}, set(tcp.InitCwnd, 20)},
		"hold-outs of a field": {class.Class{}, func(p *path.Policy) { p.HoldOut = 1 << 16; p.Params.Set(tcp.SynRTO, 500) }},
		"counted":              {class.Class{}, func(p *path.Policy) { def(p); p.CountFlows = true }},
		"losses are watched":   {class.Class{}, func(p *path.Policy) { def(p); p.WatchLosses = true }},
		"may change later":     {class.Class{}, followAll(def)},
		"watched":              {class.Class{Watch: class.WatchRTO, WatchShare: 1}, def},
		"timeouts answered":    {class.Class{Timeouts: class.Timeouts{CC: [16]byte{'r', 'e', 'n', 'o'}, After: 3, Share: 1}}, def},
	} {
		t.Run(name, func(t *testing.T) {
			c.class.ID = 1
			r.rules(t, class.Table{Classes: []class.Class{c.class}})
			r.policy(t, c.policy)
			must(t, r.SetSettings(Settings{ReportRate: 100}))
			r.churnAll(t, conns)
			begun += conns
			after := r.ends(t, begun)
			left, thinned := after.NotFollowed-before.NotFollowed, after.Thinned-before.Thinned
			before = after
			if nothing := name == "get nothing" || name == "counted" || name == "losses are watched"; (left > 0) != nothing || thinned < 200 {
				t.Errorf("%d not followed, %d thinned", left, thinned)
			}
		})
	}
}

// TestRootLongLivedNotFollowed: connections that are not followed are not adopted either, so that each sample of
// the others, also while they live, stands for them. They are adopted under new rules, and once their path has all of its
// connections followed, they are counted as well; before, there is no count.
func TestRootLongLivedNotFollowed(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	const n = 800
	rules := class.Table{Classes: []class.Class{{ID: 1}}}
	r.rules(t, rules)
	counted := func(p *path.Policy) { arms(theDefault(1 << 16))(p); p.CountFlows = true }
	r.policy(t, counted)
	listen(t, r.ns, "127.0.0.1:0", nil) // without a listener, walks under Linux 6.12 omit a bucket (iter.bpf.c)
	var clients, servers []net.Conn
	open := func(n int) {
		for range n {
			c, s := r.pair(t, "127.0.0.1:0")
			clients, servers = append(clients, c), append(servers, s)
		}
	}
	rate := rateOf(100, open)
	// Also if the others are opened at half that speed. A window ends with 500 ends at the latest.
	must(t, r.SetSettings(Settings{ReportRate: min(rate/4, 8000), Interval: time.Millisecond}))
	walk := func() {
		t.Helper()
		r.completeWalk(t)
		r.caughtUp(t)
	}
	walk() // it adopts, because the rules are new
	open(n - 100)
	before, err := r.Counters()
	must(t, err)
	if before.NotFollowed < n/8 {
		t.Fatalf("%d not followed: too few to show anything", before.NotFollowed)
	}
	intervals := func(adopted bool) (out []tcp.Sample) {
		t.Helper()
		r.caughtUp(t)
		r.mu.Lock()
		earlier := len(r.samples)
		r.mu.Unlock()
		for i := range clients {
			exchange(t, clients[i], servers[i], 1000)
		}
		time.Sleep(60 * time.Millisecond) // the ACKs of the last ones may be delayed for 40 ms
		walk()
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, s := range r.samples[earlier:] {
			if s.Kind == tcp.KindInterval && s.Has(tcp.FlagAdopted) == adopted {
				out = append(out, s)
			}
		}
		return out
	}
	for round := range 2 {
		followed := intervals(false)
		sum, variance := sumOf(followed, each)
		t.Logf("round %d: %d samples stand for %.0f ± %.0f", round, len(followed), sum, math.Sqrt(variance))
		if math.Abs(sum-2*n) > 4.5*math.Sqrt(variance) {
			t.Errorf("round %d: %d samples stand for %g connections, there are %d", round, len(followed), sum, 2*n)
		}
	}
	if a := intervals(true); len(a) != 0 {
		t.Errorf("%d connections adopted", len(a))
	}
	if n, ok := r.Flows(path.Root(1, 0)); ok {
		t.Errorf("%d connections are counted, though only a share is followed", n)
	}
	r.rules(t, rules)
	for range 3 {
		intervals(true) // in the first, nothing is adopted before its walk
	}
	// One of which no ACK came since the walk before has no sample of a walk, so all walks count.
	followed, adopted := map[uint64]bool{}, map[uint64]bool{}
	for _, s := range r.count(t, 1, func(*tcp.Sample) bool { return true }) {
		if s.Has(tcp.FlagAdopted) {
			adopted[s.Cookie] = true
		} else {
			followed[s.Cookie] = true
		}
	}
	if len(followed)+len(adopted) != 2*n {
		t.Errorf("%d followed, %d adopted under new rules, want %d together", len(followed), len(adopted), 2*n)
	}
	r.policy(t, followAll(counted))
	r.completeWalk(t) // counts those that were adopted
	if tooMany, tooFew := r.completeWalk(t); tooMany+tooFew != 0 {
		t.Errorf("%d too many are counted, %d too few", tooMany, tooFew)
	}
	r.awaitFlows(t, path.Root(1, 0), 2*n)
	for i := range clients {
		must(t, clients[i].(*net.TCPConn).SetLinger(0))
		closeAll(t, clients[i], servers[i])
	}
	r.awaitFlows(t, path.Root(1, 0), 0)
}

// pairWithoutState opens a connection of which neither end is followed.
func (r *rig) pairWithoutState(t *testing.T) (client, server net.Conn) {
	t.Helper()
	must(t, r.SetSettings(Settings{ReportRate: 1}))
	for range 5 { // each end has its own small chance to be followed, and a machine may stand still
		r.churnAll(t, 1000)
		before, err := r.Counters()
		must(t, err)
		client, server = r.pair(t, "127.0.0.1:0")
		now, err := r.Counters()
		must(t, err)
		if now.NotFollowed == before.NotFollowed+2 {
			return client, server
		}
		closeAll(t, client, server)
	}
	t.Fatal("connections are followed")
	return nil, nil
}

// TestRootLossyFollowed: of a busy host's connections, those that lose packets are all followed if their policy asks for it,
// and stand for themselves alone, also if a walk has adopted them. If their rule depends on who opened them, all are followed from the
// beginning.
func TestRootLossyFollowed(t *testing.T) {
	const conns = 15
	r := newRig(t)
	r.needLive(t)
	near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
	l := listen(t, far.NS, netip.AddrPortFrom(far.V4, 0).String(), nil)
	one := class.Table{Classes: []class.Class{{ID: 1}}}
	first := class.Table{Dims: class.DimDirection, Classes: []class.Class{{ID: 1}, {ID: 2}}, Outgoing: class.Set{0b11}, Incoming: class.Set{0b01}}
	after := class.Table{Dims: class.DimDirection, Classes: []class.Class{{ID: 2}, {ID: 1}}, Outgoing: class.Set{0b10}, Incoming: class.Set{0b11}}
	watched := func(p *path.Policy) { arms(theDefault(1 << 16))(p); p.CountFlows, p.WatchLosses = true, true }
	for _, c := range []struct {
		name   string
		rules  class.Table
		policy func(*path.Policy)
		lossy  bool // those without state are followed later
		all    bool // they all have state
		walk   bool // a walk adopts those without state before they lose packets
	}{
		{"losses are watched", one, watched, true, false, false},
		{"before a rule for outgoing ones", first, watched, true, false, false},
		{"after a rule for incoming ones", after, watched, false, true, false},
		{"losses are not watched", one, arms(theDefault(1 << 16)), false, false, false},
		{"adopted", one, watched, true, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.rules(t, c.rules)
			r.policy(t, c.policy)
			rate := rateOf(500, func(n int) { r.churnAll(t, n) })
			must(t, r.SetSettings(Settings{ReportRate: rate / 3, Interval: time.Hour})) // one of nine is followed
			var clients, servers []net.Conn
			known := map[netip.AddrPort]bool{}
			open := func() (notFollowed uint64) {
				r.churnAll(t, 1000)
				before, err := r.Counters()
				must(t, err)
				for range conns {
					clients, servers = append(clients, dial(t, r.ns, l.Addr().String(), nil)), append(servers, accept(t, l))
					known[addrPort(clients[len(clients)-1].LocalAddr())] = true
				}
				now, err := r.Counters()
				must(t, err)
				return now.NotFollowed - before.NotFollowed
			}
			n := open()
			for try := 1; n == 0 && try < 30; try++ { // the machine stood still, so that all are followed
				for i := range clients {
					closeAll(t, clients[i], servers[i])
				}
				clients, servers, known = nil, nil, map[netip.AddrPort]bool{}
				n = open()
			}
			if n == 0 || c.all && n > conns { // the servers' ends have another rule then
				t.Fatalf("%d ends of %d connections are not followed", n, conns)
			}
			for i := range clients {
				exchange(t, clients[i], servers[i], 200_000)
			}
			if c.walk {
				r.completeWalk(t) // the rules are new
			}
			time.Sleep(150 * time.Millisecond) // a CPU looks at 20 in 100 ms (LOSSY_PER_WINDOW)
			before, err := r.Counters()
			must(t, err)
			restore := vanish(t, near, far)
			for _, c := range clients {
				_, err := c.Write(make([]byte, 5*1448))
				must(t, err)
			}
			restore()
			for i, c := range clients {
				_, err := c.Write(make([]byte, 5*1448))
				must(t, err)
				_, err = io.CopyN(io.Discard, servers[i], 10*1448)
				must(t, err)
			}
			if c.walk {
				r.completeWalk(t) // counts them
			}
			for i := range clients {
				closeAll(t, clients[i], servers[i])
			}
			now, err := r.Counters()
			must(t, err)
			lossy := now.Decisions["followed-lossy"] - before.Decisions["followed-lossy"]
			if !c.lossy {
				if lossy != 0 {
					t.Errorf("%d were followed later", lossy)
				}
				return
			}
			later, of := uint64(0), func(s *tcp.Sample) bool { return known[s.Local] && s.Retrans >= 4 }
			for _, s := range r.countShown(t, conns, of) {
				if s.Class != 1 || s.StandsFor != 1 || s.LossRTT == 0 || (s.BytesAcked < 200_000) != (c.walk && s.SinceLosses()) || s.Flows == 0 {
					t.Errorf("%+v", s)
				}
				if s.SinceLosses() {
					later++
				}
			}
			if later > lossy || later+uint64(unshown(conns)) < lossy {
				t.Errorf("%d of them have a sample, %d were followed later: %v", later, lossy, now.Decisions)
			}
			r.awaitFlows(t, path.Root(1, 0), 0)
		})
	}
}

// TestRootSynRTONotFollowed: a connection without state gets the adapted timeout of its SYN, unless it is a hold-out. If
// its connect fails, the next one of the socket begins with the usual number of retransmissions.
func TestRootSynRTONotFollowed(t *testing.T) {
	const usual = 6 // net.ipv4.tcp_syn_retries
	r := newRig(t)
	near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
	vanish(t, near, far)
	adapted := func(p *path.Policy) {
		arms(theDefault(1 << 16))(p)
		p.Params.Set(tcp.SynRTO, 125)
		p.Adapted = 1 << tcp.SynRTO
	}
	heldOut := func(p *path.Policy) { adapted(p); p.HoldOut = 1 << 16 }
	heldOutSlice := func(p *path.Policy) { adapted(p); p.Slice, p.HoldSlices = 30, 1<<16 }
	connect := func(fd int, to unix.SockaddrInet4) (retries int, timeout time.Duration, err error) {
		r.ns.Do(t, func() { err = unix.Connect(fd, &to) })
		retries, e := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SYNCNT)
		must(t, e)
		info, e := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		must(t, e)
		return retries, time.Duration(info.Rto) * time.Microsecond, err
	}
	nobody := unix.SockaddrInet4{Port: 80, Addr: far.V4.As4()}
	refused := unix.SockaddrInet4{Port: 1, Addr: [4]byte{127, 0, 0, 1}}
	for _, c := range []struct {
		name        string
		policy      func(*path.Policy)
		wantTimeout time.Duration
	}{
		{"adapted", adapted, 125 * time.Millisecond},
		{"hold-out", heldOut, time.Second},
		{"hold-out slice", heldOutSlice, time.Second},
	} {
		var fds [2]int
		open := func() (followed bool) {
			r.policy(t, c.policy)
			must(t, r.SetSettings(Settings{ReportRate: 1, Adapted: 1 << tcp.SynRTO}))
			r.churnAll(t, 1000)
			before, err := r.Counters()
			must(t, err)
			r.ns.Do(t, func() {
				for i := range fds {
					fds[i], err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
					must(t, err)
				}
			})
			retries, timeout, err := connect(fds[0], nobody)
			if err != unix.EINPROGRESS || retries != usual || timeout < c.wantTimeout || timeout > c.wantTimeout+20*time.Millisecond {
				t.Errorf("%s: %d retransmissions, timeout %v (%v); want %d, %v", c.name, retries, timeout, err, usual, c.wantTimeout)
			}
			if _, _, err = connect(fds[1], refused); err != unix.EINPROGRESS && err != unix.ECONNREFUSED {
				t.Errorf("%s: connect to a closed port: %v", c.name, err)
			}
			after, err := r.Counters()
			must(t, err)
			return after.NotFollowed != before.NotFollowed+2
		}
		for try := 1; open(); try++ { // each connection has its own small chance to be followed
			if try == 5 {
				t.Fatalf("%s: connections are followed", c.name)
			}
			for _, fd := range fds {
				must(t, unix.Close(fd))
			}
		}
		r.policy(t, nil)
		retries, timeout, err := connect(fds[1], nobody)
		if err == unix.ECONNREFUSED { // of the first one
			retries, timeout, err = connect(fds[1], nobody)
		}
		if err != unix.EINPROGRESS || retries != usual || timeout < time.Second {
			t.Errorf("%s: a second connect: %d retransmissions, timeout %v, %v; want %d, 1s", c.name, retries, timeout, err, usual)
		}
		for _, fd := range fds {
			must(t, unix.Close(fd))
		}
	}
}
