package datapath

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/tcpilot/tcpilot/internal/limit"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// TestRootCrashedProcessStops: after kill -9 the programs stop acting when the lease
// expires, and the next process adopts them.
func TestRootCrashedProcessStops(t *testing.T) {
	r := newRig(t)
	r.policy(t, arms(arm("reno", 1<<16)))
	var c, cs net.Conn
	r.inLease(t, 500*time.Millisecond, func() {
		r.crash(t)
		c, cs = r.pair(t, "127.0.0.1:0")
	}, func() { r.open(t) })
	if ccOf(t, c) != "reno" {
		t.Error("the attachment did not outlive its process")
	}
	d, _ := r.pair(t, "127.0.0.1:0")
	if ccOf(t, d) != "cubic" {
		t.Error("the lease has expired, and connections are still changed")
	}
	r.open(t)
	if !r.Adopted() || r.AttachedAt().IsZero() {
		t.Error("not adopted")
	}
	e, es := r.pair(t, "127.0.0.1:0")
	if ccOf(t, e) != "reno" {
		t.Error("rules or policies were lost")
	}
	for _, pair := range [][2]net.Conn{{c, cs}, {e, es}} { // began under either process
		is := ofConn(pair[0])
		closeAll(t, pair[0], pair[1]) // with one end open the other may stay in FIN_WAIT2
		if s := r.find(t, "client", is); s.Class != 1 || s.Arm.String() != "reno" {
			t.Errorf("%+v", s)
		}
	}
}

// inLease runs something within a lease, and returns when the lease has expired. If the
// machine was too slow, it calls back and tries a lease of twice the length.
func (r *rig) inLease(t testing.TB, lease time.Duration, do, back func()) {
	t.Helper()
	for ; ; lease *= 2 {
		begun := time.Now()
		must(t, r.SetLease(lease))
		do()
		if time.Since(begun) < lease || lease > 10*time.Second {
			time.Sleep(lease + 20*time.Millisecond)
			return
		}
		back()
	}
}

// TestRootReplacementHasNoGap replaces the process repeatedly under load: every
// connection is seen, set and reported once.
func TestRootReplacementHasNoGap(t *testing.T) {
	r := newRig(t)
	id := r.policy(t, arms(arm("reno", 1<<16)))
	l := listen(t, r.ns, "127.0.0.1:0", nil)
	var stop atomic.Bool
	done := make(chan int)
	go func() {
		n := 0
		defer func() { done <- n }()
		for ; !stop.Load(); n++ {
			time.Sleep(time.Millisecond) // the ring must hold the samples of the time without a reader
			c, err := dialErr(t, r.ns, "", l.Addr().String(), nil)
			if err != nil {
				t.Error(err)
				return
			}
			s, err := l.Accept()
			if err == nil {
				_ = s.Close()
			}
			_ = c.Close()
		}
	}()
	for range 6 {
		time.Sleep(20 * time.Millisecond)
		r.crash(t)
		time.Sleep(5 * time.Millisecond)
		r.open(t)
	}
	stop.Store(true)
	n := <-done
	all := r.countShown(t, 2*n, func(*tcp.Sample) bool { return true })
	time.Sleep(30 * time.Millisecond)
	all = r.count(t, len(all), func(*tcp.Sample) bool { return true })
	seen := map[uint64]int{}
	for i := range all {
		s := &all[i]
		seen[s.Cookie]++
		if s.PolicyID != id || s.CC.String() != "reno" || s.Class != 1 || s.Kind != tcp.KindClose {
			t.Errorf("%+v", s)
		}
	}
	if len(all) > 2*n || len(seen) != len(all) {
		t.Errorf("%d samples of %d sockets, want %d", len(all), len(seen), 2*n)
	}
	t.Logf("%d connections during 6 replacements", n)
}

// objects lists ids of all programs, maps and links of a datapath.
func (r *rig) objects(t testing.TB) (gone func() error) {
	t.Helper()
	type object struct {
		what string
		open func() (interface{ Close() error }, error)
	}
	var all []object
	for _, p := range append(r.objs.hooks(), r.objs.TcpilotSpare, r.live.prog) {
		info, err := p.Info()
		must(t, err)
		id, _ := info.ID()
		all = append(all, object{"program " + info.Name, func() (interface{ Close() error }, error) { return ebpf.NewProgramFromID(id) }})
		maps, _ := info.MapIDs()
		for _, m := range maps {
			all = append(all, object{fmt.Sprint("map ", m, " of ", info.Name), func() (interface{ Close() error }, error) { return ebpf.NewMapFromID(m) }})
		}
	}
	for _, l := range []link.Link{r.sockops, r.report, r.reset, r.errors, r.spare, r.live.iter} {
		info, err := l.Info()
		must(t, err)
		all = append(all, object{"link", func() (interface{ Close() error }, error) { return link.NewFromID(info.ID) }})
	}
	if len(all) < 25 {
		t.Errorf("only %d objects", len(all))
	}
	return func() error {
		var errs []error
		for _, o := range all {
			if c, err := o.open(); err == nil {
				_ = c.Close()
				errs = append(errs, fmt.Errorf("%s is still there", o.what))
			} else if !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	}
}

func eventually(t testing.TB, f func() error) {
	t.Helper()
	var err error
	for range 250 {
		runtime.GC() // variables are mapped until then; the end of a process unmaps them too
		if err = f(); err == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error(err)
}

func TestRootDetachLeavesNothing(t *testing.T) {
	r := newRig(t)
	r.needLive(t)
	r.policy(t, arms(arm("reno", 1<<16)))
	c, _ := r.pair(t, "127.0.0.1:0") // a live connection must not keep anything
	gone := r.objects(t)
	if gone() == nil {
		t.Error("there are no objects before")
	}
	r.stop()
	must(t, r.Detach())
	cgroup, err := os.Open(r.opt.Cgroup)
	must(t, err)
	defer cgroup.Close()
	detached := func() {
		t.Helper()
		if on, err := link.QueryPrograms(link.QueryOptions{Target: int(cgroup.Fd()), Attach: ebpf.AttachCGroupSockOps}); err != nil || len(on.Programs) != 0 {
			t.Errorf("still in force: %+v, %v", on, err)
		}
	}
	detached() // at once
	eventually(t, gone)
	if left, err := os.ReadDir(filepath.Join(r.opt.BPFFS, "tcpilot")); err != nil || len(left) != 0 {
		t.Errorf("pins are left: %v, %v", left, err)
	}
	if ccOf(t, c) != "reno" {
		t.Error("a live connection was changed")
	}
	d, _ := r.pair(t, "127.0.0.1:0")
	if ccOf(t, d) != "cubic" {
		t.Error("connections are still changed")
	}
	must(t, Remove(r.opt.BPFFS)) // nothing there is no error
	r.open(t)

	// Without a process of its own, too.
	gone = r.objects(t)
	r.crash(t)
	if gone() == nil {
		t.Error("a crash removes what is pinned")
	}
	must(t, Remove(r.opt.BPFFS))
	detached()
	eventually(t, gone)
	r.open(t)
}

func TestRootOtherVersionsAreRemoved(t *testing.T) {
	r := newRig(t)
	r.crash(t)
	base := filepath.Join(r.opt.BPFFS, "tcpilot")
	for _, dir := range []string{"v0", "v1", userPins, "cc"} {
		must(t, os.MkdirAll(filepath.Join(base, dir), 0o700))
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	must(t, err)
	must(t, m.Pin(filepath.Join(base, "v0", "slots")))
	must(t, m.Close())
	r.open(t)
	for dir, want := range map[string]bool{"v0": false, "v1": false, userPins: true, "cc": true, pinVersion: true} {
		if exists(filepath.Join(base, dir)) != want {
			t.Errorf("%s is there: %v, want %v", dir, !want, want)
		}
	}
}

func TestRootMapsOfAnotherBuildAreReplaced(t *testing.T) {
	r := newRig(t)
	r.policy(t, arms(arm("reno", 1<<16)))
	before := r.maps.PathPolicies.MaxEntries()
	r.crash(t)
	r.opt.MaxPolicies = 1234
	r.open(t)
	if got := r.maps.PathPolicies.MaxEntries(); got != 1234 || got == before {
		t.Errorf("%d policies fit", got)
	}
	a, b := r.pair(t, "127.0.0.1:0")
	if ccOf(t, a) != "cubic" || ccOf(t, b) != "cubic" {
		t.Error("old policies are in force")
	}
	r.rules(t, compileRules([]rule{{}}, 1))
	id := r.policy(t, arms(arm("reno", 1<<16)))
	c, d := r.pair(t, "127.0.0.1:0")
	is := ofConn(c)
	closeAll(t, a, b, c, d)
	if s := r.find(t, "client", is); s.PolicyID != id || s.CC.String() != "reno" {
		t.Errorf("%+v", s)
	}
}

// If the second program at the end of connections cannot be attached, because somebody has removed the pins, the lease is renewed all
// the same, and what was missed is counted once.
func TestRootLeaseWithoutSpare(t *testing.T) {
	r := newRig(t)
	r.crash(t)
	r.noSpare = true
	r.open(t)
	r.missed = 5
	must(t, os.RemoveAll(r.dir))
	for range 2 {
		must(t, r.SetLease(valid))
	}
	if c, err := r.Counters(); err != nil || c.Missed != 5 {
		t.Errorf("%d ends missed, want 5, %v", c.Missed, err)
	}
}

// TestRootSpareIsTriedAgain: a second program that could not be attached is reported, and tried again after a pause that grows.
func TestRootSpareIsTriedAgain(t *testing.T) {
	r := newRig(t)
	r.crash(t)
	r.noSpare = true
	r.open(t)
	failure := func() error {
		i := slices.IndexFunc(r.Features(), func(f Feature) bool { return f.Name == featureSpare })
		if i < 0 {
			return nil
		}
		return r.Features()[i].Err
	}
	try := func(at time.Time) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.trySpare(at)
	}
	if err := failure(); err != nil {
		t.Errorf("before it is needed: %v", err)
	}
	r.missed = 5
	prog := r.objs.TcpilotSpare
	r.objs.TcpilotSpare = r.objs.TcpilotSockops // of another type
	must(t, r.SetLease(valid))
	if failure() == nil || r.spare != nil {
		t.Fatal("a program of another type is attached")
	}
	for want := sparePause; want < 4*time.Hour; want *= 2 {
		want := min(want, mostSparePause)
		if r.sparePause != want {
			t.Errorf("paused for %s, want %s", r.sparePause, want)
		}
		before := r.spareAt
		if try(before.Add(-1)); r.spareAt != before {
			t.Errorf("tried in the pause of %s", want)
		}
		try(before)
	}
	r.objs.TcpilotSpare = prog
	must(t, r.SetLease(valid))
	if failure() == nil {
		t.Error("attached in the pause")
	}
	try(r.spareAt)
	if err := failure(); err != nil || r.spare == nil || !exists(filepath.Join(r.dir, sparePin)) {
		t.Errorf("not attached after the pause: %v", err)
	}
}

// Running connections whose state is in maps that are replaced get back what they had: the new process would take what
// tcpilot had set for the application's choice.
func TestRootMapsOfAnotherBuildAreReleased(t *testing.T) {
	r := limitRig(t, limit.Limit{Connection: 3e6})
	r.policy(t, clamped(400))
	c, s := r.pair(t, "127.0.0.1:0")
	if got := pacingOf(t, c); got != 3e6 || ssthreshOf(t, c) == infinite {
		t.Fatalf("pacing rate %d, clamp %d", got, ssthreshOf(t, c))
	}
	r.crash(t)
	r.opt.MaxPolicies = 1234
	r.open(t)
	r.ns.Do(t, func() { must(t, r.FollowLimits()) })
	exchange(t, c, s, 1000)
	for _, c := range []net.Conn{c, s} {
		if got := pacingOf(t, c); got != noPacing || ssthreshOf(t, c) != infinite {
			t.Errorf("pacing rate %d, clamp %d; want none", got, ssthreshOf(t, c))
		}
	}
}

// A pinned map whose keys have another size is replaced at the start.
func TestRootMapWithOtherKeysIsReplaced(t *testing.T) {
	r := newRig(t)
	want := r.maps.PeerHosts.KeySize()
	pin := filepath.Join(r.dir, "peer_hosts")
	r.crash(t)
	must(t, os.Remove(pin))
	old, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: want - 8, ValueSize: 16, MaxEntries: 16384})
	must(t, err)
	must(t, old.Pin(pin))
	must(t, old.Close())
	r.open(t)
	now, err := ebpf.LoadPinnedMap(pin, nil)
	must(t, err)
	defer now.Close()
	if now.KeySize() != want {
		t.Errorf("the pinned map has keys of %d bytes, want %d", now.KeySize(), want)
	}
	id := r.policy(t, arms(arm("reno", 1<<16)))
	r.rules(t, compileRules([]rule{{}}, 1))
	c, s := r.pair(t, "127.0.0.1:0")
	is := ofConn(c)
	closeAll(t, c, s)
	if s := r.find(t, "client", is); s.PolicyID != id || s.CC.String() != "reno" {
		t.Errorf("%+v", s)
	}
}

// TestRootFailedOpenLeavesNothing: a failed Open leaves nothing of its own, and removes
// nothing that was there.
func TestRootFailedOpenLeavesNothing(t *testing.T) {
	r := newRig(t)
	for name, cgroup := range map[string]string{"no cgroup": t.TempDir(), "nothing": filepath.Join(t.TempDir(), "x"), "a file": filepath.Join(r.cg.Path, "cgroup.procs")} {
		opt := r.opt
		opt.BPFFS, opt.Cgroup = mountBPFFS(t), cgroup
		if d, err := Open(opt); err == nil {
			t.Errorf("%s: opened", name)
			must(t, d.Detach())
		} else if !strings.Contains(err.Error(), cgroup) {
			t.Errorf("%s: %v", name, err)
		}
		if exists(filepath.Join(opt.BPFFS, "tcpilot", pinVersion)) {
			t.Errorf("%s: pins are left", name)
		}
	}
	r.policy(t, arms(arm("reno", 1<<16)))
	r.crash(t)
	bad := r.opt
	bad.Cgroup = t.TempDir()
	if d, err := Open(bad); err == nil {
		t.Error("opened")
		must(t, d.Close())
	}
	c, _ := r.pair(t, "127.0.0.1:0")
	if ccOf(t, c) != "reno" {
		t.Error("a failed start detached what was attached")
	}
	r.open(t)
}

// TestRootMoveToAnotherCgroup restarts with another cgroup than before.
func TestRootMoveToAnotherCgroup(t *testing.T) {
	r := newRig(t)
	r.policy(t, arms(arm("reno", 1<<16)))
	child := r.cg.Child(t)
	dialIn := func(cg *testenv.CG) (name string) {
		l := listen(t, r.ns, "127.0.0.1:0", nil)
		cg.Do(t, func() { name = ccOf(t, dial(t, r.ns, l.Addr().String(), nil)) })
		return name
	}
	if dialIn(r.cg) != "reno" || dialIn(child) != "reno" {
		t.Error("the cgroup or its child is not handled")
	}
	r.crash(t)
	r.opt.Cgroup = child.Path
	r.open(t)
	if r.Adopted() {
		t.Error("adopted from another cgroup")
	}
	if a, b := dialIn(r.cg), dialIn(child); a != "cubic" || b != "reno" {
		t.Errorf("parent has %s, child %s", a, b)
	}
}

func TestRootFeaturesAndPrograms(t *testing.T) {
	r := newRig(t)
	for _, f := range slices.Concat(r.Features(), TryLoad()) {
		if f.Err != nil {
			t.Errorf("%s: %v", f.Name, f.Err)
		}
	}
	progs, err := r.Programs()
	must(t, err)
	var names []string
	for _, p := range progs {
		names = append(names, p.Name)
	}
	if want := "tcpilot_sockops tcpilot_report tcpilot_reset tcpilot_error tcpilot_undone"; !strings.HasPrefix(strings.Join(names, " "), want) {
		t.Errorf("programs are %q", names)
	}
	ours := r.ProgramIDs()
	if others := OtherSockops(r.cg.Path, ours); len(others) != 0 {
		t.Errorf("others are %v", others)
	}
	others := OtherSockops(r.cg.Path, nil)
	if len(others) != 1 || others[0].ID != ours[0] || others[0].Name != "tcpilot_sockops" || !strings.Contains(others[0].String(), "tcpilot_sockops") {
		t.Errorf("attached are %v, ours are %d", others, ours)
	}
	if OtherSockops("/nonexistent", nil) != nil {
		t.Error("programs of no cgroup")
	}
}

// TestRootVerifierLimits: the programs stay far below the verifier's limit of a million
// instructions.
func TestRootVerifierLimits(t *testing.T) {
	r := newRig(t)
	progs := r.objs.hooks()
	if r.live != nil {
		progs = append(progs, r.live.prog, r.live.objs.TcpilotJoin)
	}
	if r.limits.err == nil {
		progs = append(progs, r.limits.objs.TcpilotLimited, r.limits.objs.TcpilotLimitWalk)
	}
	for _, p := range progs {
		info, err := p.Info()
		must(t, err)
		n, ok := info.VerifiedInstructions()
		t.Logf("%s: the verifier processed %d instructions", info.Name, n)
		if !ok || n == 0 || n > 250_000 {
			t.Errorf("%s: %d instructions", info.Name, n)
		}
	}
}
