package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/cgroup"
	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// plugin runs a command of tcpilot-cni for the network namespace of a host, as a container runtime
// does, and returns what it prints. The UID of a pod is uid- and its name.
func (p *tcpilot) plugin(t *testing.T, command string, h *topology.Host, pod string, annotations map[string]string) string {
	t.Helper()
	config, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "net", "type": "tcpilot-cni", "dir": filepath.Join(p.dir, "pods"), "socket": p.socket,
		"runtimeConfig": map[string]any{"io.kubernetes.cri.pod-annotations": annotations},
		"prevResult":    map[string]any{"cniVersion": "1.0.0", "interfaces": []any{map[string]any{"name": "eth0", "sandbox": h.Path()}}},
	})
	must(t, err)
	cmd := exec.CommandContext(t.Context(), filepath.Join(filepath.Dir(p.bin), "tcpilot-cni"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID=of-"+pod, "CNI_IFNAME=eth0", "CNI_PATH="+filepath.Dir(p.bin),
		"CNI_NETNS="+h.Path(), "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME="+pod+";K8S_POD_UID=uid-"+pod)
	cmd.Stdin = strings.NewReader(string(config))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || stderr.Len() > 0 {
		t.Fatalf("%s: %v\n%s%s", command, err, out, &stderr)
	}
	return string(out)
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
