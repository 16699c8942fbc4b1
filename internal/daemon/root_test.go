package daemon

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/datapath"
	"github.com/tcpilot/tcpilot/internal/kernelcc"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

var ctx = context.Background()

func TestRootRunAndStop(t *testing.T) {
	p := newPlace(t)
	d := p.start(t)
	s := d.status(t)
	if s.PID != os.Getpid() || s.Cgroup != p.cgroup.Path || s.Adopted || s.Config != p.config || s.ConfigError != "" || s.Learner != "thompson" {
		t.Errorf("status %+v", s)
	}
	if !hasFeature(s, "sock_ops") || !hasFeature(s, "destroy_sock") {
		t.Errorf("features %+v", s.Features)
	}
	exchange(t, 20)
	d.awaitSamples(t, 40) // both ends
	s = d.status(t)
	var connections uint64
	for _, c := range s.Counters.Connections {
		if c.Rule == "all" {
			connections = c.Outgoing + c.Incoming
		}
	}
	if connections != 40 {
		t.Errorf("%d connections of rule all, want 40: %+v", connections, s.Counters.Connections)
	}
	if s.Counters.Samples.Lost() != 0 || s.Totals.Unattributed != 0 {
		t.Errorf("samples %+v, unattributed %d", s.Counters.Samples, s.Totals.Unattributed)
	}
	d.awaitPath(t, "127.0.0.0/24", 20) // at least: the first that is scored makes the path
	d.stop(t)
	p.nothing(t)
	exchange(t, 1) // connections still work

	// What was learned is there again.
	d = p.start(t)
	d.awaitPath(t, "127.0.0.0/24", 20)
}

func TestRootExplain(t *testing.T) {
	p := newPlace(t)
	p.rules(t, `rules:
  - {name: left, match: {remote: [192.0.2.0/24]}, leave: true}
  - {name: fixed, match: {remote: [198.51.100.0/24]}, set: {init_cwnd: 30}}
  - {name: quick, match: {remote: [203.0.113.0/25]}, learn: {objective: latency}}
  - {name: all, match: {remote: [127.0.0.0/8]}, learn: {}}`)
	d := p.start(t)
	exchange(t, 10)
	d.awaitSamples(t, 20)
	quick, err := d.Explain(ctx, api.ExplainRequest{Remote: netip.MustParseAddr("203.0.113.1")})
	if err != nil || len(quick.Fields) != 6 || !quick.Fields[0].Applied || quick.Fields[0].Reason != "objective" || quick.Fields[0].Value != 64<<10 || !strings.Contains(quick.Fields[0].Why, "latency") {
		t.Fatalf("of an objective: %+v, %v", quick.Fields, err)
	}
	for _, f := range quick.Fields[1:] { // those that a rule adapts by default
		if f.Applied || !f.Kernel || f.Why != "no connection has shown a round-trip time of the path yet" {
			t.Errorf("of a path of which nothing is known: %+v", f)
		}
	}
	for addr, want := range map[string][2]string{
		"192.0.2.1":     {"left", "left-alone"},
		"198.51.100.1":  {"fixed", "rule"},
		"203.0.113.129": {"", "no-rule"},
	} {
		e, err := d.Explain(ctx, api.ExplainRequest{Remote: netip.MustParseAddr(addr)})
		if err != nil || e.Rule != want[0] || e.Reason != want[1] {
			t.Errorf("%s: rule %q, reason %q, error %v; want %q", addr, e.Rule, e.Reason, err, want)
		}
	}
	e, err := d.Explain(ctx, api.ExplainRequest{Remote: netip.MustParseAddr("127.0.0.1"), Cgroup: p.cgroup.Path})
	if err != nil || e.Rule != "all" || len(e.Arms) == 0 || e.Entry == nil || e.Entry.Expired {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestRootReload(t *testing.T) {
	p := newPlace(t)
	d := p.start(t)
	exchange(t, 5)
	d.awaitSamples(t, 10)

	p.rules(t, "rules: [{name: all, lern: {}}]")
	if _, err := d.Reload(ctx); err == nil || !strings.Contains(err.Error(), "lern") {
		t.Errorf("a bad file was loaded: %v", err)
	}
	if s := d.status(t); !strings.Contains(s.ConfigError, "lern") {
		t.Errorf("status does not show the mistake: %q", s.ConfigError)
	}
	before := d.exchangeUntilScored(t, "127.0.0.0/24") // the old rules are still in force
	d.awaitSamples(t, 20)

	p.rules(t, "rules: [{name: fixed, match: {remote_port: [9]}, set: {nodelay: true}}, {name: all, learn: {hold_out: 5%}}]\nlog: {level: debug}")
	res, err := d.Reload(ctx)
	if err != nil || strings.Join(res.Added, " ") != "fixed" || strings.Join(res.Changed, " ") != "all" || len(res.Removed) != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	if len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "log") {
		t.Errorf("warnings %q", res.Warnings)
	}
	s := d.status(t)
	if s.ConfigError != "" {
		t.Errorf("mistake still shown: %s", s.ConfigError)
	}
	d.awaitPath(t, "127.0.0.0/24", before) // a reload keeps beliefs
	exchange(t, 5)
	d.awaitSamples(t, 30)
	if n := d.status(t).Totals.Unattributed; n != 0 {
		t.Errorf("%d samples unattributed", n)
	}
}

// A FIFO in place of a file that the daemon should read is refused, and the daemon
// continues and ends as usual.
func TestRootFIFO(t *testing.T) {
	p := newPlace(t)
	d := p.start(t)
	fifo := p.path("fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := d.Load(short, api.LoadRequest{File: fifo, Cgroup: p.cgroup.Path}); err == nil || !strings.Contains(err.Error(), "is a FIFO") {
		t.Errorf("load: %v", err)
	}
	if _, err := d.LoadControl(short, api.LoadControlRequest{Name: usersName, File: fifo}); err == nil || !strings.Contains(err.Error(), "is a FIFO") {
		t.Errorf("cc load: %v", err)
	}
	if err := os.Rename(fifo, p.config); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Reload(short); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("reload: %v", err)
	}
	if err := os.Remove(p.config); err != nil {
		t.Fatal(err)
	}
	p.rules(t, "rules: []")
	exchange(t, 1) // the lease is renewed
	d.stop(t)
	p.nothing(t)
}

func TestRootDetachThroughTheAPI(t *testing.T) {
	p := newPlace(t)
	d := p.start(t, func(o *Options) { o.KeepAttached = true })
	if err := d.Detach(ctx); err != nil {
		t.Fatal(err)
	}
	if err := d.wait(t); err != nil {
		t.Error(err)
	}
	p.nothing(t)
}

func TestRootKeepAttachedIsAdopted(t *testing.T) {
	p := newPlace(t)
	text, _ := os.ReadFile(p.config)
	if err := os.WriteFile(p.config, []byte(strings.Replace(string(text), "lease: 2s", "lease: 20s", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	keep := func(o *Options) { o.KeepAttached = true }
	d := p.start(t, keep)
	exchange(t, 5)
	d.awaitSamples(t, 10)
	client, server := pair(t) // lives through the restart
	d.stop(t)
	if n := len(datapath.OtherSockops(p.cgroup.Path, nil)); n != 1 {
		t.Fatalf("%d programs attached after a stop that keeps them", n)
	}
	exchange(t, 1) // while nobody reads: within the lease
	d = p.start(t, keep)
	if s := d.status(t); !s.Adopted {
		t.Errorf("not adopted: %+v", s)
	}
	if n := len(datapath.OtherSockops(p.cgroup.Path, nil)); n != 1 {
		t.Errorf("%d programs attached after the adoption", n)
	}
	transfer(t, client, server)
	client.Close()
	server.Close()
	exchange(t, 5)
	await(t, "the connections of both lives", func() bool {
		total := d.status(t).Totals
		return total.Samples["close"] >= 14 && total.Unattributed == 4 // both ends of two older ones
	})
	if err := d.Detach(ctx); err != nil {
		t.Fatal(err)
	}
	_ = d.wait(t)
	p.nothing(t)
}

// A start that fails undoes its changes, and leaves what it found.
func TestRootFailedStart(t *testing.T) {
	p := newPlace(t)
	blocked := p.path("run", "tcpilot.sock")
	if err := os.MkdirAll(filepath.Dir(blocked), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := Run(ctx, Options{Config: p.config, KeepAttached: true})
	if err == nil || !strings.Contains(err.Error(), "tcpilot.sock") {
		t.Errorf("error %v", err)
	}
	if err := os.Remove(blocked); err != nil {
		t.Error(err)
	}
	if err := os.Remove(p.path("run")); err != nil { // fails if anything is left in it
		t.Error(err)
	}
	p.nothing(t)

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	d := p.start(t, func(o *Options) { o.KeepAttached = true })
	d.stop(t)
	text, _ := os.ReadFile(p.config)
	busy := strings.Replace(string(text), `listen: ""`, "listen: "+taken.Addr().String(), 1)
	if err := os.WriteFile(p.config, []byte(busy), 0o644); err != nil {
		t.Fatal(err)
	}
	err = Run(ctx, Options{Config: p.config, KeepAttached: true})
	if err == nil || !strings.Contains(err.Error(), "metrics") {
		t.Errorf("error %v", err)
	}
	if n := len(datapath.OtherSockops(p.cgroup.Path, nil)); n != 1 {
		t.Errorf("%d programs: want those of the earlier daemon", n)
	}
	undone, err := Detach(p.config)
	if err != nil || len(undone) != 2 {
		t.Errorf("undone %q, %v", undone, err)
	}
	p.nothing(t)
	if undone, err := Detach(p.config); err != nil || len(undone) != 0 {
		t.Errorf("a second time: %q, %v", undone, err)
	}
}

func TestRootCancelledStart(t *testing.T) {
	p := newPlace(t)
	for _, after := range []time.Duration{0, 20 * time.Millisecond, 80 * time.Millisecond} {
		c, cancel := context.WithTimeout(ctx, after)
		if err := Run(c, Options{Config: p.config}); err != nil {
			t.Errorf("cancelled after %v: %v", after, err)
		}
		cancel()
		p.nothing(t)
	}
}

func TestRootSecondDaemonIsRefused(t *testing.T) {
	p := newPlace(t)
	d := p.start(t)
	err := Run(ctx, Options{Config: p.config})
	if err == nil || !strings.Contains(err.Error(), "another tcpilot runs") || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("error %v, want one with this process", err)
	}
	if _, err := Detach(p.config); err == nil {
		t.Error("detached under a running daemon")
	}
	exchange(t, 1)
	d.awaitSamples(t, 2)
}

// Two daemons that share only the BPF file system: the second reports which process uses
// the pins, and changes none of them, not even to detach.
func TestRootPinsHaveOneDaemon(t *testing.T) {
	p := newPlace(t)
	shared := p.path("shared")
	if err := os.Mkdir(shared, 0o755); err != nil {
		t.Fatal(err)
	}
	testenv.MountBPFFS(t, shared)
	p.bpffs = shared
	p.rules(t, "rules: [{name: all, learn: {hold_out: 0%}}]")
	d := p.spawn(t, nil)
	exchange(t, 2)

	q := &place{dir: p.path("second"), bpffs: shared, cgroup: testenv.Cgroup(t), config: p.path("second.yaml")}
	q.rules(t, "rules: [{name: other, learn: {hold_out: 0%}}]")
	before := p.pins(t)
	err := Run(ctx, Options{Config: q.config})
	if err == nil || !strings.Contains(err.Error(), "another tcpilot uses the pins") ||
		!strings.Contains(err.Error(), "process "+strconv.Itoa(d.cmd.Process.Pid)) {
		t.Errorf("error %v, want one with process %d", err, d.cmd.Process.Pid)
	}
	if _, err := Detach(q.config); err == nil || !strings.Contains(err.Error(), "another tcpilot uses the pins") {
		t.Errorf("detach: %v", err)
	}
	if _, err := DetachPods(q.config); err == nil || !strings.Contains(err.Error(), "another tcpilot uses the pins") {
		t.Errorf("detach pods: %v", err)
	}
	if after := p.pins(t); !slices.Equal(before, after) {
		t.Errorf("pins were %v, are %v", before, after)
	}
	await(t, "the first daemon's samples", func() bool {
		exchange(t, 1)
		s, err := d.Status(ctx)
		return err == nil && s.Totals.Samples["close"] > 2
	})
	d.kill() // the kernel releases the lock
	if undone, err := Detach(q.config); err != nil || len(undone) != 1 {
		t.Errorf("after a kill: undone %q, %v", undone, err)
	}
	e := q.start(t)
	if e.status(t).Adopted {
		t.Error("adopted what was detached")
	}
	e.stop(t)
	if left := p.pins(t); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestRootCorruptBeliefsAreMovedAside(t *testing.T) {
	p := newPlace(t)
	if err := os.MkdirAll(p.path("state"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.path("state", "beliefs.db"), []byte("this is no database"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := p.start(t)
	if !strings.Contains(d.log.String(), "starting without") {
		t.Errorf("log does not say so:\n%s", d.log)
	}
	if files, _ := filepath.Glob(p.path("state", "beliefs.db.corrupt-*")); len(files) != 1 {
		t.Errorf("moved aside: %v", files)
	}
}

// A directory with the name of tcpilot's pins on another file system is not removed.
func TestRootDetachKeepsFilesElsewhere(t *testing.T) {
	p := newPlace(t)
	mine := p.path("tcpilot", "precious") // bpffs is p.dir, which is no BPF file system
	if err := os.MkdirAll(mine, 0o755); err != nil {
		t.Fatal(err)
	}
	if undone, err := Detach(p.config); err != nil || len(undone) != 0 {
		t.Errorf("%q, %v", undone, err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Error(err)
	}
}

// After a kill the leases expire, and the next process can undo or adopt what is left.
func TestRootKilled(t *testing.T) {
	p := newPlace(t)
	d := p.spawn(t, nil)
	exchange(t, 2)
	d.kill()
	if n := len(datapath.OtherSockops(p.cgroup.Path, nil)); n != 1 {
		t.Errorf("%d programs after a kill", n)
	}
	e := p.start(t)
	if s := e.status(t); !s.Adopted {
		t.Error("the next start does not adopt")
	}
	e.stop(t)
	p.nothing(t)

	d = p.spawn(t, nil)
	d.kill()
	if list := conflicts(p.cgroup.Path, nil); len(list) == 0 || list[0].Kind != "leftover" || !strings.HasSuffix(list[0].What, " on "+p.cgroup.Path) {
		t.Errorf("conflicts after a kill: %+v", list)
	}
	undone, err := Detach(p.config)
	if err != nil || len(undone) != 4 { // pins, mount, two sockets
		t.Errorf("undone %q, %v", undone, err)
	}
	p.nothing(t)
}

func TestRootSignals(t *testing.T) {
	p := newPlace(t)
	d := p.spawn(t, nil)
	p.rules(t, "interval: 9s\nrules: [{name: other, learn: {}}]")
	if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	await(t, "the reload", func() bool {
		l, err := d.Rules(ctx)
		return err == nil && len(l.Rules) == 1 && l.Rules[0].Name == "other"
	})
	await(t, "the warning of the interval", func() bool {
		return strings.Contains(d.log.String(), `warning="interval changed: restart tcpilot for it to take effect"`)
	})
	if s, err := d.Status(ctx); err != nil || !slices.Equal(s.NeedRestart, []string{"interval"}) {
		t.Errorf("status: %q need a restart, %v", s.NeedRestart, err)
	}
	// The built-in rule for the traffic of metrics is for the port in force: here there is none until the restart.
	text, err := os.ReadFile(p.config)
	must(t, err)
	with := strings.NewReplacer(`listen: ""`, `listen: "127.0.0.1:9999"`, "builtin_rules: false", "builtin_rules: true").Replace(string(text))
	must(t, os.WriteFile(p.config, []byte(with), 0o644))
	for _, added := range [][]string{{"loopback"}, nil} {
		if r, err := d.Reload(ctx); err != nil || !slices.Equal(r.Added, added) || r.Rules != 2 || len(r.Removed)+len(r.Changed) != 0 {
			t.Errorf("reload: %+v, %v", r, err)
		}
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await(t, "the end", func() bool { _, err := os.Lstat(p.path("run")); return err != nil })
	p.nothing(t)
}

// In a cgroup namespace of its own the daemon reaches only its container, in a PID namespace of its
// own it finds only its container's network namespaces. It reports both.
func TestRootPrivateNamespaces(t *testing.T) {
	p := newPlace(t)
	if s := p.start(t).status(t); len(s.Degraded) != 0 {
		t.Errorf("degraded: %q although a cgroup is configured", s.Degraded)
	}
	q := newPlace(t)
	q.wholeHierarchy = true
	q.rules(t, "rules: [{name: all, learn: {hold_out: 0%}}]")
	mountpoint := q.path("cgroup")
	if err := os.Mkdir(mountpoint, 0o755); err != nil {
		t.Fatal(err)
	}
	d := q.spawn(t, nil, mountCgroupAt+"="+mountpoint)
	s, err := d.Status(ctx)
	if err != nil || s.Cgroup != mountpoint || len(s.Problems) != 2 ||
		!strings.Contains(s.Problems[0], "private cgroup namespace") || !strings.Contains(s.Problems[1], "private PID namespace") {
		t.Errorf("status: cgroup %s, problems %q, %v", s.Cgroup, s.Problems, err)
	}
	doc, err := d.Doctor(ctx)
	if err != nil || !slices.Equal(doc.Problems, s.Problems) {
		t.Errorf("doctor: problems %q, %v", doc.Problems, err)
	}
	if !strings.Contains(d.log.String(), "only a part of the host is tuned") {
		t.Errorf("log:\n%s", d.log)
	}
}

// The administrator's sysctl takes precedence. The test runs in the daemon's own network
// namespace, so that this host's sysctls are not changed.
func TestRootYieldsToTheAdministrator(t *testing.T) {
	p := newPlace(t)
	ns := testenv.NetNS(t)
	testenv.Sysctl(t, ns, "net.ipv4.tcp_congestion_control", "cubic")
	p.rules(t, "rules: [{name: all, set: {cc: bbr}}]")
	d := p.spawn(t, ns)
	started := func() string {
		l := ns.Listen(t, "tcp", "127.0.0.1:0")
		c := ns.Dial(t, "tcp", l.Addr().String())
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		defer c.Close()
		return ccOf(t, c)
	}
	await(t, "bbr", func() bool { return started() == "bbr" })

	testenv.Sysctl(t, ns, "net.ipv4.tcp_notsent_lowat", "65536") // no rule sets it
	testenv.Sysctl(t, ns, "net.ipv4.tcp_congestion_control", "reno")
	await(t, "the yield", func() bool {
		s, err := d.Status(ctx)
		return err == nil && len(s.Yields) == 1 && s.Yields[0].Field == "cc" && s.Yields[0].After == "reno"
	})
	await(t, "the administrator's choice", func() bool { return started() == "reno" })
	e, err := d.Explain(ctx, api.ExplainRequest{Remote: netip.MustParseAddr("127.0.0.1")})
	if err != nil || e.Reason != "yielded-sysctl" || len(e.Arms) != 0 {
		t.Errorf("%+v, %v", e, err)
	}

	p.rules(t, "rules: [{name: all, lern: {}}]")
	if _, err := d.Reload(ctx); err == nil {
		t.Error("a bad file was loaded")
	}
	if s, err := d.Status(ctx); err != nil || len(s.Yields) != 1 {
		t.Errorf("a refused reload ended the yield: %+v, %v", s.Yields, err)
	}
	p.rules(t, "rules: [{name: all, set: {cc: bbr}}]")
	if _, err := d.Reload(ctx); err != nil {
		t.Error(err)
	}
	await(t, "bbr again", func() bool { return started() == "bbr" })
}

// What the owner of a network namespace set there is left alone in that namespace only,
// unless a rule names the namespace.
func TestRootNetNSOwnsItsSettings(t *testing.T) {
	const lowat = 65536
	p := newPlace(t)
	inherited, err := kernelcc.Default()
	if err != nil {
		t.Fatal(err)
	}
	ours := "cubic"
	if inherited == ours {
		ours = "bbr"
	}
	rule := "{name: %s, match: {%s}, set: {cc: " + ours + ", notsent_lowat: 64KiB}}"
	p.rules(t, fmt.Sprintf("rules: ["+rule+"]", "all", ""))
	owned, plain := testenv.NetNS(t), testenv.NetNS(t)
	for _, ns := range []*testenv.NS{owned, plain} {
		ns.Start(t, "sleep", "120") // a namespace that only a descriptor holds is not seen
	}
	testenv.Sysctl(t, owned, "net.ipv4.tcp_congestion_control", "reno")
	testenv.Sysctl(t, owned, "net.ipv4.tcp_notsent_lowat", "131072")
	d := p.spawn(t, nil)
	started := func(ns *testenv.NS) (cc string, lowat int) {
		l := ns.Listen(t, "tcp", "127.0.0.1:0")
		defer l.Close()
		c := ns.Dial(t, "tcp", l.Addr().String())
		defer c.Close()
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = raw.Control(func(fd uintptr) { lowat, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT) })
		if err != nil {
			t.Fatal(err)
		}
		return ccOf(t, c), lowat
	}
	await(t, "the rule in a namespace without own settings", func() bool { cc, n := started(plain); return cc == ours && n == lowat })
	if cc, _ := started(owned); cc != "reno" {
		t.Errorf("the namespace's own default reno became %s", cc)
	}
	await(t, "the field to be left alone", func() bool { _, n := started(owned); return n != lowat })
	if cc, n := started(plain); cc != ours || n != lowat {
		t.Errorf("the other namespace gets %s and %d", cc, n)
	}
	s, err := d.Status(ctx)
	yielded := map[string]map[string]string{} // by namespace, of which others' tests have some
	for _, y := range s.Yields {
		if yielded[y.NetNS] == nil {
			yielded[y.NetNS] = map[string]string{}
		}
		yielded[y.NetNS][y.Field] = y.After
	}
	want, shown := map[string]string{"cc": "reno", "notsent_lowat": "131072"}, 0
	for ns, fields := range yielded {
		if ns != "" && maps.Equal(fields, want) {
			shown++
		}
	}
	if err != nil || shown != 1 {
		t.Errorf("yields %+v, %v; want one namespace with %v", s.Yields, err, want)
	}
	testenv.Sysctl(t, plain, "net.ipv4.tcp_congestion_control", "reno") // while tcpilot runs: seen at once
	if cc, _ := started(plain); cc != "reno" {
		t.Errorf("the namespace's new default reno became %s", cc)
	}
	if _, n := started(plain); n != lowat {
		t.Errorf("the namespace that is known gets %d", n)
	}
	testenv.Sysctl(t, plain, "net.ipv4.tcp_notsent_lowat", "131072") // seen at the next poll
	await(t, "a field of a known namespace to be left alone", func() bool { _, n := started(plain); return n != lowat })
	p.rules(t, fmt.Sprintf("rules: ["+rule+","+rule+"]", "named", "netns: ["+owned.Path()+"]", "all", ""))
	if _, err := d.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	await(t, "the rule that names the namespace", func() bool { cc, n := started(owned); return cc == ours && n == lowat })
	if cc, _ := started(plain); cc != "reno" {
		t.Errorf("after the reload the other namespace's own default became %s", cc)
	}
}

func ccOf(t *testing.T, c net.Conn) string {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var name string
	_ = raw.Control(func(fd uintptr) { name, err = getCC(int(fd)) })
	if err != nil {
		t.Fatal(err)
	}
	return name
}
