package datapath

import (
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

const infinite = tcp.InfiniteSsthresh

// clamped is a policy whose connections may have `all` packets in flight together, and each at
// least four.
func clamped(all uint64) func(*path.Policy) {
	return func(p *path.Policy) {
		p.Params.Set(tcp.CwndClamp, all)
		p.Adapted, p.CountFlows, p.LeastClamp = 1<<tcp.CwndClamp, true, 4
	}
}

// unclamped is a policy of the same path without a clamp.
func unclamped(p *path.Policy) {
	p.Params.Set(tcp.NoDelay, 1)
	p.CountFlows, p.LeastClamp = true, 4
}

// ssthreshOf shows the clamp: the kernel sets both (bpf_sol_tcp_setsockopt), and nothing was lost.
func ssthreshOf(t *testing.T, c net.Conn) uint32 { return tcpInfo(t, c).Snd_ssthresh }

// shareBecomes sends a few bytes, a round trip each, until a connection has a clamp.
func shareBecomes(t *testing.T, what string, c, s net.Conn, want uint32) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		exchange(t, c, s, 1)
		if ssthreshOf(t, c) == want {
			return
		}
	}
	t.Errorf("%s: the clamp is %d, want %d", what, ssthreshOf(t, c), want)
}

// A connection begins with its share of the path's clamp. The share follows the number of connections and
// the clamp.
func TestRootAdaptedClamp(t *testing.T) {
	r := newRig(t)
	r.policy(t, clamped(100))
	// Both ends are connections of the path. The client is established first.
	c, s := r.pair(t, "127.0.0.1:0")
	if a, b := ssthreshOf(t, c), ssthreshOf(t, s); a != 100 || b != 50 {
		t.Errorf("they begin with clamps of %d and %d, want 100 and 50", a, b)
	}
	shareBecomes(t, "two", c, s, 50)
	c2, s2 := r.pair(t, "127.0.0.1:0")
	if a, b := ssthreshOf(t, c2), ssthreshOf(t, s2); a != 33 || b != 25 {
		t.Errorf("the next begin with clamps of %d and %d, want 33 and 25", a, b)
	}
	shareBecomes(t, "four", c, s, 25)
	closeAll(t, c2, s2)
	shareBecomes(t, "two again", c, s, 50)
	r.policy(t, clamped(30))
	shareBecomes(t, "less for all", c, s, 15)
	r.policy(t, clamped(2))
	shareBecomes(t, "the least share", c, s, 4)
	r.policy(t, unclamped)
	shareBecomes(t, "none any more", c, s, infinite)
}

// A clamp sets the slow start threshold as well, but samples do not have it as one that the path has shown: neither an adapted one
// nor a rule's.
func TestRootClampIsNoThreshold(t *testing.T) {
	r := newRig(t)
	for what, policy := range map[string]func(*path.Policy){"adapted": clamped(400), "of a rule": set(tcp.CwndClamp, 400)} {
		r.policy(t, policy)
		c, s := r.pair(t, "127.0.0.1:0")
		exchange(t, c, s, 1000)
		if got := ssthreshOf(t, c); got == infinite {
			t.Fatalf("%s: there is no clamp", what)
		}
		is := ofConn(c)
		closeAll(t, c, s)
		if got := r.find(t, what, is).Ssthresh; got != infinite {
			t.Errorf("%s: its sample has a threshold of %d packets", what, got)
		}
	}
}

// The congestion window does not exceed the clamp, and a connection without one exceeds it.
func TestRootAdaptedClampBoundsTheWindow(t *testing.T) {
	r := newRig(t)
	for _, all := range []uint64{12, 0} {
		if all != 0 {
			r.policy(t, clamped(all))
		} else {
			r.policy(t, unclamped)
		}
		// Segments of loopback's size are acknowledged before ten are under way.
		l := listen(t, r.ns, "127.0.0.1:0", nil)
		c := dial(t, r.ns, l.Addr().String(), func(fd int) error {
			return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, 1000)
		})
		s := accept(t, l)
		most := uint32(0)
		go io.Copy(io.Discard, s)
		for range 200 {
			_, err := c.Write(make([]byte, 1<<20))
			must(t, err)
			most = max(most, tcpInfo(t, c).Snd_cwnd)
		}
		if bounded := most <= 12; bounded != (all != 0) {
			t.Errorf("clamp %d: the window was %d", all, most)
		}
		closeAll(t, c, s, l)
	}
}

// Connections of the hold-out, connections that are not counted, and those of a path without a clamp have
// no clamp.
func TestRootAdaptedClampLeavesOthers(t *testing.T) {
	r := newRig(t)
	for name, policy := range map[string]func(*path.Policy){
		"a hold-out":  func(p *path.Policy) { clamped(20)(p); p.HoldOut = 1 << 16 },
		"not counted": func(p *path.Policy) { clamped(20)(p); p.CountFlows = false },
		"none":        unclamped,
	} {
		r.policy(t, policy)
		c, s := r.pair(t, "127.0.0.1:0")
		exchange(t, c, s, 1000)
		if a, b := ssthreshOf(t, c), ssthreshOf(t, s); a != infinite || b != infinite {
			t.Errorf("%s: clamps %d and %d", name, a, b)
		}
		closeAll(t, c, s)
	}
}

// A connection that is older than the clamp gets its share from the walk over all connections.
func TestRootAdaptedClampOfOlderConnections(t *testing.T) {
	r := newRig(t)
	r.policy(t, unclamped)
	c, s := r.pair(t, "127.0.0.1:0")
	exchange(t, c, s, 1000)
	for _, step := range []struct {
		change func()
		want   uint32
	}{
		{func() { r.policy(t, clamped(40)) }, 20},
		{func() { r.policy(t, unclamped) }, infinite},
		{func() { r.policy(t, clamped(40)) }, 20},
		{func() { must(t, r.DeletePoliciesExcept(func(uint32) bool { return false })) }, infinite},
	} {
		step.change()
		for n := 0; ssthreshOf(t, c) != step.want; n++ {
			if n == 20 {
				t.Fatalf("the clamp is %d, want %d", ssthreshOf(t, c), step.want)
			}
			if step.want != infinite { // it is lifted from idle connections as well
				exchange(t, c, s, 1000)
			}
			must(t, r.SetSettings(Settings{Fields: 1 << tcp.CwndClamp, Interval: time.Nanosecond}))
			r.completeWalk(t)
		}
	}
}
