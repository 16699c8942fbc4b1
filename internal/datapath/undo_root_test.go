package datapath

import (
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// delay keeps what from sends to `to` in the queue of packets that wait for a link-layer address, until release.
func delay(t testing.TB, from, to testenv.End) (release func()) {
	t.Helper()
	neigh := func(args ...string) string {
		return from.NS.Run(t, "ip", append([]string{"neigh"}, append(args, "dev", from.Name)...)...)
	}
	_, rest, _ := strings.Cut(neigh("show", to.V4.String()), "lladdr ")
	mac, _, _ := strings.Cut(rest, " ")
	answers := "net.ipv4.conf." + to.Name + ".arp_ignore"
	testenv.Sysctl(t, to.NS, answers, "8") // none
	neigh("del", to.V4.String())
	return func() {
		testenv.Sysctl(t, to.NS, answers, "0")
		neigh("replace", to.V4.String(), "lladdr", mac, "nud", "permanent")
	}
}

// lateACKs is a connection over a veth pair, with an RTO_MIN of 10 ms. Sysctls are those of the far end.
type lateACKs struct {
	near, far testenv.End
	c, s      net.Conn
	is        func(*tcp.Sample) bool // its last sample
}

func newLateACKs(t *testing.T, r *rig, sysctls map[string]string) *lateACKs {
	t.Helper()
	l := &lateACKs{}
	l.near, l.far = testenv.Veth(t, r.ns, testenv.NetNS(t))
	for name, value := range sysctls {
		testenv.Sysctl(t, l.far.NS, "net.ipv4."+name, value)
	}
	r.policy(t, rtoMin(10_000))
	listener := listen(t, l.far.NS, netip.AddrPortFrom(l.far.V4, 0).String(), nil)
	l.c = dial(t, l.near.NS, listener.Addr().String(), nil)
	l.s = accept(t, listener)
	l.is = ofConn(l.c)
	for range 5 {
		exchange(t, l.c, l.s, 1000)
		exchange(t, l.s, l.c, 1000)
	}
	return l
}

// resend sends n bytes, and waits until packets were retransmitted `times` times or more, and until all is acknowledged
// after `arrive` was called.
func (l *lateACKs) resend(t *testing.T, n int, times uint32, arrive func()) {
	t.Helper()
	before := tcpInfo(t, l.c).Total_retrans
	_, err := l.c.Write(make([]byte, n))
	must(t, err)
	wait := func(what string, done func(*unix.TCPInfo) bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !done(tcpInfo(t, l.c)); time.Sleep(2 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not %s: %+v", what, tcpInfo(t, l.c))
			}
		}
	}
	wait("retransmitted", func(i *unix.TCPInfo) bool { return i.Total_retrans >= before+times })
	arrive()
	wait("acknowledged", func(i *unix.TCPInfo) bool { return i.Unacked == 0 })
	_, err = io.CopyN(io.Discard, l.s, int64(n))
	must(t, err)
	time.Sleep(100 * time.Millisecond) // for DSACKs
}

// late sends n bytes whose ACKs are late: after a tail loss probe and two timeouts.
func (l *lateACKs) late(t *testing.T, n int) {
	t.Helper()
	l.resend(t, n, 3, delay(t, l.far, l.near))
}

// Retransmissions after spurious timeouts are counted if the peer does not report them: by timestamps, and by F-RTO without these. If
// the peer reports them as well, each is counted once. After losses, none is.
func TestRootSpuriousTimeouts(t *testing.T) {
	for name, x := range map[string]struct {
		dsack, timestamps string
		bytes             int
		undone, dsacks    bool
	}{
		"one packet, timestamps":              {"0", "1", 1000, true, false},
		"packets, timestamps":                 {"0", "1", 10_000, true, false},
		"packets, no timestamps":              {"0", "0", 10_000, true, false},
		"one packet, no timestamps":           {"0", "0", 1000, false, false}, // it cannot be found
		"one packet, DSACKs and timestamps":   {"1", "1", 1000, false, true},
		"packets, DSACKs and timestamps":      {"1", "1", 10_000, false, true},
		"one packet, DSACKs and no timestamp": {"1", "0", 1000, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			l := newLateACKs(t, r, map[string]string{"tcp_dsack": x.dsack, "tcp_timestamps": x.timestamps})
			l.late(t, x.bytes)
			closeAll(t, l.c, l.s)
			got := r.find(t, "client", l.is)
			if got.Undone > 0 != x.undone || got.DSACKs > 0 != x.dsacks || got.Spurious() > got.Retrans {
				t.Errorf("%d undone and %d reported of %d retransmissions, %d timeouts", got.Undone, got.DSACKs, got.Retrans, got.RTOs)
			}
			t.Logf("%d undone and %d reported of %d retransmissions, %d timeouts", got.Undone, got.DSACKs, got.Retrans, got.RTOs)
		})
	}
	for name, n := range map[string]int{"packets": 10_000, "ACK": 1000} {
		t.Run("lost "+name, func(t *testing.T) {
			r := newRig(t)
			l := newLateACKs(t, r, map[string]string{"tcp_dsack": "0"})
			from, to := l.near, l.far
			if name == "ACK" { // of a single packet: with several, F-RTO finds that only ACKs were lost
				from, to = to, from
			}
			l.resend(t, n, 3, vanish(t, from, to))
			closeAll(t, l.c, l.s)
			if got := r.find(t, "client", l.is); got.Retrans == 0 || got.Undone != 0 {
				t.Errorf("%d undone of %d retransmissions", got.Undone, got.Retrans)
			}
		})
	}
}

// What the peer reports after a sample is not counted again.
func TestRootSpuriousTimeoutsAreCountedOnce(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	l := newLateACKs(t, r, map[string]string{"tcp_dsack": "0"})
	must(t, r.SetSettings(Settings{Interval: 10 * time.Millisecond}))
	interval := intervalOf(l.c)
	// walk takes a sample, and returns all of them together.
	walk := func() (undone, dsacks int) {
		t.Helper()
		for range 2 {
			exchange(t, l.c, l.s, 1000)
			time.Sleep(15 * time.Millisecond)
			r.completeWalk(t)
			r.caughtUp(t)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for i := range r.samples {
			if s := &r.samples[i]; interval(s) {
				undone, dsacks = undone+int(s.Undone), dsacks+int(s.DSACKs)
			}
		}
		return undone, dsacks
	}
	l.late(t, 1000)
	first, dsacks := walk()
	if first == 0 || dsacks != 0 {
		t.Fatalf("%d undone, %d reported", first, dsacks)
	}
	if again, _ := walk(); again != first {
		t.Errorf("%d undone, with one more sample %d", first, again)
	}
	testenv.Sysctl(t, l.far.NS, "net.ipv4.tcp_dsack", "1")
	l.resend(t, 1000, 1, vanish(t, l.far, l.near)) // ACKs are lost: data that has arrived is sent again
	undone, dsacks := walk()
	if dsacks == 0 || undone != max(0, first-dsacks) {
		t.Errorf("%d undone before, %d after, %d reported", first, undone, dsacks)
	}
}
