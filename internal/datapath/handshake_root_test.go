package datapath

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/sysctl"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestRootRTOMin(t *testing.T) {
	r := newRig(t)
	rto := func() uint32 {
		c, s := r.pair(t, "127.0.0.1:0")
		for range 25 { // each round trip takes a quarter off the handshake's initial variance
			exchange(t, c, s, 100)
			exchange(t, s, c, 100)
		}
		return tcpInfo(t, c).Rto
	}
	r.policy(t, nil)
	before := rto()
	r.policy(t, set(tcp.RTOMin, 1000))
	// A pause of the machine makes it longer.
	if got := min(rto(), rto(), rto()); got > 150_000 || before < 200_000 {
		t.Errorf("retransmission timeout %d us, %d us without policy", got, before)
	}
}

// TestRootDelackMax measures the delay of an ACK that no data carries.
func TestRootDelackMax(t *testing.T) {
	r := newRig(t)
	wait := func() time.Duration {
		c, s := r.pair(t, "127.0.0.1:0")
		for range 20 { // the receiver leaves quick ACK mode, and treats the traffic as interactive
			exchange(t, c, s, 10)
			exchange(t, s, c, 10)
		}
		var waits []time.Duration
		for range 7 {
			exchange(t, c, s, 10)
			begun := time.Now()
			for tcpInfo(t, c).Unacked > 0 && time.Since(begun) < time.Second {
				time.Sleep(200 * time.Microsecond)
			}
			waits = append(waits, time.Since(begun))
			exchange(t, s, c, 10)
		}
		return median(waits)
	}
	r.policy(t, nil)
	before := wait()
	r.policy(t, set(tcp.DelackMax, 1000))
	got := wait()
	t.Logf("an ACK waits %v, %v without policy", got, before)
	if got > before*2/3 {
		t.Error("delack_max has no effect")
	}
}

// TestRootSynRTO loses SYNs, and measures when the second one goes out.
func TestRootSynRTO(t *testing.T) {
	r := newRig(t)
	near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
	vanish(t, near, far)
	wait := func(bound time.Duration) time.Duration {
		var fd int
		var err error
		r.ns.Do(t, func() {
			fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			must(t, err)
			if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 80, Addr: far.V4.As4()}); err != unix.EINPROGRESS {
				t.Errorf("connect: %v", err)
			}
		})
		defer unix.Close(fd)
		begun := time.Now()
		for time.Since(begun) < bound {
			info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			must(t, err)
			if info.Total_retrans > 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		return time.Since(begun)
	}
	r.policy(t, set(tcp.SynRTO, 50))
	got := wait(3 * time.Second)
	r.policy(t, nil)
	before := wait(3 * time.Second)
	t.Logf("second SYN after %v, %v without policy", got, before)
	if got < 40*time.Millisecond || got > before/2 || before < 900*time.Millisecond {
		t.Error("syn_rto has no effect")
	}
	c, err := r.Counters()
	must(t, err)
	if c.Replies == 0 {
		t.Error("no reply was counted")
	}
}

// TestRootAdaptedSynRTO: a timeout that was computed comes with more retransmissions, so that
// a connect does not fail earlier. An application that chose their number keeps it, and the
// kernel's timeout. A socket that connects again begins with the usual number.
func TestRootAdaptedSynRTO(t *testing.T) {
	const usual = 6 // net.ipv4.tcp_syn_retries
	r := newRig(t)
	near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
	vanish(t, near, far)
	adapted := func(ms uint64) func(*path.Policy) {
		return func(p *path.Policy) {
			p.Params.Set(tcp.SynRTO, ms)
			p.Adapted = 1 << tcp.SynRTO
		}
	}
	state := func(fd int) (retries int, info *unix.TCPInfo) {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		must(t, err)
		retries, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SYNCNT) // raised before the second retransmission
		must(t, err)
		return retries, info
	}
	// check connects. lost is the number of retransmissions that the socket has once its SYN was lost twice; 0: it
	// is not waited for.
	check := func(name string, fd, begin int, wantTimeout time.Duration, lost int) {
		t.Helper()
		r.ns.Do(t, func() {
			if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 80, Addr: far.V4.As4()}); err != unix.EINPROGRESS {
				t.Errorf("connect: %v", err)
			}
		})
		retries, info := state(fd)
		if timeout := time.Duration(info.Rto) * time.Microsecond; retries != begin || timeout < wantTimeout || timeout > wantTimeout+20*time.Millisecond {
			t.Errorf("%s: %d retransmissions, timeout %v; want %d, %v", name, retries, timeout, begin, wantTimeout)
		}
		if lost == 0 {
			return
		}
		for end := time.Now().Add(5 * time.Second); info.Total_retrans < 2 && time.Now().Before(end); time.Sleep(time.Millisecond) {
			retries, info = state(fd)
		}
		if retries != lost || info.Total_retrans < 2 {
			t.Errorf("%s: %d retransmissions after %d, want %d", name, retries, info.Total_retrans, lost)
		}
	}
	socket := func() (fd int) {
		r.ns.Do(t, func() {
			var err error
			fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			must(t, err)
		})
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	fd := socket()
	r.policy(t, adapted(125))
	check("first connect", fd, usual, 125*time.Millisecond, usual+3)
	connectUnspec(fd)
	r.policy(t, adapted(500))
	check("second connect, another timeout", fd, usual, 500*time.Millisecond, usual+1)
	connectUnspec(fd)
	r.policy(t, nil)
	check("third connect, nothing adapted", fd, usual, time.Second, usual)

	chosen := socket()
	must(t, unix.SetsockoptInt(chosen, unix.IPPROTO_TCP, unix.TCP_SYNCNT, 4))
	r.policy(t, adapted(125))
	check("the application chose 4", chosen, 4, time.Second, 0)
	connectUnspec(chosen)
	check("and keeps them", chosen, 4, time.Second, 0)

	r.policy(t, func(p *path.Policy) { p.Params.Set(tcp.SynRTO, 125) })
	check("a rule sets the timeout", socket(), usual, 125*time.Millisecond, usual)

	r.policy(t, adapted(125))
	chosen = socket()
	must(t, unix.SetsockoptInt(chosen, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 30_000))
	check("the application chose 30 s", chosen, usual, time.Second, 0)

	testenv.Sysctl(t, r.ns, "net.ipv4.tcp_syn_retries", "3")
	check("few retransmissions", socket(), 3, time.Second, 0)
}

// TestRootPendingConnectKeepsItsTimeout: the kernel asks for the timeout again before it gives
// up, when the policy may have changed.
func TestRootPendingConnectKeepsItsTimeout(t *testing.T) {
	r := newRig(t)
	near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
	vanish(t, near, far)
	if path := "net.ipv4.tcp_syn_linear_timeouts"; sysctlExists(path) {
		testenv.Sysctl(t, r.ns, path, "0")
	}
	adapt := func(ms uint64) {
		r.policy(t, func(p *path.Policy) {
			p.Params.Set(tcp.SynRTO, ms)
			p.Adapted = 1 << tcp.SynRTO
		})
	}
	adapt(500)
	begun := time.Now()
	done := make(chan error, 1)
	go r.ns.Do(t, func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(fd)
			err = unix.Connect(fd, &unix.SockaddrInet4{Port: 80, Addr: far.V4.As4()})
		}
		done <- err
	})
	time.Sleep(200 * time.Millisecond)
	adapt(125)
	// Two more retransmissions become three: after 0.5, 1.5 and 3.5 s, and it fails after 7.5 s.
	testenv.Sysctl(t, r.ns, "net.ipv4.tcp_syn_retries", "2")
	err := <-done
	if took := time.Since(begun); err != unix.ETIMEDOUT || took < 7300*time.Millisecond || took > 9*time.Second {
		t.Errorf("connect ended after %v: %v; want a timeout after 7.5 s", took, err)
	}
}

func sysctlExists(name string) bool {
	_, err := os.Stat(sysctl.Path(name))
	return err == nil
}

// lostSynAck is a client in the rig's namespace to which SYN-ACKs from a server get lost.
type lostSynAck struct {
	r      *rig
	server *testenv.NS
	addr   netip.Addr // the server's
}

func newLostSynAck(t *testing.T) lostSynAck {
	r := newRig(t)
	server := testenv.NetNS(t)
	sEnd, cEnd := testenv.Veth(t, server, r.ns)
	vanish(t, sEnd, cEnd) // the client's SYN arrives, and the answer goes to an address without a host
	return lostSynAck{r, server, sEnd.V4}
}

// wait connects to a new listener, and returns how long after that the second SYN-ACK goes out.
func (s lostSynAck) wait(t *testing.T, listener control) time.Duration {
	t.Helper()
	l := listen(t, s.server, netip.AddrPortFrom(s.addr, 0).String(), listener)
	defer l.Close() // it ends the handshake
	before := synRetrans(t, s.server)
	var fd int
	var err error
	s.r.ns.Do(t, func() {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		must(t, err)
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(addrPort(l.Addr()).Port()), Addr: s.addr.As4()}); err != unix.EINPROGRESS {
			t.Errorf("connect: %v", err)
		}
	})
	defer unix.Close(fd)
	begun := time.Now()
	for time.Since(begun) < 3*time.Second && synRetrans(t, s.server) == before {
		time.Sleep(2 * time.Millisecond)
	}
	return time.Since(begun)
}

// TestRootSynAckRTO loses SYN-ACKs, and measures when the second one goes out.
func TestRootSynAckRTO(t *testing.T) {
	s := newLostSynAck(t)
	s.r.policy(t, nil)
	before := s.wait(t, nil)
	s.r.policy(t, set(tcp.SynAckRTO, 50))
	got := s.wait(t, nil)
	t.Logf("second SYN-ACK after %v, %v without policy", got, before)
	if got < 40*time.Millisecond || got > before/2 || before < 800*time.Millisecond {
		t.Error("synack_rto has no effect")
	}
}

// needKernelContext ends a test where no program can look at the listener of a request socket.
func needKernelContext(t *testing.T) {
	t.Helper()
	kernel, err := btf.LoadKernelSpec()
	must(t, err)
	var f *btf.Func
	if err := kernel.TypeByName("bpf_cast_to_kern_ctx", &f); err != nil {
		testenv.Missing(t, "bpf_cast_to_kern_ctx (Linux 6.2): "+err.Error())
	}
}

// TestRootSynAcksWithoutTheirListener: a kernel that does not show the listener is reported once that matters.
func TestRootSynAcksWithoutTheirListener(t *testing.T) {
	r := newRig(t)
	reported := func() bool {
		return slices.ContainsFunc(r.Features(), func(f Feature) bool { return f.Name == featureSynAcks })
	}
	r.policy(t, set(tcp.SynAckRTO, 50))
	r.churnAll(t, 1)
	if reported() {
		t.Error("reported before a timeout is adapted")
	}
	r.policy(t, adaptedSynAck)
	r.churnAll(t, 1)
	kernel, err := btf.LoadKernelSpec()
	must(t, err)
	var f *btf.Func
	if lacks := kernel.TypeByName("bpf_cast_to_kern_ctx", &f) != nil; reported() != lacks {
		t.Errorf("reported: %v, the kernel lacks it: %v", reported(), lacks)
	}
}

func adaptedSynAck(p *path.Policy) {
	p.Params.Set(tcp.SynAckRTO, 50)
	p.Adapted = 1 << tcp.SynAckRTO
}

// TestRootAdaptedSynAckRTO: an adapted timeout leaves those listeners alone to which the number of retransmissions matters.
func TestRootAdaptedSynAckRTO(t *testing.T) {
	s := newLostSynAck(t)
	needKernelContext(t)
	s.r.policy(t, adaptedSynAck)
	option := func(name, value int) control {
		return func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, name, value) }
	}
	want := func(name string, listener control, short bool) {
		t.Helper()
		if got := s.wait(t, listener); short && got > 500*time.Millisecond || !short && got < 800*time.Millisecond {
			t.Errorf("%s: second SYN-ACK after %v", name, got)
		}
	}
	usual := "5"
	want("a listener", nil, true)
	want("one with a number of its own", option(unix.TCP_SYNCNT, 6), false)
	want("one that defers accept", option(unix.TCP_DEFER_ACCEPT, 5), false)
	testenv.Sysctl(t, s.server, "net.ipv4.tcp_synack_retries", "3")
	want("few retransmissions", nil, false)
	testenv.Sysctl(t, s.server, "net.ipv4.tcp_synack_retries", usual)
	want("as many as usual", nil, true)
	s.r.policy(t, set(tcp.SynAckRTO, 50))
	want("a rule sets it, and the listener defers accept", option(unix.TCP_DEFER_ACCEPT, 5), true)
}

// TestRootSynAcksAreLookedUpAtALimitedRate: those that are adapted, so that many SYNs do not cost much.
func TestRootSynAcksAreLookedUpAtALimitedRate(t *testing.T) {
	r := newRig(t)
	needKernelContext(t)
	const conns = 1000
	replies := func(change func(*path.Policy), of Settings) (n uint64, took time.Duration) {
		t.Helper()
		r.policy(t, change)
		must(t, r.SetSettings(of))
		before, err := r.Counters()
		must(t, err)
		begun := time.Now()
		r.churnAll(t, conns)
		took = time.Since(begun)
		after, err := r.Counters()
		must(t, err)
		return after.Replies - before.Replies, took
	}
	if got, _ := replies(set(tcp.SynAckRTO, 50), Settings{Fields: 1 << tcp.SynAckRTO}); got < conns {
		t.Errorf("%d answers to %d requests", got, conns)
	}
	got, took := replies(adaptedSynAck, Settings{Adapted: 1 << tcp.SynAckRTO})
	const window, least = 100 * time.Millisecond, 50 // bpf/sockops/synack.bpf.h
	if most := uint64(runtime.NumCPU()) * least * uint64(took/window+2); got < least || got > most {
		t.Errorf("%d adapted ones are answered in %v, want %d to %d", got, took, least, most)
	}
}

// synRetrans is TcpExtTCPSynRetrans of a namespace: SYNs and SYN-ACKs.
func synRetrans(t testing.TB, ns *testenv.NS) (n int) {
	t.Helper()
	ns.Do(t, func() {
		text, err := os.ReadFile("/proc/thread-self/net/netstat")
		must(t, err)
		n, err = testenv.NetCounter(string(text), "TCPSynRetrans")
		must(t, err)
	})
	return n
}

// TestRootInitRwnd reads the window that the peer is offered.
func TestRootInitRwnd(t *testing.T) {
	r := newRig(t)
	far := testenv.NetNS(t)
	_, farEnd := testenv.Veth(t, r.ns, far)
	windows := func() (client, server uint32) {
		l := listen(t, far, netip.AddrPortFrom(farEnd.V4, 0).String(), nil)
		c := dial(t, r.ns, l.Addr().String(), nil)
		return tcpInfo(t, c).Snd_wnd, tcpInfo(t, accept(t, l)).Snd_wnd
	}
	for _, packets := range []uint64{4, 20} {
		r.policy(t, set(tcp.InitRwnd, packets))
		c, s := windows()
		// Windows are in steps of the window scale, and of the MSS less options.
		want := float64(packets) * 1460
		for _, w := range []uint32{c, s} {
			if f := float64(w); f < 0.9*want || f > 1.1*want {
				t.Errorf("init_rwnd %d offers %d and %d bytes", packets, c, s)
			}
		}
	}
	r.policy(t, nil)
	if c, s := windows(); c < 40_000 || s < 40_000 {
		t.Errorf("without policy %d and %d are offered", c, s)
	}
}

func TestRootECN(t *testing.T) {
	r := newRig(t)
	const agreed = 8 // TCPI_OPT_ECN
	for _, sysctl := range []string{"0", "2"} {
		testenv.Sysctl(t, r.ns, "net.ipv4.tcp_ecn", sysctl)
		for _, wanted := range []bool{false, true} {
			r.policy(t, func(p *path.Policy) {
				if wanted {
					p.Params.Set(tcp.ECN, 1)
				}
			})
			for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
				c, s := r.pair(t, address)
				exchange(t, c, s, 5000)
				is := ofConn(s)
				got := tcpInfo(t, c).Options&agreed != 0
				closeAll(t, c, s)
				sample := r.find(t, "server", is)
				if got != wanted || sample.Has(tcp.FlagECN) != wanted {
					t.Errorf("tcp_ecn %s, ecn %v: negotiated %v, sample says %v", sysctl, wanted, got, sample.Has(tcp.FlagECN))
				}
				if wanted && !sample.Has(tcp.FlagECNSeen) {
					t.Error("no packet with ECT arrived")
				}
			}
		}
	}
	// An answer of 0 must mean neither 1 nor a request to disable ECN.
	r.policy(t, set(tcp.ECN, 0))
	c, s := r.pair(t, "127.0.0.1:0")
	is := ofConn(s)
	closeAll(t, c, s)
	if sample := r.find(t, "server", is); sample.Has(tcp.FlagECN) {
		t.Error("ecn: false asks for ECN")
	}
}

func median[T ~int64](v []T) T {
	for i := range v {
		for j := i; j > 0 && v[j] < v[j-1]; j-- {
			v[j], v[j-1] = v[j-1], v[j]
		}
	}
	return v[len(v)/2]
}

// TestRootAnswersOfOthersStay: tcpilot does not change the answer of a program of a
// cgroup further down; that program runs first.
func TestRootAnswersOfOthersStay(t *testing.T) {
	r := newRig(t)
	near, far := testenv.Veth(t, r.ns, testenv.NetNS(t))
	_ = near
	policy := func(p *path.Policy) {
		p.Params.Set(tcp.InitRwnd, 40)
		p.Params.Set(tcp.ECN, 1)
	}
	window := func() int {
		l := listen(t, far.NS, netip.AddrPortFrom(far.V4, 0).String(), nil)
		c := dial(t, r.ns, l.Addr().String(), nil)
		s := accept(t, l)
		defer closeAll(t, c, s, l)
		return int(tcpInfo(t, c).Rcv_ssthresh)
	}
	r.policy(t, policy)
	ours := window()
	child := r.cg.Child(t)
	answer(t, child.Path, map[int32]int32{unix.BPF_SOCK_OPS_RWND_INIT: 20})
	before, err := r.Counters()
	must(t, err)
	var theirs int
	child.Do(t, func() { theirs = window() })
	after, err := r.Counters()
	must(t, err)
	t.Logf("first window %d bytes, %d if a program below answers 20 segments and tcpilot would answer 40", ours, theirs)
	if ours < 40*1400 || ours > 40*1460 || theirs < 20*1400 || theirs > 20*1460 {
		t.Errorf("first window of %d bytes, %d with another's answer; want 40 and 20 segments", ours, theirs)
	}
	if after.Replies == before.Replies {
		t.Error("no answer to a request that the other program does not answer")
	}
}

// answer attaches a program that answers some request ops, and returns -1 (no answer) for
// all others.
func answer(t *testing.T, cgroup string, replies map[int32]int32) {
	t.Helper()
	const ctxOp, ctxReply = 0, 4 // struct bpf_sock_ops
	insns := asm.Instructions{asm.LoadMem(asm.R2, asm.R1, ctxOp, asm.Word), asm.Mov.Imm(asm.R3, -1)}
	for op, reply := range replies {
		next := fmt.Sprintf("not-%d", op)
		insns = append(insns, asm.JNE.Imm(asm.R2, op, next), asm.Mov.Imm(asm.R3, reply), asm.Mov.Reg(asm.R2, asm.R2).WithSymbol(next))
	}
	insns = append(insns, asm.StoreMem(asm.R1, ctxReply, asm.R3, asm.Word), asm.Mov.Imm(asm.R0, 1), asm.Return())
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SockOps, Instructions: insns, License: "GPL"})
	must(t, err)
	t.Cleanup(func() { must(t, prog.Close()) })
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachCGroupSockOps, Program: prog})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
}
