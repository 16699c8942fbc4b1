package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/cgroup"
	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// plugin is chained for a pod whose host has no interface of the name eth0.
func (p *tcpilot) plugin(t testing.TB, command string, h *topology.Host, pod string, annotations map[string]string) string {
	t.Helper()
	return p.chained(t, command, h, "eth0", pod, annotations)
}

// What the runtime tells the plugin about a pod applies to the pod's connections from the first
// one on, and to no others.
func TestRootPodsRules(t *testing.T) {
	t.Parallel()
	w := newPlainWorld(t, "far", "pod")
	pod := w.remotes[1].Host
	inPod := w.agent(t, pod, w.cgroup)
	p := newTcpilot(t, w, settings{})
	p.configure(t, settings{keys: fmt.Sprintf("pods: {dir: %s/pods}\n", p.dir),
		rules: "  - {name: web, match: {pod: {namespace: shop, name: web-*}}, set: {cc: reno}}\n" +
			"  - {name: others, match: {remote: [10.0.0.0/8]}, set: {cc: cubic}}\n"})
	p.start(t)
	expect := func(when, want string) {
		t.Helper()
		for name, c := range map[string]struct {
			agent *load.Agent
			want  string
		}{"the pod": {inPod, want}, "another": {w.client, "cubic"}} {
			got := bulk(t, c.agent, load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: 20 * time.Millisecond}).CCStart
			if got != c.want {
				t.Errorf("%s, %s: %s, want %s", when, name, got, c.want)
			}
		}
	}
	expect("before the pod", "cubic")
	if out := p.plugin(t, "ADD", pod, "web-1", nil); !strings.Contains(out, `"eth0"`) {
		t.Errorf("ADD prints %s", out)
	}
	expect("after ADD", "reno")
	if out, err := p.run(t, "pods"); err != nil || !strings.Contains(string(out), "shop/web-1") {
		t.Errorf("%s, %v", out, err)
	}
	p.plugin(t, "DEL", pod, "web-1", nil)
	expect("after DEL", "cubic")
	p.plugin(t, "ADD", pod, "db-1", map[string]string{"tcpilot.io/congestion-control": "bbr"})
	expect("with an annotation", "bbr")
	p.plugin(t, "DEL", pod, "db-1", nil)
	p.plugin(t, "DEL", pod, "db-1", nil) // a runtime may repeat it
	expect("after the second DEL", "cubic")
}

// A rule for a pattern of cgroups also applies to cgroups that are made later, as soon as the plugin has
// reported their pod.
func TestRootRulesForPatternsOfCgroups(t *testing.T) {
	t.Parallel()
	w := newPlainWorld(t, "far", "pod")
	pod := w.remotes[1].Host
	root, err := cgroup.Root()
	must(t, err)
	pattern := strings.TrimPrefix(w.cgroup.Path, root) + "/pod-?"
	p := newTcpilot(t, w, settings{})
	p.configure(t, settings{keys: fmt.Sprintf("pods: {dir: %s/pods}\n", p.dir),
		rules: fmt.Sprintf("  - {name: grouped, match: {cgroup: %q}, set: {cc: reno}}\n", pattern) +
			"  - {name: others, match: {remote: [10.0.0.0/8]}, set: {cc: cubic}}\n"})
	p.start(t)
	start := func(name string) *load.Agent {
		t.Helper()
		c, err := w.cgroup.Child(w.net, name)
		must(t, err)
		below, err := c.Child(w.net, "container")
		must(t, err)
		return w.agent(t, pod, below)
	}
	inside, outside := start("pod-1"), start("pod-10")
	p.plugin(t, "ADD", pod, "web-1", nil)
	for name, c := range map[string]struct {
		agent *load.Agent
		want  string
	}{"in a cgroup of the pattern": {inside, "reno"}, "in another": {outside, "cubic"}} {
		if got := bulk(t, c.agent, load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: 20 * time.Millisecond}).CCStart; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
