package datapath

import (
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// lowatRig has running connections, by what they are, and their peers.
type lowatRig struct {
	*rig
	ends  map[string]net.Conn
	peers map[string]net.Conn
}

func newLowatRig(t *testing.T) *lowatRig {
	r := newRig(t)
	r.needLive(t)
	l := &lowatRig{rig: r, ends: map[string]net.Conn{}, peers: map[string]net.Conn{}}
	l.settings(t, 1<<tcp.NotsentLowat)
	return l
}

func (l *lowatRig) settings(t *testing.T, fields uint64, yields ...Yield) {
	t.Helper()
	must(t, l.SetSettings(Settings{Fields: fields, Interval: 10 * time.Millisecond, Yields: yields}))
}

// policyOf writes a policy, and leaves the settings as they are.
func (l *lowatRig) policyOf(t *testing.T, k path.Key, change func(*path.Policy)) {
	t.Helper()
	lastPolicy++
	e := path.Entry{Key: k, ID: lastPolicy, Expires: time.Now().Add(valid).UnixNano()}
	if change != nil {
		change(&e.Policy)
	}
	must(t, l.WritePolicies([]path.Entry{e}))
}

func (l *lowatRig) policy(t *testing.T, change func(*path.Policy)) {
	t.Helper()
	l.policyOf(t, path.Root(1, 0), change)
}

// begin adds a connection whose application has set own before; 0: none.
func (l *lowatRig) begin(t *testing.T, name string, own int) {
	t.Helper()
	listener := listen(t, l.ns, "127.0.0.1:0", nil)
	l.ends[name] = dial(t, l.ns, listener.Addr().String(), func(fd int) error {
		if own == 0 {
			return nil
		}
		return unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_NOTSENT_LOWAT, own)
	})
	l.peers[name] = accept(t, listener)
	must(t, listener.Close())
}

// walks lets tcpilot look at all connections, although nothing but policies has changed.
func (l *lowatRig) walks(t *testing.T) {
	t.Helper()
	time.Sleep(15 * time.Millisecond) // then their state moves to socket storage
	for range lowatPause {
		l.completeWalk(t)
	}
}

func lowatOf(t testing.TB, c net.Conn) int {
	t.Helper()
	return sockopt(t, c, unix.SOL_TCP, unix.TCP_NOTSENT_LOWAT)
}

func (l *lowatRig) check(t *testing.T, when string, want map[string]int) {
	t.Helper()
	for name, want := range want {
		if got := lowatOf(t, l.ends[name]); got != want {
			t.Errorf("%s: %s has a TCP_NOTSENT_LOWAT of %d, want %d", when, name, got, want)
		}
	}
}

// lowatByObjective is a policy whose TCP_NOTSENT_LOWAT no rule names.
func lowatByObjective(v uint64) func(*path.Policy) {
	return func(p *path.Policy) {
		p.Params.Set(tcp.NotsentLowat, v)
		p.Defaults = 1 << tcp.NotsentLowat
	}
}

// Running connections follow their path's value at the next walk. The hold-out does not, nor does what an application has
// chosen, unless the rule's value replaced it when the connection began: then it comes back.
func TestRootRunningConnectionsFollowNotsentLowat(t *testing.T) {
	l := newLowatRig(t)
	l.policy(t, nil)
	l.begin(t, "plain", 0)
	l.begin(t, "own", 5000)
	l.begin(t, "chosen later", 0)
	l.policy(t, func(p *path.Policy) { set(tcp.NotsentLowat, 1000)(p); p.HoldOut = 1 << 16 })
	l.begin(t, "hold-out", 0)
	l.policy(t, set(tcp.NotsentLowat, 2000))
	l.begin(t, "replaced", 5000)
	l.begin(t, "equal", 2000)
	l.check(t, "at the beginning", map[string]int{"plain": 0, "own": 5000, "hold-out": 0, "replaced": 2000, "equal": 2000})
	for _, x := range []struct {
		name            string
		policy          func(*path.Policy)
		plain, replaced int
	}{
		{"given", set(tcp.NotsentLowat, 65536), 65536, 65536},
		{"lower", set(tcp.NotsentLowat, 16384), 16384, 16384},
		{"higher", set(tcp.NotsentLowat, 1<<20), 1 << 20, 1 << 20},
		{"by objective", lowatByObjective(30_000), 30_000, 5000},
		{"all are in the hold-out", func(p *path.Policy) { set(tcp.NotsentLowat, 1<<20)(p); p.HoldOut = 1 << 16 }, 0, 5000},
		{"once more", set(tcp.NotsentLowat, 1<<20), 1 << 20, 5000}, // as it is the application's now
		{"none", nil, 0, 5000},
	} {
		l.policy(t, x.policy)
		l.walks(t)
		l.check(t, x.name, map[string]int{"plain": x.plain, "own": 5000, "hold-out": 0, "replaced": x.replaced, "equal": 2000})
		if x.name == "given" {
			l.check(t, x.name, map[string]int{"chosen later": 65536})
			setsockopt(t, l.ends["chosen later"], unix.SOL_TCP, unix.TCP_NOTSENT_LOWAT, 7000)
		}
		l.check(t, x.name, map[string]int{"chosen later": 7000})
	}
	setsockopt(t, l.ends["replaced"], unix.SOL_TCP, unix.TCP_NOTSENT_LOWAT, 0) // what it had is forgotten
	for _, x := range []struct {
		policy func(*path.Policy)
		want   int
	}{{set(tcp.NotsentLowat, 65536), 65536}, {nil, 0}} {
		l.policy(t, x.policy)
		l.walks(t)
		l.check(t, "after 0", map[string]int{"replaced": x.want})
	}
}

// After a reload, running connections have the value of the rule that they match now. If none sets one, they
// are given back what they had.
func TestRootRunningConnectionsFollowRulesNotsentLowat(t *testing.T) {
	l := newLowatRig(t)
	rule := func(id uint32, lowat uint64) {
		t.Helper()
		l.policyOf(t, path.Root(id, 0), set(tcp.NotsentLowat, lowat))
	}
	rule(1, 1000)
	rule(2, 2000)
	rule(3, 3000)
	l.begin(t, "plain", 0)
	l.begin(t, "own", 5000) // replaced at the beginning
	for _, x := range []struct {
		name       string
		table      class.Table
		sets       uint64
		plain, own int
	}{
		{"another rule", class.Table{Classes: []class.Class{{ID: 2}}}, 1 << tcp.NotsentLowat, 2000, 2000},
		{"a third one", class.Table{Classes: []class.Class{{ID: 3}}}, 1 << tcp.NotsentLowat, 3000, 3000},
		{"left alone", class.Table{Classes: []class.Class{{ID: 2, Leave: true}}}, 1 << tcp.NotsentLowat, 0, 5000},
		{"set again", class.Table{Classes: []class.Class{{ID: 2}}}, 1 << tcp.NotsentLowat, 2000, 5000},
		{"a rule without", class.Table{Classes: []class.Class{{ID: 9}}}, 0, 0, 5000},
		{"and again", class.Table{Classes: []class.Class{{ID: 3}}}, 1 << tcp.NotsentLowat, 3000, 5000},
		{"no rule", class.Table{}, 1 << tcp.NotsentLowat, 0, 5000},
	} {
		l.settings(t, x.sets)
		l.completeWalk(t)
		l.rules(t, x.table)
		l.completeWalk(t)
		l.check(t, x.name, map[string]int{"plain": x.plain, "own": x.own})
	}
}

// In a namespace whose owner has set the sysctl, running connections are given it back, unless their rule names the namespace.
func TestRootNotsentLowatOfANamespace(t *testing.T) {
	l := newLowatRig(t)
	owner, other := l.yields(t, 1<<tcp.NotsentLowat, false)
	l.policy(t, set(tcp.NotsentLowat, 1000))
	l.begin(t, "plain", 0)
	for _, x := range []struct {
		name   string
		yields []Yield
		named  bool
		want   int
	}{
		{"another namespace's", []Yield{other}, false, 1000},
		{"the namespace's own", []Yield{other, owner}, false, 0},
		{"named by the rule", []Yield{other, owner}, true, 1000},
	} {
		l.rules(t, class.Table{Classes: []class.Class{{ID: 1, Named: x.named}}})
		l.settings(t, 1<<tcp.NotsentLowat, x.yields...)
		l.completeWalk(t)
		l.check(t, x.name, map[string]int{"plain": x.want})
	}
}

// A writer that waits is woken when its connection gets a higher value.
func TestRootHigherNotsentLowatWakesWriters(t *testing.T) {
	l := newLowatRig(t)
	l.policy(t, set(tcp.NotsentLowat, 1))
	l.begin(t, "writer", 0)
	l.walks(t)
	c := l.ends["writer"]
	setsockopt(t, c, unix.SOL_SOCKET, unix.SO_SNDBUF, 8<<20)
	var woken chan error
	withFD(c, func(fd int) {
		for { // until the peer, which does not read, takes no more
			if _, err := unix.SendmsgN(fd, make([]byte, 1<<16), nil, nil, unix.MSG_DONTWAIT); err == unix.EAGAIN {
				if time.Sleep(50 * time.Millisecond); lacksRoom(t, fd) {
					break
				}
			} else {
				must(t, err)
			}
		}
		dup, err := unix.Dup(fd)
		must(t, err)
		woken = make(chan error, 1)
		go func() {
			defer unix.Close(dup)
			n, err := poll(dup, 20*time.Second)
			if err == nil && n == 0 {
				err = syscall.ETIMEDOUT
			}
			woken <- err
		}()
	})
	time.Sleep(20 * time.Millisecond)
	l.policy(t, set(tcp.NotsentLowat, 4<<20))
	l.walks(t)
	l.check(t, "raised", map[string]int{"writer": 4 << 20})
	select {
	case err := <-woken:
		must(t, err)
	case <-time.After(5 * time.Second):
		t.Error("the writer still waits")
	}
}

// poll waits until a socket can be written to.
func poll(fd int, d time.Duration) (n int, err error) {
	for err = unix.EINTR; err == unix.EINTR; {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(d.Milliseconds()))
	}
	return n, err
}

// lacksRoom reports whether a socket cannot be written to now.
func lacksRoom(t *testing.T, fd int) bool {
	t.Helper()
	n, err := poll(fd, 0)
	must(t, err)
	return n == 0
}

// The end of tcpilot gives connections back what they had, young ones as well, but not what an application has chosen since.
func TestRootReleaseOfNotsentLowat(t *testing.T) {
	l := newLowatRig(t)
	l.policy(t, nil)
	l.begin(t, "given later", 0)
	peer := lowatOf(t, l.peers["given later"]) // of a listener for MPTCP
	l.policy(t, set(tcp.NotsentLowat, 2000))
	l.begin(t, "plain", 0)
	l.begin(t, "replaced", 5000)
	l.begin(t, "chosen later", 0)
	l.walks(t)
	l.begin(t, "young", 0)
	l.begin(t, "young and replaced", 5000)
	setsockopt(t, l.ends["chosen later"], unix.SOL_TCP, unix.TCP_NOTSENT_LOWAT, 7000)
	l.check(t, "before", map[string]int{"given later": 2000, "plain": 2000, "replaced": 2000, "young": 2000, "young and replaced": 2000})
	l.release(t, nothing)
	l.check(t, "released", map[string]int{"given later": 0, "plain": 0, "replaced": 5000, "chosen later": 7000, "young": 0, "young and replaced": 5000})
	for name, s := range l.peers { // incoming
		if got := lowatOf(t, s); got != peer {
			t.Errorf("the peer of %s has %d, want %d", name, got, peer)
		}
	}
}

// A listener for MPTCP, as Go's are, accepts connections without it as well. The kernel's value for subflows is not one that
// the application has chosen.
func TestRootNotsentLowatBesideMPTCP(t *testing.T) {
	l := newLowatRig(t)
	l.policy(t, nil)
	l.begin(t, "plain", 0)
	before := lowatOf(t, l.peers["plain"])
	l.policy(t, lowatByObjective(3000))
	l.begin(t, "later", 0)
	l.walks(t)
	for name, s := range l.peers {
		if got := lowatOf(t, s); got != 3000 {
			t.Errorf("the peer of %s has %d", name, got)
		}
	}
	l.policy(t, nil)
	l.walks(t)
	for name, s := range l.peers {
		if got := lowatOf(t, s); got != before {
			t.Errorf("at the end, the peer of %s has %d, want %d", name, got, before)
		}
	}
}
