package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/lab/experiment"
	"github.com/tcpilot/tcpilot/internal/lab/report"
)

// fakeLab is a Lab whose runs take no time: each subject of each case has five
// rounds of the same goodput.
func fakeLab(w *world) {
	w.env.Lab.Run = func(_ context.Context, o experiment.Options, about report.Run) error {
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

func TestLabReads(t *testing.T) {
	w := newWorld(t)
	if r := w.run(t.Context(), "lab", "list"); r.code != ExitOK || !strings.Contains(r.stdout, "bufferbloat") || !strings.Contains(r.stdout, "QUICK") {
		t.Errorf("lab list: %+v", r)
	}
	if r := w.run(t.Context(), "lab", "show", "loss"); r.code != ExitOK || !strings.Contains(r.stdout, "subjects") {
		t.Errorf("lab show: %+v", r)
	}
	source := w.run(t.Context(), "lab", "show", "loss", "--source")
	if !strings.HasPrefix(source.stdout, "name: loss\n") {
		t.Errorf("lab show --source: %+v", source)
	}
	mine := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.WriteFile(mine, []byte(strings.Replace(source.stdout, "primary: goodput", "primary: goodputt", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := w.run(t.Context(), "lab", "show", mine); r.code != ExitError || !strings.Contains(r.stderr, "mine.yaml:") || !strings.Contains(r.stderr, `"goodput"`) {
		t.Errorf("a file with a mistake: %+v", r)
	}
	if r := w.run(t.Context(), "lab", "show", "los"); r.code != ExitError || !strings.Contains(r.stderr, `did you mean "loss"`) {
		t.Errorf("a name with a mistake: %+v", r)
	}
}

func TestLabRun(t *testing.T) {
	w := newWorld(t)
	fakeLab(w)
	dir := t.TempDir()
	out, page := filepath.Join(dir, "r.jsonl.gz"), filepath.Join(dir, "r.html")
	r := w.run(t.Context(), "lab", "run", "loss", "--out", out, "--html", page, "--case", "5 %")
	if r.code != ExitOK || !strings.Contains(r.stdout, "--case '5 %'") || !strings.Contains(r.stdout, "cubic") {
		t.Errorf("lab run: %+v", r)
	}
	if !strings.Contains(r.stderr, "25 % done") {
		t.Errorf("no progress: %q", r.stderr)
	}
	if _, err := os.Stat(page); err != nil {
		t.Error(err)
	}
	if r := w.run(t.Context(), "lab", "run", "loss", "--out", out); r.code != ExitUsage || !strings.Contains(r.stderr, "exists") {
		t.Errorf("a report is overwritten: %+v", r)
	}
	if r := w.run(t.Context(), "lab", "compare", out, out); r.code != ExitOK || !strings.Contains(r.stdout, "agree") {
		t.Errorf("lab compare: %+v", r)
	}
	if r := w.run(t.Context(), "lab", "report", out, "--markdown"); r.code != ExitOK || !strings.Contains(r.stdout, "|---") {
		t.Errorf("lab report --markdown: %+v", r)
	}
	if r := w.run(t.Context(), "lab", "report", out, "--json"); r.code != ExitOK || !strings.HasPrefix(r.stdout, "[") {
		t.Errorf("lab report --json: %+v", r)
	}
}

func TestLabUsage(t *testing.T) {
	w := newWorld(t)
	fakeLab(w)
	for _, args := range [][]string{
		{"run"}, {"run", "loss", "--all"}, {"run", "loss", "--backend", "magic"}, {"compare", "one"}, {"report"}, {"show"},
	} {
		if r := w.run(t.Context(), append([]string{"lab"}, args...)...); r.code != ExitUsage || r.stderr == "" {
			t.Errorf("lab %v: %+v", args, r)
		}
	}
}

// A run that was stopped shows what there is, and fails.
func TestLabStopped(t *testing.T) {
	w := newWorld(t)
	w.env.Lab.Run = func(_ context.Context, o experiment.Options, about report.Run) error {
		return errors.Join(o.Out.Run(about), o.Out.End(report.End{Stopped: "no room"}), errors.New("no room"))
	}
	if r := w.run(t.Context(), "lab", "run", "loss"); r.code != ExitError || !strings.Contains(r.stdout, "no room") || !strings.Contains(r.stderr, "no room") {
		t.Errorf("stopped: %+v", r)
	}
	w.env.Lab.Run = func(context.Context, experiment.Options, report.Run) error { return errors.New("not root") }
	if r := w.run(t.Context(), "lab", "run", "loss"); r.code != ExitError || r.stdout != "" || !strings.Contains(r.stderr, "not root") {
		t.Errorf("nothing was written: %+v", r)
	}
}

// Under another kernel the same command runs, and its report comes back.
func TestLabKernel(t *testing.T) {
	w := newWorld(t)
	fakeLab(w)
	var got VMOptions
	w.env.Lab.VM = func(_ context.Context, o VMOptions) error {
		got = o
		if r := w.run(t.Context(), o.Args...); r.code != ExitOK {
			return errors.New(r.stderr)
		}
		return nil
	}
	out := filepath.Join(t.TempDir(), "r.jsonl")
	r := w.run(t.Context(), "lab", "run", "loss", "--kernel", "6.12", "--quick", "--repeat", "5", "--subject", "bbr", "--out", out)
	if r.code != ExitOK || !strings.Contains(r.stdout, "loss") {
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

func TestLabClean(t *testing.T) {
	w := newWorld(t)
	w.env.Lab.Clean = func() ([]string, error) { return nil, nil }
	if r := w.run(t.Context(), "lab", "clean"); r.code != ExitOK || r.stdout != "Nothing was left.\n" {
		t.Errorf("%+v", r)
	}
	w.env.Lab.Clean = func() ([]string, error) { return []string{"tcpilot-1.2.3-a"}, errors.New("b is busy") }
	if r := w.run(t.Context(), "lab", "clean", "--json"); r.code != ExitError || !strings.Contains(r.stdout, `"tcpilot-1.2.3-a"`) || !strings.Contains(r.stderr, "b is busy") {
		t.Errorf("%+v", r)
	}
}
