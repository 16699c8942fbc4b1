package datapath

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/limit"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// release gives the connections of the rig's namespace back what they had. before is called before each walk.
func (r *rig) release(t testing.TB, before func()) {
	t.Helper()
	must(t, Release(r.opt.BPFFS, func(walk func() error) (err error) {
		before()
		r.ns.Do(t, func() { err = walk() })
		return err
	}))
}

func nothing() {}

// released is a policy with all values that running connections lose when tcpilot ends.
func released(p *path.Policy) {
	ackMarks(6, 46)(p)
	clamped(400)(p)
	p.Params.Set(tcp.RTOMin, 50_000)
	p.Params.Set(tcp.DelackMax, 8000)
	p.Adapted |= 1<<tcp.RTOMin | 1<<tcp.DelackMax
}

// receive makes interval samples of a connection that mostly receives, so that it is marked.
func (r *rig) receive(t testing.TB, from, to net.Conn) {
	t.Helper()
	must(t, r.SetSettings(Settings{Fields: 1<<tcp.NumFields - 1, Interval: 5 * time.Millisecond}))
	for range 3 { // a sample has the values from before the walk
		exchange(t, from, to, 1<<20)
		time.Sleep(10 * time.Millisecond)
		r.walk(t, r.ns)
	}
	r.caughtUp(t)
}

func marksOf(t testing.TB, c net.Conn, v6 bool) [2]int {
	t.Helper()
	return [2]int{sockopt(t, c, unix.SOL_SOCKET, unix.SO_PRIORITY), dscp(t, c, v6)}
}

// Running connections get the kernel's values back, whether their state is in socket storage or, as that of young ones, in a slot;
// connections that begin afterwards have them from the beginning.
func TestRootReleaseGivesTheKernelsValuesBack(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		r := newRig(t)
		r.needLive(t)
		v6 := address[0] == '['
		r.policy(t, released)
		c, s := r.pair(t, address)
		r.receive(t, s, c)
		young, itsPeer := r.pair(t, address)
		last := r.latest(intervalOf(c))
		if got := marksOf(t, c, v6); got != [2]int{6, 46} || micros32(last.RTOMin) >= kernelRTOMin || micros32(last.DelackMax) >= kernelDelackMax {
			t.Fatalf("%s: marks %v, sample %+v", address, got, last)
		}
		if a, b := ssthreshOf(t, c), ssthreshOf(t, young); a >= 400 || b >= 400 || tcpInfo(t, young).Rto >= kernelRTOMin {
			t.Fatalf("%s: clamps %d and %d, timeout %d us", address, a, b, tcpInfo(t, young).Rto)
		}
		walks := 0
		r.release(t, func() { walks++ })
		if walks != 1 {
			t.Errorf("%s: %d walks", address, walks)
		}
		if got := marksOf(t, c, v6); got != [2]int{} {
			t.Errorf("%s: marks %v", address, got)
		}
		later, itsServer := r.pair(t, address)
		ends := map[string]net.Conn{"client": c, "server": s, "young client": young, "young server": itsPeer, "later client": later, "later server": itsServer}
		for what, c := range ends {
			what = address + ", " + what
			if got := ssthreshOf(t, c); got != infinite {
				t.Errorf("%s: the clamp is %d", what, got)
			}
		}
		exchange(t, c, s, 1000)
		exchange(t, young, itsPeer, 1000)
		// An incoming connection got its RTO_MIN after its handshake, of which the kernel's is still in its timeout.
		r.checkTimers(t, address, map[string]net.Conn{"young server": itsPeer}, kernelRTOMin, kernelDelackMax)
		// See TestRootReleaseLetsTimeoutsFollowTheVariation.
		r.checkTimers(t, address, map[string]net.Conn{"client": c, "server": s, "young client": young}, 50_000, kernelDelackMax)
		if got := tcpInfo(t, later).Rto; got < kernelRTOMin {
			t.Errorf("%s: a later connection has a timeout of %d us", address, got)
		}
	}
}

// checkTimers closes connections, and compares RTO_MIN and DELACK_MAX of their samples with what is wanted in microseconds.
func (r *rig) checkTimers(t *testing.T, when string, ends map[string]net.Conn, rtoMin, delackMax uint32) {
	t.Helper()
	is := map[string]func(*tcp.Sample) bool{}
	for what, c := range ends {
		is[what] = ofConn(c)
		closeAll(t, c)
	}
	for what, is := range is {
		s := r.find(t, what, is)
		if got, want := micros32(s.RTOMin), roundUp(rtoMin); got+1000 < want || got > want+1000 {
			t.Errorf("%s, %s: RTO_MIN %d us, want %d", when, what, got, want)
		}
		if got, want := micros32(s.DelackMax), givenDelackMax(delackMax); got+1000 < want || got > want+1000 {
			t.Errorf("%s, %s: DELACK_MAX %d us, want %d", when, what, got, want)
		}
	}
}

// A connection whose handshake is not over gets the kernel's RTO_MIN back as well.
func TestRootReleaseOfAHandshake(t *testing.T) {
	r := newRig(t)
	near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
	r.policy(t, rtoMin(50_000))
	l := listen(t, far.NS, netip.AddrPortFrom(far.V4, 0).String(), nil)
	arrives := vanish(t, near, far)
	begun := make(chan int, 1)
	connected := make(chan net.Conn, 1)
	go func() {
		defer close(connected)
		c, err := dialErr(t, near.NS, "", l.Addr().String(), func(fd int) error { begun <- fd; return nil })
		if err != nil {
			t.Error(err)
			return
		}
		connected <- c
	}()
	<-begun
	time.Sleep(100 * time.Millisecond) // the SYN is under way
	r.release(t, nothing)
	arrives()
	c := <-connected
	if c == nil {
		return
	}
	if got := tcpInfo(t, c).Rto; got < kernelRTOMin {
		t.Errorf("timeout %d us", got)
	}
	r.checkTimers(t, "handshake", map[string]net.Conn{"client": c}, kernelRTOMin, kernelDelackMax)
}

// What an application has chosen while tcpilot's value was set is kept.
func TestRootReleaseKeepsOthersChoices(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	r.policy(t, released)
	c, s := r.pair(t, "127.0.0.1:0")
	r.receive(t, s, c)
	d, e := r.pair(t, "127.0.0.1:0")
	r.receive(t, e, d)
	setsockopt(t, c, unix.SOL_SOCKET, unix.SO_PRIORITY, 3)
	setsockopt(t, d, unix.IPPROTO_IP, unix.IP_TOS, 8)
	const tcpRTOMinUs, tcpDelackMaxUs = 45, 46
	chosen := true
	withFD(c, func(fd int) {
		err := unix.SetsockoptInt(fd, unix.SOL_TCP, tcpRTOMinUs, 120_000)
		if chosen = err != syscall.ENOPROTOOPT; chosen {
			must(t, err)
			must(t, unix.SetsockoptInt(fd, unix.SOL_TCP, tcpDelackMaxUs, 60_000))
		}
	})
	r.release(t, nothing)
	if got := marksOf(t, c, false); got != [2]int{3, 0} {
		t.Errorf("own priority: %v", got)
	}
	if got := marksOf(t, d, false); got != [2]int{2, 2} { // and the kernel's priority of that type of service
		t.Errorf("own DSCP: %v", got)
	}
	r.checkTimers(t, "for comparison", map[string]net.Conn{"client": d}, 50_000, kernelDelackMax)
	t.Run("timers", func(t *testing.T) {
		if !chosen {
			testenv.Missing(t, "TCP_RTO_MIN_US (Linux 6.15)")
		}
		r.checkTimers(t, "chosen by the application", map[string]net.Conn{"client": c}, 120_000, 60_000)
	})
}

// A peer that was told by how long ACKs are delayed at most relies on it until the connection ends.
func TestRootReleaseKeepsWhatPeersWereTold(t *testing.T) {
	p := newPeers(t)
	delack := 2 * tick()
	p.policy(t, func(q *path.Policy) {
		peerOption(2000)(q)
		q.Params.Set(tcp.DelackMax, delack)
		q.Adapted = 1 << tcp.DelackMax
	})
	l := p.listen(t, nil)
	c := dial(t, p.near.NS, l.Addr().String(), nil)
	s := accept(t, l)
	p.release(t, nothing)
	exchange(t, c, s, 1000)
	p.checkTimers(t, "told", map[string]net.Conn{"client": c}, kernelRTOMin, uint32(delack))
}

// A clamp is lifted when its connection has recovered from losses. If that takes long, it is not waited for.
func TestRootReleaseWaitsForRecovery(t *testing.T) {
	const tcpCALoss = 4
	for name, recovers := range map[string]bool{"recovers": true, "does not recover": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
			r.policy(t, func(p *path.Policy) { clamped(100)(p); rtoMin(10_000)(p); p.Adapted |= 1 << tcp.CwndClamp })
			l := listen(t, far.NS, netip.AddrPortFrom(far.V4, 0).String(), nil)
			c := dial(t, near.NS, l.Addr().String(), nil)
			s := accept(t, l)
			exchange(t, c, s, 1000)
			if got := ssthreshOf(t, c); got != 100 && got != 50 { // both ends are connections of the path
				t.Fatalf("the clamp is %d", got)
			}
			arrive := vanish(t, far, near) // ACKs
			_, err := c.Write(make([]byte, 1000))
			must(t, err)
			eventually(t, func() error {
				if got := tcpInfo(t, c).Ca_state; got != tcpCALoss {
					return fmt.Errorf("state %d of congestion avoidance", got)
				}
				return nil
			})
			walks, begun := 0, time.Now()
			r.release(t, func() {
				if walks++; walks == 2 && recovers {
					arrive()
					exchange(t, s, c, 1)
				}
			})
			if walks < 2 || walks > int(releaseTime/releasePause)+2 || recovers != (ssthreshOf(t, c) == infinite) {
				t.Errorf("after %d walks in %v, the slow start threshold is %d", walks, time.Since(begun), ssthreshOf(t, c))
			}
		})
	}
}

// What a daemon left when it ended is undone without it, also limits of idle connections.
func TestRootReleaseWithoutADaemon(t *testing.T) {
	r := limitRig(t, limit.Limit{Rate: 4e6})
	r.needLive(t)
	r.policy(t, released)
	c, s := r.pair(t, "127.0.0.1:0")
	r.receive(t, s, c)
	r.crash(t)
	if got := marksOf(t, c, false); got != [2]int{6, 46} || ssthreshOf(t, c) >= 400 {
		t.Fatalf("marks %v, clamp %d", got, ssthreshOf(t, c))
	}
	r.release(t, nothing)
	if a, b := pacingOf(t, c), pacingOf(t, s); a != noPacing || b != noPacing {
		t.Errorf("pacing rates %d and %d, want none", a, b)
	}
	if got := marksOf(t, c, false); got != [2]int{} || ssthreshOf(t, c) != infinite {
		t.Errorf("marks %v, clamp %d", got, ssthreshOf(t, c))
	}
	must(t, Release(t.TempDir(), nil)) // nothing is there
	r.open(t)
	r.checkTimers(t, "without a daemon", map[string]net.Conn{"client": c, "server": s}, 50_000, kernelDelackMax)
}
