package datapath

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// valid is for how long the lease and the policies of a test are valid: longer than a test takes, also
// with emulated processors.
const valid = 10 * time.Minute

// rig is a datapath attached to a cgroup of the test's own, with this process in
// it, a network namespace to make connections in, and a reader of all samples.
type rig struct {
	*Datapath
	opt Options
	cg  *testenv.CG
	ns  *testenv.NS

	noSpare bool
	wait    pauses // of the reader; not as long as the daemon's, because tests wait for samples

	mu      sync.Mutex
	samples []tcp.Sample
	stop    func()
}

func newRig(t testing.TB) *rig {
	t.Helper()
	testenv.Root(t)
	r := &rig{ns: testenv.NetNS(t), wait: pauses{2 * time.Millisecond, 2 * time.Millisecond, 20 * time.Millisecond}}
	testenv.Sysctl(t, r.ns, "net.ipv4.tcp_congestion_control", "cubic")
	// A socket that gets the ACK of its FIN while close still holds it, keeps its state until its peer closes too, or this ends.
	testenv.Sysctl(t, r.ns, "net.ipv4.tcp_fin_timeout", "1")
	r.cg = testenv.Cgroup(t)
	r.opt = Options{Cgroup: r.cg.Path, BPFFS: mountBPFFS(t), Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	r.opt.Release = func() error { r.release(t, nothing); return nil }
	r.open(t)
	t.Cleanup(func() {
		r.stop()
		if err := r.Detach(); err != nil {
			t.Errorf("detach: %v", err)
		}
	})
	r.rules(t, class.Table{Classes: []class.Class{{ID: 1}}})
	return r
}

// open starts a datapath as a daemon does, in the pins of the one before if any.
func (r *rig) open(t testing.TB) {
	t.Helper()
	d, err := Open(r.opt)
	must(t, err)
	r.Datapath = d
	if !r.noSpare { // so that no test fails if the kernel skips programs
		d.mu.Lock()
		err = d.attachSpare()
		d.mu.Unlock()
		must(t, err)
	}
	must(t, d.SetLease(valid))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- d.read(ctx, r.wait, func(s *tcp.Sample) {
			r.mu.Lock()
			r.samples = append(r.samples, *s)
			r.mu.Unlock()
		}, func() {})
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("read samples: %v", err)
		}
	})
}

// crash drops the process's handles, as kill -9 does.
func (r *rig) crash(t testing.TB) {
	t.Helper()
	r.stop()
	must(t, r.Close())
}

func mountBPFFS(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	testenv.MountBPFFS(t, dir)
	return dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) rules(t testing.TB, tab class.Table) {
	t.Helper()
	must(t, tab.Check())
	must(t, r.WriteRules(&tab))
}

var lastPolicy uint32

// policy gives every path of class 1 a policy, and returns its id.
func (r *rig) policy(t testing.TB, change func(*path.Policy)) uint32 {
	t.Helper()
	return r.policyOf(t, path.Root(1, 0), time.Now().Add(valid), change)
}

func (r *rig) policyOf(t testing.TB, k path.Key, expires time.Time, change func(*path.Policy)) uint32 {
	t.Helper()
	lastPolicy++
	e := path.Entry{Key: k, ID: lastPolicy, Expires: expires.UnixNano()}
	if change != nil {
		change(&e.Policy)
	}
	must(t, r.SetSettings(Settings{Fields: 1<<tcp.NumFields - 1}))
	must(t, r.WritePolicies([]path.Entry{e}))
	return e.ID
}

// yields are what the rig's namespace, and another one, may own.
func (r *rig) yields(t testing.TB, fields uint64, cc bool) (own, other Yield) {
	t.Helper()
	cookie := netnsOf(t, r.ns)
	return Yield{NetNS: cookie, Fields: fields, CC: cc}, Yield{NetNS: cookie + 1<<40, Fields: fields, CC: cc}
}

// set is the policy that sets one field.
func set(f tcp.Field, v uint64) func(*path.Policy) {
	return func(p *path.Policy) { p.Params.Set(f, v) }
}

// arms is the policy that chooses between congestion controls.
func arms(a ...path.Arm) func(*path.Policy) {
	return func(p *path.Policy) { p.NumArms = uint8(copy(p.Arms[:], a)) }
}

// followAll is the policy whose connections all have state.
func followAll(of func(*path.Policy)) func(*path.Policy) {
	return func(p *path.Policy) {
		of(p)
		p.FollowAll = true
	}
}

func arm(name string, weight uint32) path.Arm { return path.Arm{CC: cc(name), Weight: weight} }

func cc(name string) tcp.CC {
	c, ok := tcp.ParseCC(name)
	if !ok {
		panic(name)
	}
	return c
}

// find waits for a sample.
func (r *rig) find(t testing.TB, what string, is func(*tcp.Sample) bool) tcp.Sample {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		r.mu.Lock()
		i := slices.IndexFunc(r.samples, func(s tcp.Sample) bool { return is(&s) })
		if i >= 0 {
			defer r.mu.Unlock()
			return r.samples[i]
		}
		all := fmt.Sprintf("%+v", r.samples)
		r.mu.Unlock()
		if time.Now().After(deadline) {
			counters, _ := r.Counters()
			t.Fatalf("no sample of %s; %+v, runs missed %d; there are %.4000s", what, counters, r.missedRuns(), all)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// unshown is how many of n ends of connections a test may miss, because the kernel ran no
// program at them. A softirq may end a connection in the context of any process, and some
// kernels run no tracing programs in the context of some processes (seen on 6.18, with the
// first process of a virtual machine).
func unshown(n int) int { return 1 + n/1000 }

// count waits until n samples satisfy is, and returns all that do.
func (r *rig) count(t testing.TB, n int, is func(*tcp.Sample) bool) []tcp.Sample {
	t.Helper()
	return r.await(t, n, n, is)
}

// countShown is count for ends of which the kernel may not show a few.
func (r *rig) countShown(t testing.TB, n int, is func(*tcp.Sample) bool) []tcp.Sample {
	t.Helper()
	return r.await(t, n, n-unshown(n), is)
}

// caughtUp waits until the reader, which pauses after each batch, has all samples that were sent before the call.
func (r *rig) caughtUp(t testing.TB) {
	t.Helper()
	c, err := r.Counters()
	must(t, err)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		r.mu.Lock()
		n := uint64(len(r.samples))
		r.mu.Unlock()
		if n >= c.Samples {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d samples were read", n, c.Samples)
		}
	}
}

// await waits for n samples; after a time limit, it is content with `least`.
func (r *rig) await(t testing.TB, n, least int, is func(*tcp.Sample) bool) (out []tcp.Sample) {
	t.Helper()
	for try := range 10_000 {
		out = out[:0]
		r.mu.Lock()
		for i := range r.samples {
			if is(&r.samples[i]) {
				out = append(out, r.samples[i])
			}
		}
		r.mu.Unlock()
		if len(out) >= n || try >= 1000 && len(out) >= least {
			return out
		}
		time.Sleep(2 * time.Millisecond)
	}
	counters, _ := r.Counters()
	t.Fatalf("%d of %d samples arrived; %+v, runs missed %d", len(out), n, counters, r.missedRuns())
	return nil
}

// missedRuns is how often the kernel did not run each program at its hook.
func (r *rig) missedRuns() (missed []uint64) {
	for _, p := range r.objs.hooks() {
		if st, err := p.Stats(); err == nil {
			missed = append(missed, st.RecursionMisses)
		}
	}
	return missed
}

// ofConn is the final sample of one socket.
func ofConn(c socket) func(*tcp.Sample) bool {
	cookie := cookieOf(c)
	return func(s *tcp.Sample) bool { return s.Cookie == cookie && s.Kind != tcp.KindInterval }
}

// intervalOf is an interval sample of one socket.
func intervalOf(c socket) func(*tcp.Sample) bool {
	cookie := cookieOf(c)
	return func(s *tcp.Sample) bool { return s.Cookie == cookie && s.Kind == tcp.KindInterval }
}

func cookieOf(c socket) uint64 {
	var cookie uint64
	withFD(c, func(fd int) { cookie, _ = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE) })
	return cookie
}

func withFD(c socket, f func(fd int)) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		panic(err)
	}
	if err := raw.Control(func(fd uintptr) { f(int(fd)) }); err != nil {
		panic(err)
	}
}

func sockopt(t testing.TB, c socket, level, name int) (v int) {
	t.Helper()
	var err error
	withFD(c, func(fd int) { v, err = unix.GetsockoptInt(fd, level, name) })
	if err != nil {
		t.Errorf("getsockopt %d/%d: %v", level, name, err)
	}
	return v
}

func setsockopt(t testing.TB, c socket, level, name, v int) {
	t.Helper()
	var err error
	withFD(c, func(fd int) { err = unix.SetsockoptInt(fd, level, name, v) })
	must(t, err)
}

func setCC(t testing.TB, c socket, name string) {
	t.Helper()
	var err error
	withFD(c, func(fd int) { err = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name) })
	must(t, err)
}

func ccOf(t testing.TB, c socket) string {
	t.Helper()
	var name string
	var err error
	withFD(c, func(fd int) { name, err = unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION) })
	must(t, err)
	return tcpName(name)
}

func tcpName(s string) string {
	var c tcp.CC
	copy(c[:], s)
	return c.String()
}

func tcpInfo(t testing.TB, c socket) *unix.TCPInfo {
	t.Helper()
	var info *unix.TCPInfo
	var err error
	withFD(c, func(fd int) { info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO) })
	must(t, err)
	return info
}

// control is called with a socket before it connects or listens.
type control func(fd int) error

func (f control) raw(_, _ string, c syscall.RawConn) (err error) {
	if f == nil {
		return nil
	}
	if e := c.Control(func(fd uintptr) { err = f(int(fd)) }); e != nil {
		return e
	}
	return err
}

// wantCC is a control function of an application that chooses its congestion control.
func wantCC(name string) control {
	return func(fd int) error {
		return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
	}
}

func listen(t testing.TB, ns *testenv.NS, address string, f control) net.Listener {
	t.Helper()
	var l net.Listener
	ns.Do(t, func() {
		var err error
		lc := net.ListenConfig{Control: f.raw}
		l, err = lc.Listen(t.Context(), "tcp", address)
		must(t, err)
	})
	t.Cleanup(func() { l.Close() })
	return l
}

func dialErr(t testing.TB, ns *testenv.NS, local, address string, f control) (c net.Conn, err error) {
	t.Helper()
	d := net.Dialer{Timeout: 10 * time.Second, Control: f.raw, KeepAlive: -1}
	if local != "" {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.MustParseAddrPort(local))
	}
	ns.Do(t, func() { c, err = d.DialContext(t.Context(), "tcp", address) })
	return c, err
}

func dial(t testing.TB, ns *testenv.NS, address string, f control) net.Conn {
	t.Helper()
	c, err := dialErr(t, ns, "", address, f)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func accept(t testing.TB, l net.Listener) net.Conn {
	t.Helper()
	must(t, l.(*net.TCPListener).SetDeadline(time.Now().Add(10*time.Second)))
	c, err := l.Accept()
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// pair connects to a listener on address; both ends are the rig's.
func (r *rig) pair(t testing.TB, address string) (client, server net.Conn) {
	t.Helper()
	l := listen(t, r.ns, address, nil)
	client = dial(t, r.ns, l.Addr().String(), nil)
	server = accept(t, l)
	must(t, l.Close())
	return client, server
}

func closeAll(t testing.TB, cs ...io.Closer) {
	t.Helper()
	for _, c := range cs {
		must(t, c.Close())
	}
}

// exchange sends n bytes from a to b, and waits until they are there.
func exchange(t testing.TB, a, b net.Conn, n int) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := io.CopyN(io.Discard, b, int64(n))
		done <- err
	}()
	_, err := a.Write(make([]byte, n))
	must(t, err)
	must(t, <-done)
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// socket is a net.Conn, net.Listener or os.File, which are all a syscall.Conn.
type socket interface{ Close() error }

// connOf makes a net.Conn of a connected socket.
func connOf(t testing.TB, fd int) net.Conn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// connectUnspec disconnects a socket (connect to AF_UNSPEC).
func connectUnspec(fd int) unix.Errno {
	var sa unix.RawSockaddr // AF_UNSPEC
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa))
	return errno
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
