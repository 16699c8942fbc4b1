package daemon

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/datapath"
	"github.com/tcpilot/tcpilot/internal/kernelcc"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// place is the environment of one test's daemons: a cgroup and directories of their own.
type place struct {
	dir string
	// wholeHierarchy leaves the cgroup to the daemon.
	wholeHierarchy bool
	bpffs          string // empty: a private one in the run directory
	cgroup         *testenv.CG
	config         string   // file
	ccs            []string // that the kernel had
}

func newPlace(t *testing.T) *place {
	t.Helper()
	cg := testenv.Cgroup(t)
	dir, err := os.MkdirTemp("", "tcpd") // short: it holds the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	p := &place{dir: dir, cgroup: cg, config: filepath.Join(dir, "c.yaml"), ccs: kernelCCs(t)}
	t.Cleanup(func() {
		if _, err := Detach(p.config); err != nil { // whatever a failed test left
			t.Errorf("detach: %v", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	p.rules(t, "rules: [{name: all, learn: {hold_out: 0%}}]")
	return p
}

func (p *place) path(elem ...string) string {
	return filepath.Join(append([]string{p.dir}, elem...)...)
}

// rules writes the configuration. Without p.bpffs it names a directory that is not a BPF
// file system, so that a private one is mounted in the run directory.
func (p *place) rules(t *testing.T, rules string) {
	t.Helper()
	if !strings.Contains(rules, "pods: {") {
		rules = fmt.Sprintf("pods: {dir: %s}\n", p.path("pods")) + rules
	}
	if !strings.Contains(rules, "congestion_controls:") {
		rules = "congestion_controls: none\n" + rules
	}
	if !strings.Contains(rules, "interval: ") {
		rules = "interval: 0\n" + rules
	}
	text := fmt.Sprintf("cgroup: %q\nbpffs: %s\nrun_dir: %s\nstate_dir: %s\nmetrics: {listen: \"\"}\nbuiltin_rules: false\n"+
		"learning: {lease: 2s, save_interval: 5s, paths: {limit: 256}}\n%s\n",
		p.attachTo(), cmp.Or(p.bpffs, p.dir), p.path("run"), p.path("state"), rules)
	if err := os.WriteFile(p.config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// pins lists what is pinned, with the ids of inodes: a pin that was replaced differs.
func (p *place) pins(t *testing.T) (pins []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(p.bpffs, "tcpilot"), func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		pins = append(pins, fmt.Sprint(path, " ", info.Sys().(*syscall.Stat_t).Ino))
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return pins
}

// attachTo is the configured cgroup.
func (p *place) attachTo() string {
	if p.wholeHierarchy {
		return ""
	}
	return p.cgroup.Path
}

func (p *place) client(t *testing.T) *api.Client {
	c := api.NewClient(p.path("run", "tcpilot.sock"))
	t.Cleanup(c.Close)
	return c
}

// running is a daemon in this process.
type running struct {
	*api.Client
	cancel context.CancelFunc
	done   chan error
	log    *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs a daemon until the test, or stop, ends it.
func (p *place) start(t *testing.T, change ...func(*Options)) *running {
	t.Helper()
	r := &running{Client: p.client(t), done: make(chan error, 1), log: &lockedBuffer{}}
	opt := Options{Config: p.config, Version: "test", Log: slog.New(slog.NewTextHandler(r.log, nil))}
	for _, f := range change {
		f(&opt)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	begun := time.Now()
	go func() { r.done <- Run(ctx, opt) }()
	t.Cleanup(func() { cancel(); r.wait(t) })
	r.await(t, "the API", func() bool {
		select {
		case err := <-r.done:
			r.done <- err
			t.Fatalf("daemon ended: %v\n%s", err, r.log)
		default:
		}
		_, err := r.Status(context.Background())
		return err == nil
	})
	t.Logf("started in %v", time.Since(begun).Round(time.Millisecond))
	return r
}

// wait waits for the end of the daemon.
func (r *running) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(20 * time.Second):
		t.Fatalf("the daemon does not end\n%s", r.log)
		return nil
	}
}

func (r *running) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	if err := r.wait(t); err != nil {
		t.Errorf("daemon: %v", err)
	}
}

func (r *running) await(t *testing.T, what string, f func() bool) {
	t.Helper()
	await(t, what, f)
}

func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for begun := time.Now(); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > time.Minute { // emulated processors are slow
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

func (r *running) status(t *testing.T) api.Status {
	t.Helper()
	s, err := r.Status(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// nothing checks that a daemon left only what it learned.
func (p *place) nothing(t *testing.T) {
	t.Helper()
	if _, err := os.Lstat(p.path("run")); !errors.Is(err, fs.ErrNotExist) {
		entries, _ := os.ReadDir(p.path("run"))
		t.Errorf("the run directory is left with %v", entries)
	}
	if mounts, _ := os.ReadFile("/proc/self/mounts"); bytes.Contains(mounts, []byte(p.dir)) {
		t.Errorf("a mount is left below %s", p.dir)
	}
	// The kernel frees a link some time after its last pin is removed.
	await(t, "the programs to go", func() bool { return len(datapath.OtherSockops(p.cgroup.Path, nil)) == 0 })
	await(t, "the congestion controls to go", func() bool {
		return !slices.ContainsFunc(kernelCCs(t), func(name string) bool {
			return !slices.Contains(p.ccs, name) && (strings.HasPrefix(name, congestion.Prefix) || name == usersName)
		})
	})
}

// usersName is what tests call a user's own congestion control.
const usersName = "daemontest"

func kernelCCs(t *testing.T) []string {
	t.Helper()
	names, err := kernelcc.Available()
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// exchange makes n connections over loopback within the cgroup, one after the other.
func exchange(t *testing.T, n int) {
	t.Helper()
	for range n {
		c, s := pair(t)
		transfer(t, c, s)
		c.Close()
		s.Close()
	}
}

func pair(t *testing.T) (client, server net.Conn) { return pairAt(t, "127.0.0.1") }

// pairAt is pair with both ends at an address of the loopback device.
func pairAt(t *testing.T, addr string) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept()
		accepted <- c
	}()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}}
	if client, err = from.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server = <-accepted; server == nil {
		t.Fatal("not accepted")
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func transfer(t *testing.T, from, to net.Conn) {
	t.Helper()
	const size = 4 << 20 // over 60 packets on loopback: enough to be scored
	go func() { _, _ = from.Write(make([]byte, size)) }()
	if n, err := io.CopyN(io.Discard, to, size); err != nil {
		t.Errorf("%d bytes arrived: %v", n, err)
	}
}

func (r *running) awaitSamples(t *testing.T, n uint64) {
	t.Helper()
	await(t, fmt.Sprintf("%d samples", n), func() bool { return r.status(t).Totals.Samples["close"] >= n })
}

// awaitPath waits until the one path has at least so many samples: what is shown of paths
// may be one second old.
func (r *running) awaitPath(t *testing.T, prefix string, samples uint64) {
	t.Helper()
	await(t, fmt.Sprintf("%d samples of %s", samples, prefix), func() bool { return r.samplesOf(prefix) >= samples })
}

// samplesOf is how many samples the one path has; 0 until one was scored.
func (r *running) samplesOf(prefix string) uint64 {
	l, err := r.Paths(context.Background(), api.PathQuery{})
	if err != nil || l.Total != 1 || l.Paths[0].Prefix != prefix {
		return 0
	}
	return l.Paths[0].Samples
}

// exchangeUntilScored makes connections until one is scored, and returns how many samples
// the path has then. On a busy machine many are limited by the receiver, not the path.
func (r *running) exchangeUntilScored(t *testing.T, prefix string) (samples uint64) {
	t.Helper()
	await(t, "a sample that is scored", func() bool {
		exchange(t, 5)
		samples = r.samplesOf(prefix)
		return samples > 0
	})
	return samples
}

// process is a daemon in a process of its own.
type process struct {
	*api.Client
	cmd   *exec.Cmd
	log   *lockedBuffer
	ended chan struct{}
}

// kill ends the process by SIGKILL.
func (r *process) kill() {
	_ = r.cmd.Process.Kill()
	<-r.ended
}

func (p *place) spawn(t *testing.T, ns *testenv.NS, env ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &process{Client: p.client(t), cmd: exec.Command(exe), log: &lockedBuffer{}, ended: make(chan struct{})}
	if p.wholeHierarchy {
		r.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWCGROUP | syscall.CLONE_NEWPID}
	}
	r.cmd.Env = append(append(os.Environ(), asDaemon+"="+p.config), env...)
	r.cmd.Stderr = r.log
	ns.Do(t, func() {
		if err := r.cmd.Start(); err != nil {
			t.Fatal(err)
		}
	})
	go func() { _ = r.cmd.Wait(); close(r.ended) }()
	t.Cleanup(r.kill)
	await(t, "the daemon's API", func() bool {
		select {
		case <-r.ended:
			t.Fatalf("the daemon ended:\n%s", r.log)
		default:
		}
		_, err := r.Status(context.Background())
		return err == nil
	})
	return r
}

func hasFeature(s api.Status, part string) bool {
	return slices.ContainsFunc(s.Features, func(f api.Feature) bool { return strings.Contains(f.Name, part) && f.Active })
}
