package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"golang.org/x/sys/unix"
)

// settings configure tcpilot for a test; zero values are the defaults of these tests.
type settings struct {
	arms      string // "cubic, bbr, reno" if empty
	objective string // throughput if empty
	rules     string // YAML list instead of the one rule that learns
	holdOut   string // 2% if empty
	lease     string // 2s if empty, the minimum, because tests wait for it
	interval  string // 1s if empty
	keys      string // further keys of the file, as lines
}

// tcpilot is a configured daemon, running or not.
type tcpilot struct {
	w      *world
	bin    string
	dir    string // configuration, state, socket
	config string
	socket string
	cmd    *exec.Cmd
	exited chan error
	log    *syncBuffer
	uids   map[string]string // of pods by name, for cni; others are uid-NAME
}

// newTcpilot configures tcpilot for the world's tuned cgroup, with its own BPF
// file system, state and socket.
func newTcpilot(t testing.TB, w *world, s settings) *tcpilot {
	t.Helper()
	bin, err := build()
	must(t, err)
	dir := t.TempDir()
	p := &tcpilot{w: w, bin: bin, dir: dir, log: &syncBuffer{},
		config: filepath.Join(dir, "tcpilot.yaml"), socket: filepath.Join(dir, "run", "tcpilot.sock")}
	for _, sub := range []string{"run", "state", "bpf"} {
		must(t, os.Mkdir(filepath.Join(dir, sub), 0o755))
	}
	testenv.MountBPFFS(t, filepath.Join(dir, "bpf"))
	p.configure(t, s)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("tcpilot's log:\n%s", p.log)
		}
	})
	return p
}

// startTcpilot configures tcpilot, starts it, and waits until it is ready.
func startTcpilot(t testing.TB, w *world, s settings) *tcpilot {
	t.Helper()
	p := newTcpilot(t, w, s)
	p.start(t)
	return p
}

// configure writes the configuration file.
func (p *tcpilot) configure(t testing.TB, s settings) {
	t.Helper()
	def := func(v *string, d string) {
		if *v == "" {
			*v = d
		}
	}
	def(&s.arms, "cubic, bbr, reno")
	def(&s.objective, "throughput")
	def(&s.holdOut, "2%")
	def(&s.lease, "2s")
	def(&s.interval, "1s")
	def(&s.rules, fmt.Sprintf("  - name: lab\n    match: {remote: [10.77.0.0/16, \"fd77::/16\"]}\n    learn: {arms: [%s], objective: %s}\n",
		s.arms, s.objective))
	text := fmt.Sprintf(`cgroup: %s
bpffs: %s/bpf
run_dir: %s/run
state_dir: %s/state
interval: %s
metrics:
  listen: ""
learning:
  hold_out: %s
  lease: %s
  save_interval: 5s
%srules:
%s`, p.w.cgroup.Path, p.dir, p.dir, p.dir, s.interval, s.holdOut, s.lease, s.keys, s.rules)
	must(t, os.WriteFile(p.config, []byte(text), 0o644))
}

// start starts the daemon and waits until it answers.
func (p *tcpilot) start(t testing.TB, args ...string) {
	t.Helper()
	p.launch(t, args...)
	eventually(t, 15*time.Second, "tcpilot is ready", func() error {
		select {
		case err := <-p.exited:
			p.exited <- err
			t.Fatalf("tcpilot ended: %v", err)
		default:
		}
		_, err := p.run(t, "status", "--json")
		return err
	})
}

// launch starts the daemon in the client's namespace, so that the sysctls that it
// watches are the client's.
func (p *tcpilot) launch(t testing.TB, args ...string) {
	t.Helper()
	p.cmd = exec.Command(p.bin, append([]string{"run", "--config", p.config, "--socket", p.socket}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	must(t, p.w.star.Client.Start(p.cmd))
	p.exited = make(chan error, 1)
	go func(cmd *exec.Cmd, exited chan<- error) { exited <- cmd.Wait() }(p.cmd, p.exited)
}

// stop stops the daemon with SIGTERM and waits for it.
func (p *tcpilot) stop(t testing.TB) {
	t.Helper()
	must(t, p.cmd.Process.Signal(unix.SIGTERM))
	select {
	case err := <-p.exited:
		p.cmd = nil
		if err != nil {
			t.Errorf("tcpilot ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("tcpilot did not end within 10 s of SIGTERM")
	}
}

// kill kills the daemon, if it runs.
func (p *tcpilot) kill() {
	if p.cmd == nil {
		return
	}
	p.cmd.Process.Kill()
	<-p.exited
	p.cmd = nil
}

// run runs a command that queries the daemon.
func (p *tcpilot) run(t testing.TB, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.bin, append(args, "--socket", p.socket)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("tcpilot %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

// ask runs a command with --json and decodes its output.
func ask[T any](t testing.TB, p *tcpilot, args ...string) (v T) {
	t.Helper()
	out, err := p.run(t, append(args, "--json")...)
	must(t, err)
	if err := json.Unmarshal(out, &v); err != nil {
		t.Fatalf("tcpilot %s: %v in %s", strings.Join(args, " "), err, out)
	}
	return v
}

func (p *tcpilot) status(t testing.TB) api.Status { t.Helper(); return ask[api.Status](t, p, "status") }

// path is tcpilot's state of the path with this prefix, or nil.
func (p *tcpilot) path(t testing.TB, prefix string) *engine.PathState {
	t.Helper()
	for _, s := range ask[api.PathList](t, p, "paths").Paths {
		if s.Prefix == prefix {
			return s
		}
	}
	return nil
}

// scored is how many connections of a path were counted for its arms.
func scored(s *engine.PathState) (n uint64) {
	if s == nil {
		return 0
	}
	for _, a := range s.Arms {
		n += a.Count
	}
	return n
}

// eventually waits until f succeeds.
func eventually(t testing.TB, within time.Duration, what string, f func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("within %s: %s: %v", within, what, err)
}

// syncBuffer is a log that may be read while it is written.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
