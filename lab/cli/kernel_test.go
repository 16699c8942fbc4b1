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

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/lab/experiment"
	"github.com/tcpilot/tcpilot/lab/report"
	"github.com/tcpilot/tcpilot/lab/subject"
)

// underKernel makes the world's VM run its command line, and returns the last VMOptions.
func underKernel(t *testing.T, w *world) *VMOptions {
	t.Helper()
	var got VMOptions
	w.env.VM = func(_ context.Context, o VMOptions) error {
		got = o
		r := w.run(t.Context(), o.Args...)
		if _, err := o.Stdout.Write([]byte(r.stdout)); err != nil {
			t.Error(err)
		}
		if r.code != console.ExitOK {
			return errors.New(r.stderr)
		}
		return nil
	}
	return &got
}

// The machine's time limit is several times the estimate of what runs in it: without the
// cases and subjects that are not chosen, and without a bpftune that is not installed.
func TestKernelLimit(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(subject.BpftuneEnv, "")
	t.Setenv(subject.BpftuneCacheEnv, t.TempDir())
	w := newWorld(t)
	fakeLab(w)
	got := underKernel(t, w)
	limit := func(args ...string) time.Duration {
		t.Helper()
		if r := w.run(t.Context(), append([]string{"run", "loss", "--kernel", "6.12"}, args...)...); r.code != console.ExitOK {
			t.Fatalf("%v: %+v", args, r)
		}
		return got.Limit
	}
	all := limit()
	if one := limit("--case", "5 %"); one >= all/2 || one <= bootTime {
		t.Errorf("one case: %s, all: %s", one, all)
	}
	if many := limit("--repeat", "200"); many < 10*all {
		t.Errorf("200 rounds: %s, the scenario's: %s", many, all)
	}
	if few := limit("--subject", "reno"); few >= all {
		t.Errorf("one subject: %s, all: %s", few, all)
	}
	there := filepath.Join(t.TempDir(), "bpftune")
	if err := os.WriteFile(there, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(subject.BpftuneEnv, there)
	if with := limit(); with <= all {
		t.Errorf("with bpftune: %s, without: %s", with, all)
	}
	got.Kernel = ""
	if r := w.run(t.Context(), "run", "loss", "--kernel", "6.12", "--case", "6 %"); r.code == console.ExitOK || got.Kernel != "" || !strings.Contains(r.stderr, `"6 %"`) {
		t.Errorf("an unknown case: %+v", r)
	}
}

// The only copy of a report is kept until it has been copied.
func TestKernelKeepsTheReport(t *testing.T) {
	w := newWorld(t)
	fakeLab(w)
	underKernel(t, w)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	lost := filepath.Join(t.TempDir(), "no such directory", "r.jsonl")
	r := w.run(t.Context(), "run", "loss", "--kernel", "6.12", "--case", "5 %", "--out", lost)
	if r.code != console.ExitError || !strings.Contains(r.stderr, "copy report") || !strings.Contains(r.stdout, "cubic") {
		t.Errorf("a report that cannot be copied: %+v", r)
	}
	_, at, ok := strings.Cut(r.stderr, "the report stays at ")
	if !ok {
		t.Fatalf("stderr does not say where the report is kept: %+v", r)
	}
	at, _, _ = strings.Cut(at, "\n")
	if back, err := report.Open(at); err != nil || len(back.Cases) == 0 {
		t.Errorf("what stays: %+v, %v", back, err)
	}
	if err := os.RemoveAll(filepath.Dir(at)); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "r.jsonl")
	if r := w.run(t.Context(), "run", "loss", "--kernel", "6.12", "--case", "5 %", "--out", copied); r.code != console.ExitOK {
		t.Errorf("a report that can be copied: %+v", r)
	}
	w.env.VM = func(context.Context, VMOptions) error { return errors.New("no QEMU") }
	if r := w.run(t.Context(), "run", "loss", "--kernel", "6.12"); r.code != console.ExitError || !strings.Contains(r.stderr, "no QEMU") {
		t.Errorf("no machine: %+v", r)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestCalibrateKernel(t *testing.T) {
	w := newWorld(t)
	var emulated bool
	w.env.Calibrate = func(_ context.Context, o experiment.Options, tell func(experiment.Calibration)) error {
		emulated = o.Emulated && o.Quick
		tell(experiment.Calibration{Title: strings.Join(o.Cases, " "), Refused: "too slow"})
		return nil
	}
	got := underKernel(t, w)
	r := w.run(t.Context(), "calibrate", "loss", "--kernel", "6.1", "--case", "5 %", "--quick")
	if r.code != console.ExitError || !emulated || !strings.Contains(r.stdout, "5 %") || !strings.Contains(r.stdout, "not as asked: too slow") {
		t.Errorf("lab calibrate --kernel: %+v", r)
	}
	if got.Kernel != "6.1" || got.VirtualTime || got.Dir != "" || got.Limit <= bootTime || got.Limit > 2*bootTime || slices.Contains(got.Args, "--json") {
		t.Errorf("%+v", got)
	}
	w.run(t.Context(), "calibrate", "loss", "--kernel", "6.1", "--case", "5 %", "--quick", "--virtual-time")
	if emulated || !got.VirtualTime || !slices.Contains(got.Args, "--virtual-time") {
		t.Errorf("in virtual time, with the tolerances of an emulated machine: %v, %+v", emulated, got)
	}
	if r := w.run(t.Context(), "calibrate", "loss", "--kernel", "6.1", "--json"); !strings.HasPrefix(r.stdout, "{") {
		t.Errorf("lab calibrate --kernel --json: %+v", r)
	}
}
