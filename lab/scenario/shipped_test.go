package scenario

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLoad(t *testing.T) {
	for _, c := range []struct{ name, want string }{
		{"los", `no scenario "los"; did you mean "loss"?`},
		{"nothing", "there are adapt, bufferbloat, "},
		{"../files/loss", "no such file"},
		{"there-is-none.yaml", "no such file"},
	} {
		if _, err := Load(c.name, Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %s", c.name, err, c.want)
		}
	}
	path := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.WriteFile(path, []byte(with("repat: 3")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path, Options{}); err == nil || !strings.HasPrefix(err.Error(), path+":9:1: ") {
		t.Errorf("%v; want the mistake, and where it is", err)
	}
}

// The scenario that docs/lab.md shows can be run.
func TestScenarioOfTheDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../docs/lab.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ = strings.Cut(text, "```\n")
	if _, err := Read("docs/lab.md", []byte(text), Options{}); err != nil || text == "" {
		t.Errorf("%v, in %d bytes", err, len(text))
	}
}

// Describe writes what the case does; what all cases share is written once.
func TestDescribe(t *testing.T) {
	s := read(t, with("needs: cc:dctcp", "sysctls: {net.ipv4.tcp_ecn: 1}", "cpu_bound: true", "cc: reno", `cases:
  - {name: calm}
  - {name: rough, links: {bottleneck: {schedule: [{at: 1s, forward: {loss: 5%}}, {at: 2s, rate: 5Mbit/s}, {at: 3s, forward: {loss: 0}}]}}}`), Options{})
	var b strings.Builder
	if err := s.Describe(&b); err != nil {
		t.Fatal(err)
	}
	got := b.String()
	for want, times := range map[string]int{
		"a: A\n": 1, "Source: ours\n": 1, "Expect: much\n": 1, "Needs: cc:dctcp\n": 1,
		"network   sender1 sender2 | left right | receiver1":                                              1,
		"link      bottleneck: 10 Mbit/s, 10 ms, queue 25 kB":                                             2,
		"; from 1s: 5 % loss; from 2s: 5 Mbit/s; back: 5 Mbit/s; from 3s: 5 Mbit/s, 10 ms, queue 25 kB\n": 1,
		"subjects  cubic (baseline), tcpilot\n":                                                           1,
		"net.ipv4.tcp_ecn = 1":                                                                            1,
		"case \"calm\", about ":                                                                           1, "case \"rough\", about ": 1,
		"processors (intended)": 1, "control reno": 1,
	} {
		if n := strings.Count(got, want); n != times {
			t.Errorf("%q occurs %d times, want %d", want, n, times)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
	for _, name := range Names() {
		s, err := Load(name, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Describe(t.Output()); err != nil {
			t.Error(err)
		}
	}
}

// A case takes as long as its subjects' rounds, the warm-up rounds, and a fixed cost.
func TestEstimate(t *testing.T) {
	near := func(what string, got, want time.Duration) {
		t.Helper()
		if got < want || got > want+want/10 {
			t.Errorf("%s: %v, want about %v", what, got, want)
		}
	}
	c := read(t, with("repeat: 10", "warmup: 6", "traffic: {bulk: {kind: bulk, duration: 2s, count: 3, start: 1s}}", "pause: 500ms"), Options{}).Cases[0]
	near("round", c.round(), 7*time.Second)
	near("case", c.Estimate(), caseCost+26*(7500*time.Millisecond+roundCost))
	c = read(t, with("repeat: 10", "warmup: 6", "subjects: [cubic, bpftune]"), Options{}).Cases[0]
	near("a subject that learns anew each time", c.Estimate(), caseCost+(10+70)*(time.Second+roundCost))

	// By what the link allows: 2 hosts send 100 times 100 kB at 10 Mbit/s.
	c = read(t, with("traffic: {flows: {kind: flows, count: 100, concurrency: 5, size: 100kB}}"), Options{}).Cases[0]
	near("flows", c.round(), 16*time.Second)
	c = read(t, with("traffic: {flows: {kind: flows, count: 100, size: 1kB}}"), Options{}).Cases[0]
	near("flows one by one", c.round(), 100*4*20*time.Millisecond)
	c = read(t, with("traffic: {flows: {kind: flows, count: 100, size: 1MB, duration: 9s}}"), Options{}).Cases[0]
	near("flows with an end", c.round(), 9*time.Second)
}
