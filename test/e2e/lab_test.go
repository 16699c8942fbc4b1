package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/tcpilot/tcpilot/internal/lab/report"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// labScenario is a small one: a lossy path on which bbr is better than cubic by
// far, so that the table has an order.
const labScenario = `
name: small
title: A lossy path
source: test
expect: bbr above cubic
topology: {kind: chain, hops: 1}
links:
  hop1: {rtt: 10ms, rate: 100Mbit/s, queue: 1bdp, forward: {loss: 3%}}
traffic:
  bulk: {kind: bulk, streams: 4, duration: 400ms, count: 2}
subjects: [cubic, bbr, tcpilot]
baseline: cubic
primary: goodput
metrics: [retrans]
repeat: 5
warmup: 5
`

// labFile writes a scenario to a file.
func labFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "small.yaml")
	must(t, os.WriteFile(file, []byte(text), 0o644))
	return file
}

// lab runs a lab command to its end.
func lab(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	bin, err := build()
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out, log strings.Builder
	cmd := exec.CommandContext(ctx, bin, append([]string{"lab"}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("tcpilot lab %s: %w: %s", args[0], err, log.String())
	}
	return out.String(), nil
}

// labRun runs a scenario and checks what came of it. What other machines of the host
// spoil gets another try.
func labRun(t *testing.T, file, out string) error {
	t.Helper()
	var err error
	for range 3 {
		_, err = lab(t, "run", file, "--out", out, "--html", out+".html")
		if err != nil && !strings.Contains(err.Error(), "quieter") && !strings.Contains(err.Error(), "stood still") {
			return err
		}
		if err == nil {
			r, oerr := report.Open(out)
			must(t, oerr)
			if err = checkLab(t, r); err == nil {
				return nil
			}
		}
		t.Log(err)
		must(t, errors.Join(os.RemoveAll(out), os.RemoveAll(out+".html")))
	}
	return err
}

// A whole run, by the command line: the records, the order of the subjects, that
// tcpilot finds the better arm, the page, and that two runs agree.
func TestRootLab(t *testing.T) {
	testenv.Root(t)
	before := traces(t)
	file, dir := labFile(t, labScenario), t.TempDir()
	var runs []string
	for i := range 2 {
		out := filepath.Join(dir, fmt.Sprintf("run%d.jsonl.gz", i))
		must(t, labRun(t, file, out))
		runs = append(runs, out)
		page, err := os.ReadFile(out + ".html")
		must(t, err)
		if !strings.Contains(string(page), "A lossy path") || strings.Contains(string(page), `src="http`) {
			t.Errorf("the page lacks its title or is not self-contained (%d bytes)", len(page))
		}
	}
	text, err := lab(t, "compare", runs[0], runs[1], "--json")
	must(t, err)
	var c report.Comparison
	must(t, json.Unmarshal([]byte(text), &c))
	for _, f := range c.Figures {
		if f.Subject != "bbr" || !f.Primary || f.Verdict == report.Agree {
			continue
		}
		// On a busy machine rounds do not count, or the machine changed meanwhile.
		if f.Ratio == nil || f.Ratio.Ratio < 0.8 || f.Ratio.Ratio > 1.25 {
			t.Errorf("two runs of bbr: %s", text)
		}
	}
	if left := since(before, traces(t)); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// checkLab returns an error if too little counts to judge by.
func checkLab(t *testing.T, r *report.Report) error {
	t.Helper()
	if r.Truncated != "" || r.End == nil || r.End.Stopped != "" {
		t.Fatalf("the report has no proper end: %+v", r.End)
	}
	cases := report.Summarise(r)
	if len(cases) != 1 || cases[0].Refused != "" {
		return fmt.Errorf("want one case that counts: %+v", cases)
	}
	s := cases[0].Subject("tcpilot")
	if s == nil || s.Rounds == 0 {
		return fmt.Errorf("no round of tcpilot counts: %+v", s)
	}
	if cases[0].Oracle != "bbr" {
		t.Errorf("with 3 %% loss the oracle is %q, want bbr", cases[0].Oracle)
	}
	if ratio := s.Metrics["goodput"].Baseline; ratio == nil || ratio.Ratio < 1.5 {
		t.Errorf("tcpilot's goodput is %+v of cubic's, want 1.5 at least", ratio)
	}
	return nil
}

// A run that is killed leaves much behind; lab clean removes all of it.
func TestRootLabKilled(t *testing.T) {
	testenv.Root(t)
	bin, err := build()
	must(t, err)
	before := traces(t)
	// Subjects that have a daemon and its programs, and a link with a queue.
	cmd := exec.Command(bin, "lab", "run", labFile(t, labScenario), "--subject", "tcpilot")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	killed := false
	defer func() {
		if !killed {
			cmd.Process.Kill()
			cmd.Wait()
		}
	}()
	eventually(t, time.Minute, "tcpilot runs in the lab", func() error {
		for _, trace := range since(before, traces(t)) {
			if strings.HasSuffix(trace, " tcpilot_sockops") {
				return nil
			}
		}
		return errors.New("its program is not there")
	})
	must(t, cmd.Process.Kill())
	cmd.Wait()
	killed = true
	if left := since(before, traces(t)); len(left) == 0 {
		t.Error("the killed run left nothing: the test shows nothing")
	}
	out, err := lab(t, "clean")
	must(t, err)
	if !strings.Contains(out, "removed ") {
		t.Errorf("lab clean says %q", out)
	}
	eventually(t, 10*time.Second, "all is removed", func() error {
		if left := since(before, traces(t)); len(left) > 0 {
			return fmt.Errorf("left: %q", left)
		}
		return nil
	})
}

// traces lists what lab runs make: namespaces, cgroups, directories, mounts,
// agents and BPF programs.
func traces(t *testing.T) (list []string) {
	t.Helper()
	for _, pattern := range []string{"/run/netns/tcpilot-*", "/run/tcpilot-*-*", "/sys/fs/cgroup/tcpilot-*", "/sys/fs/cgroup/unified/tcpilot-*"} {
		names, err := filepath.Glob(pattern)
		must(t, err)
		list = append(list, names...)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " /run/tcpilot-") {
			list = append(list, line)
		}
	}
	procs, err := filepath.Glob("/proc/[0-9]*/environ")
	must(t, err)
	for _, p := range procs {
		if env, err := os.ReadFile(p); err == nil && strings.Contains(string(env), "TCPILOT_LOAD_AGENT=1") {
			list = append(list, p)
		}
	}
	return append(list, programs(t)...)
}

// since is what is there now and was not before.
func since(before, now []string) []string {
	return slices.DeleteFunc(now, func(s string) bool { return slices.Contains(before, s) })
}

// programs lists the BPF programs of tcpilot and its lab by id and name.
func programs(t *testing.T) (list []string) {
	t.Helper()
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return list
		}
		must(t, err)
		id = next
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // gone meanwhile
		}
		info, err := p.Info()
		p.Close()
		must(t, err)
		// Others come and go, such as systemd's.
		if strings.HasPrefix(info.Name, "tcpilot_") || strings.HasPrefix(info.Name, "lab_") {
			list = append(list, fmt.Sprintf("%d %s", id, info.Name))
		}
	}
}
