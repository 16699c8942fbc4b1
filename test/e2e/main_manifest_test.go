package e2e

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/kubeapi/kubeapitest"
)

var update = flag.Bool("update", false, "write generated files again")

// mainEdits make the manifest with tcpilot-cni as the main plugin of the other one.
var mainEdits = [][2]string{
	{"# tcpilot on each node of a cluster: kubectl apply -f tcpilot.yaml (docs/kubernetes.md).\n",
		"# tcpilot on each node of a cluster, with tcpilot-cni as the cluster's network plugin, and routes between nodes on one\n" +
			"# link: kubectl apply -f tcpilot-main.yaml, after --cluster-cidr was set (docs/kubernetes.md).\n"},
	{"    resources: [pods]\n    verbs: [get, list, watch]\n",
		"    resources: [pods]\n    verbs: [get, list, watch]\n" +
			"  # The networks of nodes' pods, and the nodes' addresses, for routes.\n" +
			"  - apiGroups: [\"\"]\n    resources: [nodes]\n    verbs: [get, list, watch]\n"},
	{"        in_cluster: on\n", "        in_cluster: on\n      node_routes: on\n"},
	{"      automountServiceAccountToken: false # only one of the containers needs it: volume api\n", "      automountServiceAccountToken: false # volume api is enough\n"},
	{"        # Adds tcpilot-cni to the node's network configuration as soon as tcpilot is ready, and again\n        # if a network plugin writes that anew.\n",
		"        # Writes the node's network configuration as soon as tcpilot is ready.\n"},
	{"          args: [cni, install, --follow]\n",
		"          # The networks of all nodes' pods (podSubnet of kubeadm), separated by commas.\n" +
			"          args: [cni, install, --follow, --main, --cluster-cidr, 10.244.0.0/16]\n" +
			"          env:\n            - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}\n"},
	{"            - {name: cni-conf, mountPath: /etc/cni/net.d}\n",
		"            - {name: api, mountPath: /run/secrets/kubernetes.io/serviceaccount, readOnly: true}\n" +
			"            - {name: cni-conf, mountPath: /etc/cni/net.d}\n"},
	{"{path: /etc/cni/net.d, type: Directory}", "{path: /etc/cni/net.d, type: DirectoryOrCreate}"},
}

// The manifests differ in nothing else: go test ./test/e2e -run MainManifest -update
func TestMainManifest(t *testing.T) {
	const dir = "../../deploy/kubernetes/"
	text, err := os.ReadFile(dir + "tcpilot.yaml")
	must(t, err)
	want := string(text)
	for _, e := range mainEdits {
		if strings.Count(want, e[0]) != 1 {
			t.Fatalf("tcpilot.yaml has %d times\n%s", strings.Count(want, e[0]), e[0])
		}
		want = strings.Replace(want, e[0], e[1], 1)
	}
	if *update {
		must(t, os.WriteFile(dir+"tcpilot-main.yaml", []byte(want), 0o644))
	}
	got, err := os.ReadFile(dir + "tcpilot-main.yaml")
	must(t, err)
	if string(got) != want {
		t.Error("tcpilot-main.yaml is not tcpilot.yaml with the edits of the main plugin: go test ./test/e2e -run MainManifest -update")
	}
}

// The containers of the manifest with the main plugin, with its mounts and capabilities and nothing else, write the node's network
// configuration with what the API server knows of the node, and make routes to other nodes; uninstalling removes both.
func TestRootMainDaemonSet(t *testing.T) {
	t.Parallel()
	const manifest = "tcpilot-main.yaml"
	w := newPlainWorld(t, "far")
	n := newNode(t, w)
	must(t, os.Remove(filepath.Join(n.confDir, "10-net.conflist")))
	must(t, os.WriteFile(filepath.Join(n.dir, "opt/host-local"), nil, 0o755))
	must(t, os.WriteFile(filepath.Join(n.dir, "etc/tcpilot.yaml"), fmt.Appendf(nil, `cgroup: %s
metrics: {listen: ""}
pods: {node_routes: on, kubernetes: {in_cluster: on}}
rules:
  - {name: others, match: {remote: [10.0.0.0/8]}, set: {cc: cubic}}
`, w.cgroup.Path), 0o644))
	gateway, _, _ := strings.Cut(firstOf(t, w, "-4 route show default"), " dev")
	gateway = strings.TrimPrefix(gateway, "default via ")
	n.api.PutNode(kubeapitest.Node{Name: "here", UID: "1", Addresses: []string{"192.0.2.1"}})
	n.api.PutNode(kubeapitest.Node{Name: "there", UID: "2", PodCIDRs: []string{"10.244.2.0/24"}, Addresses: []string{gateway}})

	follow, follower := n.container(t, manifest, "cni")
	n.exited, n.cmd = n.container(t, manifest, "tcpilot")
	eventually(t, 30*time.Second, "a node without podCIDRs", func() error {
		if !strings.Contains(n.log.String(), "node here has no podCIDRs") {
			return fmt.Errorf("%s", n.log)
		}
		return nil
	})
	n.api.PutNode(kubeapitest.Node{Name: "here", UID: "1", PodCIDRs: []string{"10.244.1.0/24"}, Addresses: []string{"192.0.2.1"}})
	file, plugin := filepath.Join(n.confDir, "10-tcpilot.conflist"), filepath.Join(n.dir, "opt/tcpilot-cni")
	eventually(t, 20*time.Second, "the network configuration is written", func() error {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if !strings.Contains(string(text), `"ranges": [[{"subnet": "10.244.1.0/24"}]]`) || !strings.Contains(string(text), `"ipMasqExcept": ["10.244.0.0/16"]`) {
			t.Fatalf("%s", text)
		}
		_, err = os.Stat(plugin)
		return err
	})
	route := func() string { return firstOf(t, w, "-4 route show proto 84") }
	eventually(t, 20*time.Second, "the route", func() error {
		if got := route(); !strings.HasPrefix(got, "10.244.2.0/24 via "+gateway) {
			return fmt.Errorf("%q\n%s", got, n.log)
		}
		return nil
	})

	must(t, follower.Process.Signal(unix.SIGTERM))
	if err := <-follow; err != nil {
		t.Errorf("cni: %v", err)
	}
	n.stop(t) // with --keep-attached
	if route() == "" {
		t.Error("the route ended with the daemon")
	}
	detached, _ := n.container(t, "uninstall.yaml", "detach")
	if err := <-detached; err != nil || route() != "" {
		t.Errorf("detach: %v; route %q", err, route())
	}
	removed, remover := n.container(t, "uninstall.yaml", "cni")
	eventually(t, 10*time.Second, "the plugin is removed", func() error {
		for _, path := range []string{file, plugin} {
			if _, err := os.Stat(path); err == nil {
				return fmt.Errorf("%s is there\n%s", path, n.log)
			}
		}
		return nil
	})
	must(t, remover.Process.Signal(unix.SIGTERM))
	if err := <-removed; err != nil {
		t.Errorf("uninstall: %v", err)
	}
	if lines := refusals(n.log.String()); lines != nil {
		t.Errorf("a privilege is missing:\n%s", strings.Join(lines, ""))
	}
}

// firstOf is the first line that ip(8) shows of the world's client.
func firstOf(t *testing.T, w *world, args string) string {
	t.Helper()
	out, err := w.star.Client.Run("ip", strings.Fields(args)...)
	must(t, err)
	line, _, _ := strings.Cut(out, "\n")
	return line
}
