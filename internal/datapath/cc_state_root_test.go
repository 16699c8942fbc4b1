package datapath

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	controls "github.com/tcpilot/tcpilot/internal/cc"
	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// stateCC is the name in testdata/state.bpf.c.
const stateCC = "tcpilot_state"

// registerState registers the congestion control of testdata/state.bpf.c until the test ends.
func registerState(t testing.TB) {
	t.Helper()
	var objs stateObjects
	err := loadStateObjects(&objs, nil)
	if errors.Is(err, unix.EINVAL) && strings.Contains(err.Error(), "map create") || errors.Is(err, ebpf.ErrNotSupported) {
		testenv.Missing(t, "this kernel cannot register a congestion control by a link (needs Linux 6.4)")
	}
	must(t, err)
	t.Cleanup(func() { must(t, objs.Close()) })
	l, err := link.AttachStructOps(link.StructOpsOptions{Map: objs.State})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
}

// wantState checks that a sample has the state that the congestion control of testdata
// reports. Its w_max grows with every ACK that lets the window grow.
func wantState(t testing.TB, what string, s *tcp.Sample, leastWMax uint32) {
	t.Helper()
	want := tcp.CCState{BW: 0x1122334455667788, MinRTT: 1001, InflightHi: 1002, InflightLo: tcp.NoBound, Alpha: 1004,
		WMax: s.CCState.WMax, Mode: 6, Flags: tcp.CCFlagKnown | tcp.CCFlagECN}
	if s.CCState != want || s.CCState.WMax < leastWMax || s.CC != cc(stateCC) {
		t.Errorf("%s: %s with %+v, want %+v and w_max at least %d", what, s.CC, s.CCState, want, leastWMax)
	}
}

// TestRootCCState: samples have the state that a control of tcpilot's reports, while the
// connection lives and at its end, however it ends.
func TestRootCCState(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	registerState(t)
	r.policy(t, arms(arm(stateCC, 1<<16)))
	must(t, r.SetSettings(Settings{Interval: 10 * time.Millisecond}))
	const begun = 1005
	for name, end := range map[string]func(c, s net.Conn){
		"close": func(c, s net.Conn) { closeAll(t, c, s) },
		"reset by close": func(c, s net.Conn) { // seen as tcp_send_reset
			must(t, c.(*net.TCPConn).SetLinger(0))
			closeAll(t, c, s)
		},
		"reset by connect": func(c, s net.Conn) { // tcp_disconnect wipes the state
			withFD(c, func(fd int) { connectUnspec(fd) })
			closeAll(t, c, s)
		},
	} {
		c, s := r.pair(t, "127.0.0.1:0")
		isLive, isFinal, isPeer := intervalOf(c), ofConn(c), ofConn(s)
		exchange(t, c, s, 100_000)
		time.Sleep(20 * time.Millisecond)
		r.walk(t, r.ns)
		live := r.find(t, "live connection", isLive)
		wantState(t, name+", live", &live, begun+1)
		exchange(t, c, s, 100_000)
		time.Sleep(20 * time.Millisecond) // the last ACK
		end(c, s)
		final, peer := r.find(t, "client", isFinal), r.find(t, "server", isPeer)
		wantState(t, name+", last", &final, live.CCState.WMax)
		wantState(t, name+", server", &peer, begun)
	}
}

// TestRootNoCCState: samples have no state with other controls, or with a control that
// has not started yet.
func TestRootNoCCState(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	registerState(t)
	r.policy(t, nil)
	must(t, r.SetSettings(Settings{Interval: 10 * time.Millisecond}))
	nothing := func(what string, s *tcp.Sample) {
		t.Helper()
		if s.CCState != (tcp.CCState{}) {
			t.Errorf("%s: %s has %+v", what, s.CC, s.CCState)
		}
	}
	c, s := r.pair(t, "127.0.0.1:0") // cubic, which uses icsk_ca_priv for itself
	isLive, isFinal := intervalOf(c), ofConn(c)
	exchange(t, c, s, 100_000)
	time.Sleep(20 * time.Millisecond)
	r.walk(t, r.ns)
	live := r.find(t, "live connection", isLive)
	nothing("live", &live)
	closeAll(t, c, s)
	final := r.find(t, "its end", isFinal)
	nothing("last", &final)

	if _, err := dialErr(t, r.ns, "", "127.0.0.1:1", wantCC(stateCC)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatalf("connect to a port without listener: %v", err)
	}
	failed := r.find(t, "failed connect", func(s *tcp.Sample) bool { return s.Kind == tcp.KindFailedConnect })
	nothing("failed connect", &failed)
	if failed.CC != cc(stateCC) {
		t.Errorf("it had %s", failed.CC)
	}
}

// TestRootCCChanges: the state is that of the control in use, not of the one before.
func TestRootCCChanges(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	registerState(t)
	r.policy(t, nil)
	must(t, r.SetSettings(Settings{Interval: 10 * time.Millisecond}))
	c, s := r.pair(t, "127.0.0.1:0")
	isInterval := intervalOf(c)
	for i, name := range []string{stateCC, "reno", stateCC} {
		setCC(t, c, name)
		exchange(t, c, s, 50_000)
		time.Sleep(20 * time.Millisecond)
		r.walk(t, r.ns)
		got := r.count(t, i+1, isInterval)[i]
		if name == stateCC {
			wantState(t, "after a change", &got, 1005)
		} else if got.CCState != (tcp.CCState{}) || got.CC != cc(name) {
			t.Errorf("%s has %+v", got.CC, got.CCState)
		}
	}
	closeAll(t, c, s)
}

// TestRootOwnCCs: the state that each of tcpilot's controls reports for a connection over
// loopback has the expected mode and figures.
func TestRootOwnCCs(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	registerState(t)                                 // or skips
	testenv.Sysctl(t, r.ns, "net.ipv4.tcp_ecn", "1") // some need ECN
	r.policy(t, nil)
	must(t, r.SetSettings(Settings{Interval: 10 * time.Millisecond}))
	for _, own := range congestion.Own() {
		name := own.CC.String()
		release, err := controls.Hold(name)
		if err != nil {
			t.Errorf("hold %s: %v", name, err)
			continue
		}
		c, s := r.pair(t, "127.0.0.1:0")
		isLive := intervalOf(c)
		setCC(t, c, name)
		exchange(t, c, s, 3_000_000)
		time.Sleep(20 * time.Millisecond)
		r.walk(t, r.ns)
		got := r.find(t, name, isLive)
		closeAll(t, c, s)
		must(t, release())
		mode := congestion.ModeName(got.CC, &got.CCState)
		if got.CC != own.CC || !slices.Contains(own.Modes, mode) {
			t.Errorf("%s: %s has mode %q, %+v", name, got.CC, mode, got.CCState)
		}
		if got.CCState.Alpha > tcp.AlphaOne || got.CCState.MinRTT > 1_000_000 || got.CCState.Flags&^tcp.AllCCFlags != 0 {
			t.Errorf("%s: %+v", name, got.CCState)
		}
		if name == "tcpilot_bbr3" && (got.CCState.BW < 1_000_000 || got.CCState.MinRTT == 0) {
			t.Errorf("%s has no model of the path: %+v", name, got.CCState)
		}
	}
}
