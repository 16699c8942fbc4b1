package datapath

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

const kernelDelackMax = 200_000 // microseconds: TCP_DELACK_MAX

// delackMax is a policy with an adapted DELACK_MAX in microseconds.
func delackMax(us uint64) func(*path.Policy) {
	return func(p *path.Policy) {
		p.Params.Set(tcp.DelackMax, us)
		p.Adapted = 1 << tcp.DelackMax
	}
}

// givenDelackMax is what the kernel makes of a value: its clock's ticks, and two at least.
func givenDelackMax(us uint32) uint32 { return roundUp(max(us, uint32(minTimeout()))) }

func (r *rig) checkDelackMax(t *testing.T, what string, is func(*tcp.Sample) bool, want uint32) {
	t.Helper()
	s := r.find(t, what, is)
	if got, want := micros32(s.DelackMax), givenDelackMax(want); got+1000 < want || got > want+1000 {
		t.Errorf("%s: DELACK_MAX %d us, want %d", what, got, want)
	}
}

// Connections of both directions begin with the adapted DELACK_MAX.
func TestRootAdaptedDelackMax(t *testing.T) {
	r := newRig(t)
	for _, us := range []uint32{16_000, 8000, 4000} {
		r.policy(t, delackMax(uint64(us)))
		for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
			c, s := r.pair(t, address)
			isC, isS := ofConn(c), ofConn(s)
			closeAll(t, c, s)
			r.checkDelackMax(t, fmt.Sprintf("outgoing %s, %d us", address, us), isC, us)
			r.checkDelackMax(t, fmt.Sprintf("incoming %s, %d us", address, us), isS, us)
		}
	}
}

// Connections without an adapted value, of the hold-out, or of MPTCP, keep the kernel's DELACK_MAX.
func TestRootOtherDelackMaxIsKept(t *testing.T) {
	r := newRig(t)
	for name, change := range map[string]func(*path.Policy){
		"no value": nil,
		"hold-out": func(p *path.Policy) { delackMax(8000)(p); p.HoldOut = 1 << 16 },
	} {
		r.policy(t, change)
		c, s := r.pair(t, "127.0.0.1:0")
		isC, isS := ofConn(c), ofConn(s)
		closeAll(t, c, s)
		r.checkDelackMax(t, name, isC, kernelDelackMax)
		r.checkDelackMax(t, name+", incoming", isS, kernelDelackMax)
	}
	t.Run("MPTCP", func(t *testing.T) {
		r := newRig(t)
		r.policy(t, delackMax(8000))
		for _, s := range r.subflows(t) {
			if micros32(s.DelackMax)+1000 < kernelDelackMax {
				t.Errorf("a subflow has a DELACK_MAX of %s", s.DelackMax)
			}
		}
	})
}

// twoPieces sends a request in two pieces from c, with Nagle's algorithm, and an answer. It returns
// how long that took.
func twoPieces(t *testing.T, c, s net.Conn) time.Duration {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(s, make([]byte, 200))
		if err == nil {
			_, err = s.Write(make([]byte, 100))
		}
		done <- err
	}()
	begun := time.Now()
	for range 2 {
		_, err := c.Write(make([]byte, 100))
		must(t, err)
	}
	_, err := io.ReadFull(c, make([]byte, 100))
	must(t, err)
	must(t, <-done)
	return time.Since(begun)
}

// A peer with Nagle's algorithm waits for the delayed ACK, for as long as the adapted value says. Its
// samples have the counters that show it.
func TestRootPeerWaitsForDelayedACK(t *testing.T) {
	r := newRig(t)
	const exchanges = 40
	wait := func(change func(*path.Policy)) time.Duration {
		r.policy(t, change)
		c, s := r.pair(t, "127.0.0.1:0")
		must(t, c.(*net.TCPConn).SetNoDelay(false))
		var took []time.Duration
		for range exchanges {
			took = append(took, twoPieces(t, c, s))
		}
		is := ofConn(s)
		closeAll(t, c, s)
		got := r.find(t, "server", is)
		if acks := got.SegsOut - got.DataSegsOut; got.DataSegsIn < 2*exchanges-2 || got.DataSegsIn > 2*exchanges || acks < exchanges || acks > 2*exchanges+4 {
			t.Errorf("%d segments with data received, %d sent, and %d without", got.DataSegsIn, got.DataSegsOut, acks)
		}
		return median(took)
	}
	usual := wait(nil)
	short := wait(delackMax(8000))
	t.Logf("a request in two pieces takes %v, %v with the kernel's DELACK_MAX", short, usual)
	// The timer ends a tick later at most.
	if most := time.Duration(givenDelackMax(8000)+jiffyMicros())*time.Microsecond + 5*time.Millisecond; short > most || usual < 30*time.Millisecond {
		t.Errorf("want at most %v, and 30 ms or more", most)
	}
}

// Running connections get their path's value at the next walk, and the kernel's when the policy has
// none.
func TestRootRunningConnectionsFollowDelackMax(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	policy := func(change func(*path.Policy)) {
		t.Helper()
		r.policy(t, change)
		must(t, r.SetSettings(Settings{Interval: 10 * time.Millisecond}))
	}
	policy(nil)
	c, s := r.pair(t, "127.0.0.1:0")
	policy(func(p *path.Policy) { delackMax(8000)(p); p.HoldOut = 1 << 16 })
	out, outPeer := r.pair(t, "127.0.0.1:0")
	isC, isOut := intervalOf(c), intervalOf(out)
	for _, x := range []struct {
		name   string
		policy func(*path.Policy)
		want   uint32
	}{
		{"shorter", delackMax(16_000), 16_000},
		{"shorter again", delackMax(8000), 8000},
		{"longer", delackMax(16_000), 16_000},
		{"the kernel's", nil, kernelDelackMax},
		{"not adapted", set(tcp.DelackMax, 8000), kernelDelackMax},
		{"once more", delackMax(8000), 8000},
		{"all are in the hold-out", func(p *path.Policy) { delackMax(8000)(p); p.HoldOut = 1 << 16 }, kernelDelackMax},
	} {
		policy(x.policy)
		for range 3 { // a sample has the value from before the walk
			exchange(t, c, s, 1000)
			exchange(t, out, outPeer, 1000)
			time.Sleep(15 * time.Millisecond)
			r.walk(t, r.ns)
			r.caughtUp(t)
		}
		if got, want := micros32(r.latest(isC).DelackMax), givenDelackMax(x.want); got+1000 < want || got > want+1000 {
			t.Errorf("%s: DELACK_MAX %d us, want %d", x.name, got, want)
		}
		if got := micros32(r.latest(isOut).DelackMax); got+1000 < kernelDelackMax {
			t.Errorf("%s: hold-out has a DELACK_MAX of %d us", x.name, got)
		}
	}
}

// latest is the last sample that matches.
func (r *rig) latest(is func(*tcp.Sample) bool) (last tcp.Sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.samples {
		if is(&s) {
			last = s
		}
	}
	return last
}
