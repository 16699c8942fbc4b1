package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/api/apitest"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/engine"
)

var update = flag.Bool("update", false, "write golden and generated files again")

func TestMain(m *testing.M) {
	time.Local = time.UTC // goldens show local times
	os.Exit(m.Run())
}

// result is the output and the exit code of one command.
type result struct {
	code           int
	stdout, stderr string
}

// world is a fake daemon and an environment that talks to it.
type world struct {
	fake   *apitest.Fake
	env    Env
	socket string
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{fake: apitest.New()}
	w.fake.Feed = 4
	w.socket = apitest.Serve(t, w.fake)
	w.env = Env{
		Streams: console.Streams{Stdin: strings.NewReader("")}, Version: "1.2.3", Now: func() time.Time { return apitest.Now }, Client: api.NewClient,
		Run: func(context.Context, RunOptions) error { return nil },
		Check: func(_ context.Context, file string) (Checked, error) {
			return Checked{File: file, Rules: w.fake.Snap.Rules, Warnings: []string{"rule loopback: also left alone by default"}}, nil
		},
		Replay: func(_ context.Context, o ReplayOptions) (*engine.Snapshot, error) {
			for range o.Samples {
			}
			return w.fake.Snap, nil
		},
		Doctor: func(context.Context, RunOptions) (api.Doctor, error) { return apitest.Doctor(), nil },
		Detach: func(_ context.Context, o RunOptions) (Detached, error) {
			if o.Pods {
				return Detached{Undone: []string{"programs at the devices of pods"}}, nil
			}
			return Detached{Undone: []string{"detach program tcpilot_sockops from /sys/fs/cgroup", "remove pins in /sys/fs/bpf/tcpilot/v1"}}, nil
		},
	}
	return w
}

// run runs a command line against the fake daemon.
func (w *world) run(ctx context.Context, args ...string) result {
	var out bytes.Buffer
	code, errs := w.runInto(ctx, &out, append(args, "--socket", w.socket))
	return result{code, out.String(), errs}
}

// runPlain runs a command line that does not name the fake daemon.
func (w *world) runPlain(ctx context.Context, args ...string) result {
	var out bytes.Buffer
	code, errs := w.runInto(ctx, &out, args)
	return result{code, out.String(), errs}
}

// runUntil interrupts the command when something was written n times.
func (w *world) runUntil(ctx context.Context, what string, n int, args ...string) result {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := until{what: what, n: n, end: cancel}
	code, errs := w.runInto(ctx, &out, append(args, "--socket", w.socket))
	return result{code, out.b.String(), errs}
}

func (w *world) runInto(ctx context.Context, out io.Writer, args []string) (code int, stderr string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // a stream that waits for samples that never come
	defer cancel()
	var errs bytes.Buffer
	env := w.env
	env.Stdout, env.Stderr = out, &errs
	code = Main(ctx, env, args)
	return code, errs.String()
}

// until calls end when a text was written n times.
type until struct {
	b    bytes.Buffer
	what string
	n    int
	end  func()
}

func (u *until) Write(p []byte) (int, error) {
	n, err := u.b.Write(p)
	if strings.Count(u.b.String(), u.what) >= u.n {
		u.end()
	}
	return n, err
}

// golden compares the result of a command with testdata/NAME.golden.
func (r result) golden(t *testing.T, name string, hide ...string) {
	t.Helper()
	got := r.stdout
	if r.stderr != "" {
		got += "-- stderr\n" + r.stderr
	}
	if r.code != 0 {
		got += fmt.Sprintf("-- exit %d\n", r.code)
	}
	for _, h := range hide {
		got = strings.ReplaceAll(got, h, "...")
	}
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test ./internal/cli -update if it should)\n got:\n%s\nwant:\n%s", file, got, want)
	}
}

func TestGolden(t *testing.T) {
	w := newWorld(t)
	for name, args := range map[string]string{
		"status":              "status",
		"paths":               "paths",
		"paths-prefix":        "paths 192.0.2.7 --limit 1",
		"paths-wide":          "paths --wide",
		"paths-limit":         "paths --limit 1 --sort recent",
		"paths-none":          "paths --rule nope",
		"connections":         "connections --count 4",
		"explain":             "explain 192.0.2.7:443",
		"paths-network":       "paths --network",
		"explain-incoming":    "explain 2001:db8::7 --incoming --local-port 443",
		"rules":               "rules",
		"doctor":              "doctor",
		"reload":              "reload",
		"detach":              "detach",
		"detach-pods":         "detach --pods",
		"rollout-list":        "rollout list",
		"rollout-set":         "rollout set default 12.5%",
		"rollout-set-rule":    "rollout set nope 10%",
		"rollout-set-share":   "rollout set default 10",
		"rollout-set-half":    "rollout set default",
		"prog-load":           "prog load iw /opt/iw.bpf.o --cgroup /sys/fs/cgroup/web",
		"prog-load-refused":   "prog load iw /etc/passwd --cgroup /sys/fs/cgroup/web",
		"prog-list":           "prog list",
		"prog-show":           "prog show my-iw",
		"prog-show-unknown":   "prog show nope",
		"prog-unload":         "prog unload my-iw",
		"prog-unload-unknown": "prog unload nope",
		"cc-list":             "cc list",
		"cc-show":             "cc show tcpilot_bbr3",
		"cc-show-absent":      "cc show tcpilot_dctcp",
		"cc-show-user":        "cc show mine",
		"cc-show-unknown":     "cc show vegas",
		"cc-load":             "cc load mine /opt/mine.bpf.o --auto",
		"cc-load-ours":        "cc load tcpilot_ledbat",
		"cc-load-unknown":     "cc load nope",
		"cc-unload":           "cc unload tcpilot_bbr3",
		"cc-unload-unknown":   "cc unload nope",
		"version":             "version",
		"check":               "check tcpilot.yaml",
		"usage-command":       "statuss",
		"usage-moved":         "unload my-iw",
		"usage-flag":          "status --jason",
		"usage-args":          "explain",
		"usage-address":       "explain example.com:443",
		"usage-local":         "explain 192.0.2.7 --local here",
		"usage-prefix":        "paths 192.0.2.0/33",
		"usage-sort":          "paths --sort size",
		"usage-limit":         "paths --limit -1",
		"usage-watch-json":    "paths --watch --json",
		"usage-exclusive":     "paths --network --wide",
		"usage-tables":        "replay /nonexistent/x --network --adapted",
		"usage-size":          "connections --min-bytes 64KB",
		"usage-size-large":    "connections --min-bytes 99999999999999999999",
		"usage-number":        "connections --count -1",
		"usage-port":          "explain ::1 --local-port 70000",
		"usage-cookie":        "explain ::1 --netns abc",
		"usage-duration":      "cni gc --older-than 5",
		"usage-negative":      "record /nonexistent/x --duration -5s",
		"usage-completion":    "completion foo",
		"usage-help":          "help nosuch",
		"usage-help-group":    "help cc shw",
		"help-of-arguments":   "help cc load tcpilot_cubic",
		"usage-group":         "cc lst",
		"usage-rollout":       "rollout set backup 0.05%",
		"usage-interval":      "paths --interval 5s",
		"paths-no-rule":       "paths --rule bakcup",
		"usage-watch-hurry":   "paths --watch --interval 1ms",
		"usage-kind":          "connections --kind open",
		"usage-remote":        "connections --remote here",
		"usage-load":          "prog load x x.o",
		"usage-many":          "rules default",
		"replay-missing":      "replay /nonexistent/file",
		"record-no-such-dir":  "record /nonexistent/file",
	} {
		t.Run(name, func(t *testing.T) { w.run(t.Context(), strings.Fields(args)...).golden(t, name) })
	}
}

// The verdict is the first line and, with --check, the exit status.
func TestStatusCheck(t *testing.T) {
	w := newWorld(t)
	const degraded = "degraded: the configuration that was read last is not in force; rto_max is not active\n"
	if r := w.run(t.Context(), "status", "--check"); r.code != console.ExitError || r.stdout != degraded || r.stderr != "" {
		t.Errorf("%+v", r)
	}
	var s api.Status
	if r := w.run(t.Context(), "status", "--check", "--json"); r.code != console.ExitError || json.Unmarshal([]byte(r.stdout), &s) != nil || len(s.Degraded) != 2 || r.stderr != "" {
		t.Errorf("%+v", r)
	}
	w.fake.Problems = []string{"this is a private cgroup namespace"}
	if r := w.run(t.Context(), "status", "--check"); r.code != console.ExitError || !strings.HasPrefix(r.stdout, "degraded: this is a private cgroup namespace; ") {
		t.Errorf("%+v", r)
	}
	w.fake.Problems, w.fake.Healthy = nil, true
	if r := w.run(t.Context(), "status", "--check"); r.code != console.ExitOK || r.stdout != "ok\n" {
		t.Errorf("%+v", r)
	}
	if r := w.run(t.Context(), "status"); r.code != console.ExitOK || !strings.HasPrefix(r.stdout, "ok\n") {
		t.Errorf("%+v", r)
	}
}

func TestVersion(t *testing.T) {
	w := newWorld(t)
	for _, line := range []string{"version", "--version"} {
		if r := w.run(t.Context(), line); r.code != 0 || r.stdout != "tcpilot version 1.2.3\n" {
			t.Errorf("%s: %+v", line, r)
		}
	}
}

// In mode observe, every command that shows decisions says that they are not applied.
func TestObserveIsShown(t *testing.T) {
	w := newWorld(t)
	w.fake.Snap.Mode = engine.ModeObserve
	w.fake.Snap.Rules[1].Rollout = &engine.Rollout{Configured: 0.5, By: engine.ByGuard, Why: "p95 is 1.4 times the default's", Since: apitest.Now.Add(-time.Minute)}
	for _, args := range []string{"status", "paths", "explain 192.0.2.7:443", "rollout list", "reload"} {
		name := "observe-" + strings.Fields(args)[0]
		t.Run(name, func(t *testing.T) {
			r := w.run(t.Context(), strings.Fields(args)...)
			if !strings.Contains(r.stdout, "observe: nothing is set on any connection") {
				t.Error("not reported")
			}
			r.golden(t, name)
		})
	}
}

// With --json a command writes the API's answer unchanged.
func TestJSONIsTheAPIs(t *testing.T) {
	w := newWorld(t)
	c := api.NewClient(w.socket)
	for args, resource := range map[string]api.Resource{
		"status":                               api.ResourceStatus,
		"paths":                                "/v1/paths?limit=20&sort=samples",
		"paths 192.0.2.7 --sort gain":          "/v1/paths?limit=20&prefix=192.0.2.7%2F32&sort=gain",
		"rules":                                api.ResourceRules,
		"doctor":                               api.ResourceDoctor,
		"prog list":                            api.ResourceLoaded,
		"prog show my-iw":                      "/v1/programs/my-iw",
		"cc list":                              api.ResourceControls,
		"cc show tcpilot_bbr3":                 "/v1/cc/tcpilot_bbr3",
		"explain 192.0.2.7:443 --local-port 1": "/v1/explain?local_port=1&remote=192.0.2.7&remote_port=443",
	} {
		t.Run(args, func(t *testing.T) {
			got := w.run(t.Context(), append(strings.Fields(args), "--json")...)
			want, err := c.Get(t.Context(), resource)
			if err != nil {
				t.Fatal(err)
			}
			if got.code != 0 || got.stdout != string(want) || got.stderr != "" {
				t.Errorf("exit %d, stderr %q\n got %s\nwant %s", got.code, got.stderr, got.stdout, want)
			}
			if !json.Valid([]byte(got.stdout)) {
				t.Error("not one JSON document")
			}
		})
	}
}

func TestConnectionsJSON(t *testing.T) {
	w := newWorld(t)
	r := w.run(t.Context(), "connections", "--json", "--count", "1", "--kind", "close", "--remote", "192.0.2.0/24", "--min-bytes", "1000")
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if len(lines) != 1 {
		t.Errorf("%d lines, want 1", len(lines))
	}
	for _, l := range lines {
		var s api.Sample
		if err := json.Unmarshal([]byte(l), &s); err != nil || s.Kind != "close" || s.SRTT != 14100 {
			t.Errorf("line %s: %+v, %v", l, s, err)
		}
	}
}

func TestNotRunning(t *testing.T) {
	w := newWorld(t)
	w.socket = "/nonexistent/tcpilot.sock"
	for _, args := range []string{"status", "paths", "paths --watch", "connections", "explain ::1", "rules", "reload",
		"prog load x x.o --cgroup /", "prog unload x", "prog list", "prog show x", "record -", "cc list", "cc show x", "cc load x y.o", "cc unload x"} {
		r := w.run(t.Context(), strings.Fields(args)...)
		want := "tcpilot: tcpilot is not running (no socket at /nonexistent/tcpilot.sock): start it with 'tcpilot run' as root\n"
		if r.code != console.ExitNotRunning || r.stdout != "" || r.stderr != want {
			t.Errorf("%s: %+v, want exit 3 and %q", args, r, want)
		}
	}
}

// Problems are shown, and set the exit status of doctor.
func TestProblems(t *testing.T) {
	w := newWorld(t)
	if r := w.run(t.Context(), "doctor"); r.code != console.ExitOK {
		t.Errorf("doctor without problems: exit status %d", r.code)
	}
	w.fake.Problems = []string{"the cgroup hierarchy is that of a container"}
	for _, args := range [][]string{{"doctor"}, {"doctor", "--json"}} {
		if r := w.run(t.Context(), args...); r.code != console.ExitError || !strings.Contains(r.stdout, w.fake.Problems[0]) || r.stderr != "" {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if r := w.run(t.Context(), "status"); r.code != console.ExitOK || !strings.Contains(r.stdout, "problem    "+w.fake.Problems[0]) {
		t.Errorf("status: %+v", r)
	}
	w.socket = "/nonexistent/tcpilot.sock"
	w.env.Doctor = func(context.Context, RunOptions) (api.Doctor, error) {
		return api.Doctor{Problems: w.fake.Problems}, nil
	}
	if r := w.run(t.Context(), "doctor"); r.code != console.ExitError || !strings.Contains(r.stdout, w.fake.Problems[0]) {
		t.Errorf("doctor without a daemon: %+v", r)
	}
}

// The daemon of another configuration listens elsewhere: that one is meant, and not the one at the usual socket.
func TestDetachOfAConfiguration(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "c.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("socket: {path: " + w.socket + "}\n")
	var d Detached
	if r := w.runPlain(t.Context(), "detach", "--json", "--config", file); json.Unmarshal([]byte(r.stdout), &d) != nil || !d.Daemon {
		t.Errorf("its daemon runs: %+v", r)
	}
	write("run_dir: /nonexistent\n")
	var asked RunOptions
	w.env.Detach = func(_ context.Context, o RunOptions) (Detached, error) { asked = o; return Detached{}, nil }
	if r := w.runPlain(t.Context(), "detach", "--config", file); r.code != console.ExitOK || asked.Config != file || asked.Socket != "" {
		t.Errorf("it has ended: %+v, asked %+v", r, asked)
	}
}

// Some commands work without a daemon.
func TestWithoutDaemon(t *testing.T) {
	w := newWorld(t)
	w.socket = "/nonexistent/tcpilot.sock"
	w.run(t.Context(), "doctor").golden(t, "doctor-alone")
	w.run(t.Context(), "detach").golden(t, "detach-alone")
	if r := w.run(t.Context(), "detach", "--pods"); r.stdout != "detached what an earlier daemon left behind:\n  programs at the devices of pods\n" {
		t.Errorf("detach --pods: %+v", r)
	}
	var d api.Doctor
	if r := w.run(t.Context(), "doctor", "--json"); json.Unmarshal([]byte(r.stdout), &d) != nil || d.Kernel != "6.18.5" || r.stderr != "" {
		t.Errorf("doctor --json: %+v", r)
	}
	w.env.Detach = func(context.Context, RunOptions) (Detached, error) {
		return Detached{Examined: []string{"/run/tcpilot", "/sys/fs/bpf/tcpilot"}}, nil
	}
	w.run(t.Context(), "detach").golden(t, "detach-nothing")
	broken := fmt.Errorf("create network namespace: %w", fs.ErrPermission)
	w.env.Run = func(context.Context, RunOptions) error { return broken }
	w.env.Hold = func(string) (func() error, error) { return nil, broken }
	w.env.Detach = func(context.Context, RunOptions) (Detached, error) { return Detached{}, broken }
	w.env.Doctor = func(context.Context, RunOptions) (api.Doctor, error) { return api.Doctor{}, broken }
	for cmd, where := range map[string]string{"detach": "(no daemon runs): ", "doctor": "(no daemon runs): ", "run": "tcpilot: ", "cc hold tcpilot_cubic": "tcpilot: "} {
		if r := w.run(t.Context(), strings.Fields(cmd)...); r.code != console.ExitError || !strings.Contains(r.stderr, where+broken.Error()+"\nhint: be root (sudo)") {
			t.Errorf("%s: %+v", cmd, r)
		}
	}
}

func TestDaemonErrorsShowTheHint(t *testing.T) {
	w := newWorld(t)
	w.fake.Err = api.Invalid("/etc/tcpilot/tcpilot.yaml:3:5: unknown key %q", "sett").WithHint("the old rules stay in force")
	w.run(t.Context(), "reload").golden(t, "reload-refused")
	for _, cmd := range []string{"status", "doctor", "connections", "detach", "prog list", "cc list"} {
		if r := w.run(t.Context(), strings.Fields(cmd)...); r.code != console.ExitError || !strings.Contains(r.stderr, "unknown key") || r.stdout != "" {
			t.Errorf("%s: %+v", cmd, r)
		}
	}
}

func TestRunGetsItsFlags(t *testing.T) {
	w := newWorld(t)
	var got RunOptions
	w.env.Run = func(_ context.Context, o RunOptions) error { got = o; return nil }
	r := w.run(t.Context(), "run", "--config", "x.yaml", "--keep-attached")
	if want := (RunOptions{"x.yaml", w.socket, true, false}); r.code != 0 || got != want {
		t.Errorf("%+v with %+v, want %+v", r, got, want)
	}
	w.env.Run = func(context.Context, RunOptions) error { return errors.New("attach program: operation not permitted") }
	if r := w.run(t.Context(), "run"); r.code != console.ExitError || r.stderr != "tcpilot: attach program: operation not permitted\n" {
		t.Errorf("%+v", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w.env.Run = func(ctx context.Context, _ RunOptions) error { cancel(); return fmt.Errorf("stop: %w", ctx.Err()) }
	if r := w.run(ctx, "run"); r.code != console.ExitOK || r.stderr != "" {
		t.Errorf("a signal ends run with %+v, want success", r)
	}
}

func TestCheckWritesEveryError(t *testing.T) {
	w := newWorld(t)
	w.env.Check = func(context.Context, string) (Checked, error) {
		return Checked{}, errors.Join(errors.New("x.yaml:3:5: unknown key \"sett\""), errors.New("x.yaml:9:1: rule \"b\" can never match"))
	}
	w.run(t.Context(), "check", "x.yaml").golden(t, "check-errors")
	w.env.Check = func(context.Context, string) (Checked, error) { return Checked{}, errors.New("x.yaml: no such file") }
	w.run(t.Context(), "check", "x.yaml").golden(t, "check-missing")
}

func TestCheckJSON(t *testing.T) {
	w := newWorld(t)
	var c Checked
	r := w.run(t.Context(), "check", "x.yaml", "--json")
	if err := json.Unmarshal([]byte(r.stdout), &c); err != nil || c.File != "x.yaml" || len(c.Rules) != 3 {
		t.Errorf("%+v, %v", r, err)
	}
}

// A control is held until the command is interrupted, and then released.
func TestHold(t *testing.T) {
	w := newWorld(t)
	held := ""
	w.env.Hold = func(name string) (func() error, error) {
		if name == "nope" {
			return nil, errors.New("tcpilot has none of this name")
		}
		held = name
		return func() error { held = ""; return errors.New("released late") }, nil
	}
	r := w.runUntil(t.Context(), "holding tcpilot_bbr3 until interrupted\n", 1, "cc", "hold", "tcpilot_bbr3")
	if held != "" || r.code != console.ExitError || !strings.Contains(r.stderr, "released late") {
		t.Errorf("held %q, %+v", held, r)
	}
	if r := w.run(t.Context(), "cc", "hold", "nope"); r.code != console.ExitError || r.stdout != "" || !strings.Contains(r.stderr, "none of this name") {
		t.Errorf("%+v", r)
	}
}
