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

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/report"
)

// labScenario is a small scenario: a lossy path on which bbr is far better than cubic,
// so that the order of subjects is certain.
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

// lab runs a lab command and waits for its end.
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

// labRun runs a scenario. If the host was not quiet enough, the run fails with that reason
// and its rounds do not count, but its records are complete.
func labRun(t *testing.T, file, out string, args ...string) *report.Report {
	t.Helper()
	_, err := lab(t, append([]string{"run", file, "--out", out, "--html", out + ".html"}, args...)...)
	if err != nil && !disturbed(err.Error()) {
		t.Fatal(err)
	}
	r, err := report.Open(out)
	must(t, err)
	if r.Truncated != "" || r.End == nil || r.End.Stopped != "" {
		t.Fatalf("the report has no proper end: %+v", r.End)
	}
	return r
}

// disturbed reports whether a case or a round was refused because of other load on the host.
func disturbed(why string) bool {
	return strings.Contains(why, "quieter") || strings.Contains(why, "machine stalled") || strings.Contains(why, "the processors were")
}

// A complete run by the command line: it writes the records, the page and the comparison,
// and leaves nothing behind.
func TestRootLab(t *testing.T) {
	testenv.Root(t)
	before := traces(t)
	out := filepath.Join(t.TempDir(), "run.jsonl.gz")
	const repeat = 2
	// A rate that even a busy host can carry.
	small := strings.NewReplacer("warmup: 5", "warmup: 1",
		"rate: 100Mbit/s", "rate: 10Mbit/s", "repeat: 5\n", "repeat: 2\ncpu_bound: true\n").Replace(labScenario)
	r := labRun(t, labFile(t, small), out)
	if len(r.Cases) != 1 {
		t.Fatalf("%d cases, want 1", len(r.Cases))
	}
	if refused := r.Cases[0].Case.Refused; disturbed(refused) {
		t.Logf("this host was not quiet: %s", refused)
	} else if refused != "" {
		t.Errorf("refused: %s", refused)
	} else {
		// A round that failed the checks of host or links is repeated.
		made := map[string]int{}
		for _, round := range r.Cases[0].Rounds {
			made[round.Round.Subject] = max(made[round.Round.Subject], round.Round.Repeat)
			if round.Round.Metrics["goodput"] <= 0 {
				t.Errorf("a round has no goodput: %+v", round.Round)
			}
		}
		for _, subject := range []string{"cubic", "bbr", "tcpilot"} {
			if made[subject] != repeat {
				t.Errorf("%s has %d rounds, want %d", subject, made[subject], repeat)
			}
		}
	}
	page, err := os.ReadFile(out + ".html")
	must(t, err)
	if !strings.Contains(string(page), "A lossy path") || strings.Contains(string(page), `src="http`) {
		t.Errorf("the page lacks its title or is not self-contained (%d bytes)", len(page))
	}
	text, err := lab(t, "compare", out, out, "--json")
	must(t, err)
	var c report.Comparison
	must(t, json.Unmarshal([]byte(text), &c))
	for _, f := range c.Figures {
		if f.Verdict != report.Agree && (f.Ratio == nil || f.Ratio.Ratio != 1) {
			t.Errorf("a run compared with itself: %+v", f)
		}
	}
	if left := since(before, traces(t)); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// On the lossy path bbr is the best, tcpilot finds it, and two runs agree.
func TestMeasureLab(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		testenv.Root(t)
		file, dir := labFile(t, labScenario), t.TempDir()
		runs := []string{filepath.Join(dir, "a.jsonl.gz"), filepath.Join(dir, "b.jsonl.gz")}
		for _, out := range runs {
			cases := report.Summarise(labRun(t, file, out))
			m.Holds("case counts", "true", cases[0].Refused == "", fmt.Sprint(cases[0].Refused == ""))
			m.Holds("oracle", "bbr", cases[0].Oracle == "bbr", cases[0].Oracle)
			if s := cases[0].Subject("tcpilot"); s != nil && s.Metrics["goodput"].Baseline != nil {
				testenv.AtLeast(m, "tcpilot's goodput, of cubic's", s.Metrics["goodput"].Baseline.Ratio, 1.5)
			}
		}
		text, err := lab(t, "compare", runs[0], runs[1], "--json")
		must(t, err)
		var c report.Comparison
		must(t, json.Unmarshal([]byte(text), &c))
		for _, f := range c.Figures {
			if f.Subject == "bbr" && f.Primary && f.Ratio != nil {
				testenv.Between(m, "bbr in one run, of the other", f.Ratio.Ratio, 0.8, 1.25)
			}
		}
	})
}

// labPods is a scenario whose pods have a daemon and its programs on their node. There is no link
// between pods of one node, so that no link is measured, which a busy host would fail.
const labPods = `
name: pods
title: Pods of one node
source: test
expect: it is killed
topology: {kind: pods, nodes: 1}
traffic: {rr: {kind: rpc, request: 64B, reply: 64B, duration: 5m}}
subjects: [{name: tcpilot, pods: veth, tcpilot: {rules: [{name: all, leave: true}]}}]
baseline: tcpilot
primary: requests_per_second
`

// A killed run leaves many objects behind; lab clean removes all of them.
func TestRootLabKilled(t *testing.T) {
	testenv.Root(t)
	for _, c := range []struct{ when, scenario, trace string }{
		{"a link with a queue is made", labScenario, "/environ"}, // of an agent
		{"tcpilot runs", labPods, " tcpilot_sockops"},
	} {
		t.Run(c.when, func(t *testing.T) { killLab(t, c.scenario, c.trace) })
	}
}

// killLab kills a run when there is a trace of it that ends with the text, and cleans up.
func killLab(t *testing.T, scenario, trace string) {
	bin, err := build()
	must(t, err)
	before := traces(t)
	var log syncBuffer
	cmd := exec.Command(bin, "lab", "run", labFile(t, scenario))
	cmd.Stderr = &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	killed := false
	defer func() {
		if !killed {
			cmd.Process.Kill()
			cmd.Wait()
		}
	}()
	eventually(t, time.Minute, "the lab has made it", func() error {
		if !slices.ContainsFunc(since(before, traces(t)), func(s string) bool { return strings.HasSuffix(s, trace) }) {
			return fmt.Errorf("nothing ends with %q: %s", trace, &log)
		}
		return nil
	})
	must(t, cmd.Process.Kill())
	cmd.Wait()
	killed = true
	if left := since(before, traces(t)); len(left) == 0 {
		t.Error("the killed run left nothing: the test did not reach the case")
	}
	out, err := lab(t, "clean")
	must(t, err)
	if !strings.Contains(out, "removed ") {
		t.Errorf("lab clean printed %q", out)
	}
	eventually(t, 30*time.Second, "all is removed", func() error {
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

// since returns the entries of now that are not in before.
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
			continue // unloaded meanwhile
		}
		info, err := p.Info()
		p.Close()
		must(t, err)
		// Only these: other programs, such as systemd's, may be loaded at any time.
		if strings.HasPrefix(info.Name, "tcpilot_") || strings.HasPrefix(info.Name, "lab_") {
			list = append(list, fmt.Sprintf("%d %s", id, info.Name))
		}
	}
}
