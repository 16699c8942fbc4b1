package experiment

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/subject"
)

// buildPlugins puts the CNI plugins of the scenario into a directory, where the lab finds them.
func buildPlugins(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "tcpilot-cni"), "github.com/tcpilot/tcpilot/cmd/tcpilot-cni")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build tcpilot-cni: %v\n%s", err, out)
	}
	for _, tool := range []string{"host-local", "ptp", "bridge"} { // of the CNI project; go.mod has them
		out, err := exec.Command("go", "tool", "-n", tool).Output() // builds it, and prints its path
		if err != nil {
			t.Fatalf("build %s: %v", tool, err)
		}
		if err := os.Symlink(strings.TrimSpace(string(out)), filepath.Join(dir, tool)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(subject.CNIEnv, dir)
}

const podsText = `
name: pods
title: a
source: ours
expect: much
topology: {kind: pods, nodes: 2}
traffic: {rr: {kind: rpc, request: 64B, reply: 64B, count: 50, deadline: 10m}, rr6: {kind: rpc, request: 64B, reply: 64B, count: 50, ipv6: true}}
subjects:
  - {name: host, pods: host}
  - {name: veth, pods: veth}
  - {name: bridge, pods: bridge}
  - {name: ptp, cni: [{type: ptp}]}
  - {name: cni-bridge, cni: [{type: bridge, bridge: cni0, isGateway: true}]}
  - {name: tcpilot, cni: [{type: tcpilot-cni}]}
  - {name: missing, cni: [{type: no-such-plugin}]}
primary: rr/requests_per_second
metrics: [rr/late, machine_per_request]
repeat: 2
cpu_bound: true
cases:
  - {name: two}
  - {name: one, topology: {kind: pods, nodes: 1}}
`

// Each subject connects the pods for its rounds only, so that the next one finds nothing of it, and
// both families work; a plugin that is not installed is skipped, and the reason says what to do.
func TestRootPods(t *testing.T) {
	testenv.Root(t)
	buildPlugins(t)
	r, err := run(t, t.Context(), podsText)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Cases {
		if c.Case.Refused != "" {
			t.Fatalf("%s is refused: %s", c.Case.Case, c.Case.Refused)
		}
		rounds := map[string]int{}
		for _, round := range c.Rounds {
			rounds[round.Round.Subject]++
			if e := round.Metrics["errors"]; e != 0 {
				t.Errorf("%s, %s: %v of the requests failed", c.Case.Case, round.Round.Subject, e)
			}
			if v, ok := round.Groups["rr"]["late"]; !ok || v != 0 {
				t.Errorf("%s, %s: late is %v, %v", c.Case.Case, round.Round.Subject, v, ok)
			}
		}
		if got, want := fmt.Sprint(rounds), "map[bridge:2 cni-bridge:2 host:2 ptp:2 tcpilot:2 veth:2]"; got != want {
			t.Errorf("%s: rounds %s, want %s", c.Case.Case, got, want)
		}
		missing := c.Case.Subjects[len(c.Case.Subjects)-1]
		if !strings.Contains(missing.Skipped, "no-such-plugin is not in") || !strings.Contains(missing.Skipped, "tools/deps cni") {
			t.Errorf("%s: skipped because %q", c.Case.Case, missing.Skipped)
		}
	}
}
