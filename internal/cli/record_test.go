package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/api/apitest"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/record"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestRecordAndReplay(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "samples.tcpi")
	w.run(t.Context(), "record", file, "--count", "4").golden(t, "record", file)

	fi, err := os.Stat(file)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600: addresses are private", fi.Mode(), err)
	}
	var got []tcp.Sample
	var o ReplayOptions
	replay := w.env.Replay
	w.env.Replay = func(_ context.Context, opts ReplayOptions) (*engine.Snapshot, error) {
		o = opts
		for s := range opts.Samples {
			got = append(got, *s)
		}
		return w.fake.Snap, nil
	}
	w.run(t.Context(), "replay", file, "--learner", "epsilon-greedy", "--config", "x.yaml").golden(t, "replay")
	if o.Learner != "epsilon-greedy" || o.Config != "x.yaml" || o.Meta.Kernel != "6.18.5" || len(o.Meta.Rules) != 3 || !o.Meta.Created.Equal(apitest.Now) {
		t.Errorf("options %+v", o)
	}
	for i := range 4 {
		if i >= len(got) || got[i] != apitest.Sample(i) {
			t.Fatalf("replayed %d samples; number %d differs from what was published", len(got), i)
		}
	}
	w.env.Replay = replay
	w.run(t.Context(), "replay", file, "--network").golden(t, "replay-network")
	w.run(t.Context(), "replay", file, "--adapted").golden(t, "replay-adapted-none")
	web := *w.fake.Snap.Paths[0]
	web.Set = []engine.Setting{{Field: "cwnd_clamp", Value: 100, Unit: "packets", Reason: "rule"},
		{Field: "syn_rto", Value: 125, Unit: "ms", Reason: "metrics", Why: "srtt 15ms + 4 x rttvar 900us is 18.6ms"},
		{Field: "max_pacing_rate", Value: 12_500_000, Unit: "B/s", Reason: "metrics", Why: "rate limit 100 Mbit/s"}}
	web.Kernel = []engine.KernelField{{Field: "init_cwnd", Why: "0.35% of the recent packets were lost (a window needs less than 0.2%)"}}
	w.fake.Snap.Paths[0] = &web
	w.run(t.Context(), "replay", file, "--adapted").golden(t, "replay-adapted")
	w.run(t.Context(), "replay", file, "--adapted", "--limit", "1", "--sort", "rtt").golden(t, "replay-adapted-limit")
	if r := w.run(t.Context(), "replay", file, "--adapted", "--network"); r.code == 0 {
		t.Errorf("two tables: %+v", r)
	}

	var snap engine.Snapshot
	if r := w.run(t.Context(), "replay", file, "--json"); json.Unmarshal([]byte(r.stdout), &snap) != nil || len(snap.Paths) != 2 {
		t.Errorf("replay --json: %+v", r)
	}
	w.run(t.Context(), "record", file, "--count", "1").golden(t, "record-exists", file)
	if r := w.run(t.Context(), "record", file, "--count", "1", "--force"); r.code != 0 {
		t.Errorf("--force: %+v", r)
	}
	if fi, err := os.Stat(file); err != nil || fi.Size() > 1000 {
		t.Errorf("--force left %d bytes, %v", fi.Size(), err)
	}
}

func TestReplayDamagedFile(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "samples.tcpi")
	w.run(t.Context(), "record", file, "--count", "4")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, whole[:len(whole)-10], 0o600); err != nil {
		t.Fatal(err)
	}
	w.run(t.Context(), "replay", file).golden(t, "replay-damaged", file)
	if err := os.WriteFile(file, []byte("{\"kind\":\"close\"}\n{\"kind\":\"close\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.run(t.Context(), "replay", file).golden(t, "replay-foreign", file)
	newer := bytes.Clone(whole)
	newer[8] = 9
	w.env.Stdin = bytes.NewReader(newer)
	w.run(t.Context(), "replay", "-").golden(t, "replay-newer")
}

func TestRecordToStdout(t *testing.T) {
	w := newWorld(t)
	r := w.run(t.Context(), "record", "-", "--count", "2")
	rd, err := record.NewReader(strings.NewReader(r.stdout))
	if err != nil {
		t.Fatal(err)
	}
	for range rd.All() {
	}
	if rd.Count() != 2 || rd.Err() != nil {
		t.Errorf("%d samples, %v", rd.Count(), rd.Err())
	}
	w.env.Terminal = true
	if r := w.run(t.Context(), "record", "-", "--count", "2"); r.code != console.ExitUsage || r.stdout != "" {
		t.Errorf("binary went to a terminal: %+v", r)
	}
	r = w.run(t.Context(), "record", "-", "--json", "--count", "2")
	var s api.Sample
	if err := json.Unmarshal([]byte(strings.SplitN(r.stdout, "\n", 2)[0]), &s); err != nil || s.Sample() != apitest.Sample(0) {
		t.Errorf("record --json: %+v, %v", r, err)
	}
}

func TestRecordEndsWithItsDuration(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "samples.tcpi")
	w.env.StderrTerminal = true
	r := w.run(t.Context(), "record", file, "--duration", "2s")
	if r.code != 0 || !strings.Contains(r.stderr, "\r") || !strings.Contains(r.stderr, "4 samples") {
		t.Errorf("%+v, want success and progress", r)
	}
}

func TestConnectionsEndWithCtrlC(t *testing.T) {
	w := newWorld(t)
	r := w.runUntil(t.Context(), "\n", 5, "connections")
	if r.code != 0 || r.stderr != "" || strings.Count(r.stdout, "\n") != 5 {
		t.Errorf("%+v, want a heading and four lines, and success", r)
	}
}

func TestWatchRedraws(t *testing.T) {
	w := newWorld(t)
	w.env.Terminal = true
	const clear = "\x1b[H\x1b[J"
	r := w.runUntil(t.Context(), clear, 2, "paths", "--watch", "--interval", "100ms")
	if r.code != 0 || r.stderr != "" || strings.Count(r.stdout, clear) != 2 || !strings.Contains(r.stdout, "\x1b[1mPREFIX") {
		t.Errorf("%+v, want two screens, and success", r)
	}
}

func TestFullDiskIsAnError(t *testing.T) {
	w := newWorld(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	var errs bytes.Buffer
	env := w.env
	env.Stdout, env.Stderr = full, &errs
	for _, args := range [][]string{{"status"}, {"rules", "--json"}, {"connections"}, {"record", "-"}} {
		errs.Reset()
		if code := Main(t.Context(), env, append(args, "--socket", w.socket)); code != console.ExitError || !strings.Contains(errs.String(), "no space left") {
			t.Errorf("%v: exit %d, %q", args, code, errs.String())
		}
	}
}
