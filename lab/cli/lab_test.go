package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/lab/experiment"
	"github.com/tcpilot/tcpilot/lab/report"
	"github.com/tcpilot/tcpilot/lab/scenario"
)

// fakeLab makes the world's runs take no time: each subject of each case has five rounds of
// the same goodput.
func fakeLab(w *world) {
	w.env.Run = func(_ context.Context, o experiment.Options, about report.Run) error {
		if err := o.Out.Run(about); err != nil {
			return err
		}
		o.Progress(experiment.Progress{Case: "loss, 5 %", Step: "cubic, round 1 of 5", Done: 0.25, Remains: 90 * time.Second})
		for _, s := range o.Scenarios {
			for _, c := range s.Cases {
				about := report.Case{Scenario: s.Name, Case: c.Name, Title: s.Title, Primary: c.Primary, Metrics: c.Metrics, Baseline: c.Baseline}
				for _, subject := range c.Subjects {
					about.Subjects = append(about.Subjects, report.Subject{Name: subject.Name, Fixed: subject.CC})
				}
				if err := o.Out.Case(about); err != nil {
					return err
				}
				for i := range 5 {
					for k, subject := range c.Subjects {
						err := o.Out.Round(report.Round{Scenario: s.Name, Case: c.Name, Subject: subject.Name, Repeat: i + 1,
							Order:   i*len(c.Subjects) + k,
							Metrics: map[string]float64{c.Primary: 1e8}}, nil)
						if err != nil {
							return err
						}
					}
				}
			}
		}
		return o.Out.End(report.End{Elapsed: time.Minute})
	}
}

func TestReads(t *testing.T) {
	w := newWorld(t)
	if r := w.run(t.Context(), "list"); r.code != console.ExitOK || !strings.Contains(r.stdout, "bufferbloat") || !strings.Contains(r.stdout, "QUICK") {
		t.Errorf("lab list: %+v", r)
	}
	if r := w.run(t.Context(), "show", "loss"); r.code != console.ExitOK || !strings.Contains(r.stdout, "subjects") {
		t.Errorf("lab show: %+v", r)
	}
	source := w.run(t.Context(), "show", "loss", "--source")
	if !strings.HasPrefix(source.stdout, "name: loss\n") {
		t.Errorf("lab show --source: %+v", source)
	}
	mine := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.WriteFile(mine, []byte(strings.Replace(source.stdout, "primary: goodput", "primary: goodputt", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := w.run(t.Context(), "show", mine); r.code != console.ExitError || !strings.Contains(r.stderr, "mine.yaml:") || !strings.Contains(r.stderr, `"goodput"`) {
		t.Errorf("a file with a mistake: %+v", r)
	}
	if r := w.run(t.Context(), "show", filepath.Join(filepath.Dir(mine), "none.yaml"), "--source"); r.code != console.ExitError || !strings.Contains(r.stderr, "no such file") {
		t.Errorf("the source of no file: %+v", r)
	}
	if err := os.WriteFile(mine, []byte("# mine\n"+source.stdout), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := w.run(t.Context(), "show", mine, "--source"); r.code != console.ExitOK || r.stdout != "# mine\n"+source.stdout {
		t.Errorf("the source of a file: %+v", r)
	}
	if r := w.run(t.Context(), "show", "los"); r.code != console.ExitError || !strings.Contains(r.stderr, `did you mean "loss"`) {
		t.Errorf("a name with a mistake: %+v", r)
	}
}

func TestRun(t *testing.T) {
	w := newWorld(t)
	fakeLab(w)
	dir := t.TempDir()
	out, page := filepath.Join(dir, "r.jsonl.gz"), filepath.Join(dir, "r.html")
	r := w.run(t.Context(), "run", "loss", "--out", out, "--html", page, "--case", "5 %")
	if r.code != console.ExitOK || !strings.Contains(r.stdout, "--case '5 %'") || !strings.Contains(r.stdout, "cubic") {
		t.Errorf("lab run: %+v", r)
	}
	if !strings.Contains(r.stderr, "25 % done") {
		t.Errorf("no progress: %q", r.stderr)
	}
	if _, err := os.Stat(page); err != nil {
		t.Error(err)
	}
	if r := w.run(t.Context(), "run", "loss", "--out", out); r.code != console.ExitUsage || !strings.Contains(r.stderr, "exists") {
		t.Errorf("a report is overwritten: %+v", r)
	}
	if r := w.run(t.Context(), "compare", out, out); r.code != console.ExitOK || !strings.Contains(r.stdout, "agree") {
		t.Errorf("lab compare: %+v", r)
	}
	if r := w.run(t.Context(), "report", out, "--markdown"); r.code != console.ExitOK || !strings.Contains(r.stdout, "|---") {
		t.Errorf("lab report --markdown: %+v", r)
	}
	if r := w.run(t.Context(), "report", out, "--html", page); r.code != console.ExitUsage || !strings.Contains(r.stderr, "--force") {
		t.Errorf("a page is overwritten: %+v", r)
	}
	if err := os.WriteFile(page, []byte(strings.Repeat("old", 1e6)), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := w.run(t.Context(), "report", out, "--html", page, "--force"); r.code != console.ExitOK {
		t.Errorf("lab report --html --force: %+v", r)
	}
	if text, err := os.ReadFile(page); err != nil || !strings.HasPrefix(string(text), "<!doctype") || strings.Contains(string(text), "oldold") {
		t.Errorf("the page is %d bytes, %.40q, %v", len(text), text, err)
	}
}

// summaries are the JSON documents of a command.
func summaries(t *testing.T, r result) (all []report.Summary) {
	t.Helper()
	for d := json.NewDecoder(strings.NewReader(r.stdout)); ; {
		var sum report.Summary
		if err := d.Decode(&sum); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%v: %+v", err, r)
		}
		all = append(all, sum)
	}
}

// A summary says what ran, how it ended and what is missing. Several reports have a
// summary each.
func TestSummaries(t *testing.T) {
	w := newWorld(t)
	fakeLab(w)
	dir := t.TempDir()
	whole, cut := filepath.Join(dir, "whole.jsonl"), filepath.Join(dir, "cut.jsonl")
	r := w.run(t.Context(), "run", "loss", "--out", whole, "--json")
	if all := summaries(t, r); len(all) != 1 || all[0].End == nil || all[0].File != "" || len(all[0].Cases) == 0 || !strings.Contains(all[0].Run.Command, "lab run loss") {
		t.Errorf("lab run --json: %+v", r)
	}
	text, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cut, text[:len(text)-20], 0o644); err != nil {
		t.Fatal(err)
	}
	r = w.run(t.Context(), "report", whole, cut, "--json")
	all := summaries(t, r)
	if len(all) != 2 || all[0].File != whole || all[0].End == nil || all[0].Truncated != "" ||
		all[1].File != cut || all[1].End != nil || !strings.Contains(all[1].Truncated, "did not end") {
		t.Errorf("lab report --json: %+v", r)
	}
	r = w.run(t.Context(), "report", whole, cut)
	if first, second := strings.Index(r.stdout, whole), strings.Index(r.stdout, cut); first < 0 || second < first || !strings.Contains(r.stdout[second:], "did not end") {
		t.Errorf("lab report of two: %+v", r)
	}
	if r := w.run(t.Context(), "report", whole, cut, "--markdown"); !strings.Contains(r.stdout, "## `"+cut+"`") {
		t.Errorf("lab report --markdown of two: %+v", r)
	}
}

func TestShowJSON(t *testing.T) {
	w := newWorld(t)
	for _, name := range scenario.Names() {
		r := w.run(t.Context(), "show", name, "--json")
		var doc struct {
			Name  string
			Cases []struct {
				Graph struct {
					Nodes []struct{ Name, Role string }
					Pods  []struct{ Pod, Node string }
				}
				Links    map[string]struct{ Forward map[string]any }
				Traffic  []map[string]any
				Subjects []map[string]any
				Primary  string
			}
		}
		if err := json.Unmarshal([]byte(r.stdout), &doc); err != nil || doc.Name != name || len(doc.Cases) == 0 {
			t.Fatalf("lab show %s --json: %v, %+v", name, err, r)
		}
		for _, c := range doc.Cases {
			if len(c.Graph.Nodes) < 2 || len(c.Links) == 0 && len(c.Graph.Pods) == 0 || len(c.Traffic) == 0 || len(c.Subjects) == 0 || c.Primary == "" {
				t.Errorf("%s: %+v", name, c)
			}
		}
		for _, key := range regexp.MustCompile(`"[a-z_]*[A-Z][A-Za-z0-9]*": `).FindAllString(r.stdout, -1) {
			// What a scenario says to a CNI plugin has the plugin's keys.
			if !slices.Contains([]string{`"isGateway": `, `"egressRate": `, `"egressBurst": `}, key) {
				t.Errorf("%s has a key %s", name, key)
			}
		}
	}
	r := w.run(t.Context(), "show", "delay", "--json")
	if !strings.Contains(r.stdout, `"delay_ns": `) || !strings.Contains(r.stdout, `"repeat": `) {
		t.Errorf("lab show delay --json: %s", r.stdout)
	}
}

func TestSnakeName(t *testing.T) {
	for name, want := range map[string]string{
		"Name": "name", "CC": "cc", "CPUBound": "cpu_bound", "IPv6": "ipv6", "InitCwnd": "init_cwnd", "ToBad": "to_bad", "ECN": "ecn",
	} {
		if have := snakeName(name); have != want {
			t.Errorf("%s is %s, want %s", name, have, want)
		}
	}
}

func TestCompletes(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		line string
		want []string
		not  string
	}{
		{"run --backend", []string{"auto", "netem", "emulator"}, "loss"},
		{"run --kernel", []string{"6.12"}, "loss"},
		{"run coexist --case", []string{"2 beside 2", "4 beside 1"}, "5 %"},
		{"run coexist --subject", []string{"cubic", "bpftune"}, "tcpilot-latency"},
		{"run --subject", []string{"tcpilot-latency", "set-iw32"}, "lossy"},
		{"calibrate --case", []string{"2 beside 2"}, "loss"},
		{"calibrate --backend", []string{"netem"}, "loss"},
	} {
		var out bytes.Buffer
		env := w.env
		env.Stdout, env.Stderr = &out, io.Discard
		Main(t.Context(), env, append([]string{"__complete"}, append(strings.Fields(c.line), "")...))
		lines := strings.Split(out.String(), "\n")
		for _, want := range c.want {
			if !slices.Contains(lines, want) {
				t.Errorf("%s: %q is not offered: %q", c.line, want, lines)
			}
		}
		if slices.Contains(lines, c.not) {
			t.Errorf("%s: %q is offered", c.line, c.not)
		}
	}
}

func TestUsage(t *testing.T) {
	w := newWorld(t)
	fakeLab(w)
	for _, args := range [][]string{
		{"run"}, {"run", "loss", "--all"}, {"run", "loss", "--backend", "magic"}, {"compare", "one"}, {"report"}, {"show"},
		{"run", "loss", "--repeat", "0"}, {"run", "loss", "--repeat", "-2"}, {"run", "loss", "--markdown", "--json"},
		{"report", "x", "--html", "y", "--json"}, {"show", "loss", "--source", "--json"},
	} {
		if r := w.run(t.Context(), args...); r.code != console.ExitUsage || r.stderr == "" {
			t.Errorf("lab %v: %+v", args, r)
		}
	}
}

// Who lacks privileges is told to be root.
func TestBeRoot(t *testing.T) {
	w := newWorld(t)
	fakeLab(w)
	w.env.Tcpilot = func() (string, error) { return "tcpilot", nil }
	w.env.Demo = func(context.Context, string) error { return fmt.Errorf("build demo network: %w", fs.ErrPermission) }
	w.env.Run = func(context.Context, experiment.Options, report.Run) error {
		return fmt.Errorf("build network: %w", fs.ErrPermission)
	}
	for _, args := range [][]string{{"demo"}, {"run", "loss"}} {
		if r := w.run(t.Context(), args...); r.code != console.ExitError || !strings.Contains(r.stderr, "hint: be root (sudo)") {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

// A run that was stopped shows the figures that it has, and fails.
func TestStopped(t *testing.T) {
	w := newWorld(t)
	w.env.Run = func(_ context.Context, o experiment.Options, about report.Run) error {
		return errors.Join(o.Out.Run(about), o.Out.End(report.End{Stopped: "no room"}), errors.New("no room"))
	}
	if r := w.run(t.Context(), "run", "loss"); r.code != console.ExitError || !strings.Contains(r.stdout, "no room") || !strings.Contains(r.stderr, "no room") {
		t.Errorf("stopped: %+v", r)
	}
	w.env.Run = func(context.Context, experiment.Options, report.Run) error { return errors.New("not root") }
	if r := w.run(t.Context(), "run", "loss"); r.code != console.ExitError || r.stdout != "" || !strings.Contains(r.stderr, "not root") {
		t.Errorf("nothing was written: %+v", r)
	}
}

// Under another kernel the same command runs, and its report is copied back.
func TestKernel(t *testing.T) {
	w := newWorld(t)
	fakeLab(w)
	var got VMOptions
	w.env.VM = func(_ context.Context, o VMOptions) error {
		got = o
		if r := w.run(t.Context(), o.Args...); r.code != console.ExitOK {
			return errors.New(r.stderr)
		}
		return nil
	}
	out := filepath.Join(t.TempDir(), "r.jsonl")
	r := w.run(t.Context(), "run", "loss", "--kernel", "6.12", "--quick", "--repeat", "5", "--subject", "bbr", "--out", out)
	if r.code != console.ExitOK || !strings.Contains(r.stdout, "loss") {
		t.Errorf("lab run --kernel: %+v", r)
	}
	for _, want := range []string{"loss", "--emulated", "--quick", "--repeat", "--subject"} {
		if !slices.Contains(got.Args, want) {
			t.Errorf("%q lacks %s", got.Args, want)
		}
	}
	if got.Kernel != "6.12" || got.Limit < time.Minute {
		t.Errorf("%+v", got)
	}
	if back, err := report.Open(out); err != nil || !back.Run.Emulated || !strings.Contains(back.Run.Command, "--kernel 6.12") {
		t.Errorf("the report: %+v, %v", back, err)
	}
}

// In virtual time a scenario has the rates of a real machine, the limit is that of real time,
// and reports say so.
func TestVirtualTime(t *testing.T) {
	w := newWorld(t)
	var o experiment.Options
	fakeLab(w)
	fake := w.env.Run
	w.env.Run = func(ctx context.Context, got experiment.Options, about report.Run) error {
		o = got
		return fake(ctx, got, about)
	}
	vm := underKernel(t, w)
	run := func(args ...string) (link string, limit time.Duration, stdout string) {
		t.Helper()
		r := w.run(t.Context(), append([]string{"run", "loss", "--case", "5 %"}, args...)...)
		if r.code != console.ExitOK {
			t.Fatalf("%v: %+v", args, r)
		}
		return fmt.Sprint(o.Scenarios[0].Cases), vm.Limit, r.stdout
	}
	here, _, _ := run()
	slow, slowLimit, _ := run("--kernel", "6.12")
	if !o.Emulated || vm.VirtualTime || slow == here {
		t.Errorf("in real time: %+v, %+v", o, vm)
	}
	same, limit, stdout := run("--kernel", "6.12", "--virtual-time")
	if o.Emulated || !vm.VirtualTime || same != here || limit <= slowLimit || !strings.Contains(stdout, "emulated processor, virtual time") {
		t.Errorf("in virtual time: %+v, %+v: %s", o, vm, stdout)
	}
	if r := w.run(t.Context(), "run", "loss", "--virtual-time"); r.code != console.ExitUsage || !strings.Contains(r.stderr, "--kernel") {
		t.Errorf("without a kernel: %+v", r)
	}
}

func TestClean(t *testing.T) {
	w := newWorld(t)
	w.env.Clean = func() ([]string, error) { return nil, nil }
	if r := w.run(t.Context(), "clean"); r.code != console.ExitOK || r.stdout != "Nothing was left.\n" {
		t.Errorf("%+v", r)
	}
	w.env.Clean = func() ([]string, error) { return []string{"tcpilot-1.2.3-a"}, errors.New("b is busy") }
	if r := w.run(t.Context(), "clean", "--json"); r.code != console.ExitError || !strings.Contains(r.stdout, `"tcpilot-1.2.3-a"`) || !strings.Contains(r.stderr, "b is busy") {
		t.Errorf("%+v", r)
	}
}
