package datapath

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// timedOut makes a connection whose peer vanishes, waits for n timeouts, and returns it.
func (r *rig) timedOut(t *testing.T, n int, prepare func(net.Conn)) net.Conn {
	t.Helper()
	near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
	l := listen(t, far.NS, netip.AddrPortFrom(far.V4, 0).String(), nil)
	c := dial(t, r.ns, l.Addr().String(), nil)
	accept(t, l)
	if prepare != nil {
		prepare(c)
	}
	vanish(t, near, far)
	_, err := c.Write(make([]byte, 1000))
	must(t, err)
	for end := time.Now().Add(20 * time.Second); timeoutsOf(t, c) < n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d timeouts, want %d", timeoutsOf(t, c), n)
		}
	}
	return c
}

// timeoutsOf is how many timeouts in succession a connection has had. All timeouts are counted only by Linux 6.7 and
// later.
func timeoutsOf(t *testing.T, c net.Conn) int { return int(tcpInfo(t, c).Retransmits) }

func (r *rig) events(t *testing.T, name string) (n uint64) {
	t.Helper()
	got, err := r.Counters()
	must(t, err)
	for _, e := range got.Events {
		if e.Class == 1 && e.Name == name {
			n += e.Count
		}
	}
	return n
}

// After a number of timeouts, a connection gets the congestion control that its rule names; not before, and not
// if the rule does not say so any more.
func TestRootTimeoutsAreAnswered(t *testing.T) {
	r := newRig(t)
	r.policy(t, arms(path.Arm{CC: cc("cubic"), Weight: 1 << 16, Default: true}))
	answer := class.Class{ID: 1, Timeouts: class.Timeouts{CC: cc("reno"), After: 2, Share: 1 << 16}}
	r.rules(t, class.Table{Classes: []class.Class{answer}})
	c := r.timedOut(t, 1, nil)
	if got := ccOf(t, c); got != "cubic" && timeoutsOf(t, c) == 1 {
		t.Errorf("after one timeout the connection has %s", got)
	}
	for end := time.Now().Add(10 * time.Second); timeoutsOf(t, c) < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no second timeout")
		}
	}
	if got := ccOf(t, c); got != "reno" {
		t.Errorf("after two timeouts the connection has %s, want reno", got)
	}
	if a, b := r.events(t, "rto"), r.events(t, "rto-answered"); a < 2 || b != 1 {
		t.Errorf("%d timeouts and %d answers are counted", a, b)
	}
	answer.Timeouts = class.Timeouts{}
	r.rules(t, class.Table{Classes: []class.Class{answer}})
	if got := ccOf(t, r.timedOut(t, 3, nil)); got != "cubic" {
		t.Errorf("without an answer the connection has %s", got)
	}
}

// Rules that could not be put into force change nothing: also not the answers of those that stay.
func TestRootTimeoutsAfterRulesThatFailed(t *testing.T) {
	r := newRig(t)
	r.policy(t, arms(path.Arm{CC: cc("cubic"), Weight: 1 << 16, Default: true}))
	r.rules(t, class.Table{Classes: []class.Class{{ID: 1, Timeouts: class.Timeouts{CC: cc("reno"), After: 1, Share: 1 << 16}}}})
	if err := r.WriteRules(&class.Table{Classes: make([]class.Class, class.MaxRules+1)}); err == nil {
		t.Fatal("too many rules were accepted")
	}
	if got := ccOf(t, r.timedOut(t, 2, nil)); got != "reno" {
		t.Errorf("after two timeouts the connection has %s, want reno", got)
	}
}

// What another network namespace owns does not matter, nor what its own owns if the rule names it.
func TestRootTimeoutsOfOwnedNamespaces(t *testing.T) {
	for _, named := range []bool{false, true} {
		r := newRig(t)
		own, other := r.yields(t, 0, true)
		yields := []Yield{other}
		if named {
			yields = append(yields, own)
		}
		r.policy(t, arms(path.Arm{CC: cc("cubic"), Weight: 1 << 16, Default: true}))
		must(t, r.SetSettings(Settings{Yields: yields, Inherited: []tcp.CC{cc("cubic")}}))
		r.rules(t, class.Table{Classes: []class.Class{{ID: 1, Named: named, Timeouts: class.Timeouts{CC: cc("reno"), After: 1, Share: 1 << 16}}}})
		if got := ccOf(t, r.timedOut(t, 2, nil)); got != "reno" {
			t.Errorf("named %v: after two timeouts the connection has %s, want reno", named, got)
		}
	}
}

// Connections keep their congestion control if the application chose it, in the hold-out, with a share of 0, and
// when the lease is over.
func TestRootTimeoutsAreNotAnswered(t *testing.T) {
	for _, c := range []struct {
		name    string
		share   uint32
		holdOut uint32
		prepare func(t *testing.T, r *rig, c net.Conn)
		want    string
	}{
		{"the application chose", 1 << 16, 0, func(t *testing.T, _ *rig, c net.Conn) { setCC(t, c, "bbr") }, "bbr"},
		{"hold-out", 1 << 16, 1 << 16, nil, "cubic"},
		{"share", 0, 0, nil, "cubic"},
		{"no lease", 1 << 16, 0, func(t *testing.T, r *rig, _ net.Conn) { must(t, r.SetLease(0)) }, "cubic"},
		{"its namespace's own", 1 << 16, 0, func(t *testing.T, r *rig, _ net.Conn) {
			own, _ := r.yields(t, 0, true)
			must(t, r.SetSettings(Settings{Yields: []Yield{own}}))
		}, "cubic"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.policy(t, func(p *path.Policy) {
				arms(path.Arm{CC: cc("cubic"), Weight: 1 << 16, Default: true})(p)
				p.HoldOut = c.holdOut
			})
			r.rules(t, class.Table{Classes: []class.Class{{ID: 1, Timeouts: class.Timeouts{CC: cc("reno"), After: 1, Share: c.share}}}})
			conn := r.timedOut(t, 3, func(conn net.Conn) {
				if c.prepare != nil {
					c.prepare(t, r, conn)
				}
			})
			if got := ccOf(t, conn); got != c.want {
				t.Errorf("the connection has %s, want %s", got, c.want)
			}
			if n := r.events(t, "rto-answered"); n != 0 {
				t.Errorf("%d answers are counted", n)
			}
		})
	}
}

// The kernel chooses another flow hash at each timeout by itself, unless the connection's rule turns that off: so
// tcpilot need not do it.
func TestRootKernelChangesTheHashAtTimeouts(t *testing.T) {
	for value, least := range map[uint64]int{1: 2, 0: 0} {
		r := newRig(t)
		r.policy(t, set(tcp.TxRehash, value))
		r.timedOut(t, 3, nil)
		var text []byte
		r.ns.Do(t, func() {
			var err error
			text, err = os.ReadFile("/proc/thread-self/net/netstat")
			must(t, err)
		})
		n, err := testenv.NetCounter(string(text), "TcpTimeoutRehash")
		must(t, err)
		if n < least || least == 0 && n != 0 {
			t.Errorf("tx_rehash %d: %d changes after 3 timeouts", value, n)
		}
	}
}
