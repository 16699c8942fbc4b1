package e2e

import (
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/kubeapi/kubeapitest"
	"github.com/tcpilot/tcpilot/lab/load"
)

const conflist = `{
  "cniVersion": "1.0.0", "name": "net",
  "plugins": [
    {"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}},
    {"type": "portmap"}
  ]
}
`

// node is a node with the DaemonSet of the manifest.
type node struct {
	*tcpilot
	api           *kubeapitest.Server
	root, confDir string
	places        map[string]string
}

func newNode(t *testing.T, w *world) *node {
	t.Helper()
	p := newTcpilot(t, w, settings{})
	n := &node{tcpilot: p, root: imageRoot(t, p.bin), confDir: filepath.Join(p.dir, "net.d"), places: map[string]string{
		"/run/tcpilot": filepath.Join(p.dir, "run"), "/var/lib/tcpilot": filepath.Join(p.dir, "state"), "/sys/fs/bpf": filepath.Join(p.dir, "bpf"),
		"/etc/cni/net.d": filepath.Join(p.dir, "net.d"), "/opt/cni/bin": filepath.Join(p.dir, "opt"),
		"config": filepath.Join(p.dir, "etc"), "api": filepath.Join(p.dir, "api"),
	}}
	for _, dir := range []string{"api", "etc", "net.d", "opt", "state/pods"} {
		must(t, os.Mkdir(filepath.Join(p.dir, dir), 0o755))
	}
	must(t, os.Symlink(filepath.Join(p.dir, "state/pods"), filepath.Join(p.dir, "pods"))) // where tcpilot.plugin writes
	must(t, os.WriteFile(filepath.Join(p.dir, "etc/tcpilot.yaml"), fmt.Appendf(nil, `cgroup: %s
metrics: {listen: ""}
pods: {host_routing: on, kubernetes: {in_cluster: on}}
rules:
  - {name: web, match: {pod: {namespace: shop, name: web-*}}, set: {cc: reno}}
  - {name: others, match: {remote: [10.0.0.0/8]}, set: {cc: cubic}}
`, w.cgroup.Path), 0o644))
	must(t, os.WriteFile(filepath.Join(n.confDir, "10-net.conflist"), []byte(conflist), 0o644))
	for _, name := range []string{"ptp", "portmap"} { // beside which tcpilot-cni is installed
		must(t, os.WriteFile(filepath.Join(p.dir, "opt", name), nil, 0o755))
	}
	var l net.Listener
	must(t, w.star.Client.Do(func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:0"); return err }))
	n.api = kubeapitest.New(t, l)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: n.api.Certificate().Raw})
	must(t, os.WriteFile(filepath.Join(p.dir, "api/ca.crt"), ca, 0o644))
	must(t, os.WriteFile(filepath.Join(p.dir, "api/token"), []byte("secret"), 0o600))
	return n
}

// container starts a container of a manifest in the network of the world's client, without some of its capabilities.
func (n *node) container(t *testing.T, manifest, name string, without ...string) (exited chan error, cmd *exec.Cmd) {
	t.Helper()
	spec := daemonSet(t, "../../deploy/kubernetes/"+manifest)
	c := spec.container(t, name, n.root, n.places)
	c.Capabilities = slices.DeleteFunc(c.Capabilities, func(name string) bool { return slices.Contains(without, name) })
	host, port, err := net.SplitHostPort(n.api.Listener.Addr().String())
	must(t, err)
	c.Env = []string{"NODE_NAME=here", "KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
	cmd = c.command(t)
	cmd.Stdout, cmd.Stderr = n.log, n.log
	must(t, n.w.star.Client.Start(cmd))
	exited = make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	return exited, cmd
}

func (n *node) startDaemon(t *testing.T, without ...string) {
	t.Helper()
	n.exited, n.cmd = n.container(t, "tcpilot.yaml", "tcpilot", without...)
	eventually(t, 20*time.Second, "tcpilot is ready", func() error { _, err := n.run(t, "status", "--json"); return err })
}

func (n *node) conflist(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(n.confDir, "10-net.conflist"))
	must(t, err)
	return string(text)
}

// The manifest's containers, with the image's files, the manifest's capabilities and mounts and nothing else, do all that tcpilot
// does for pods: install the plugin once the daemon is ready, tune, outlive a kill, and leave nothing.
func TestRootDaemonSet(t *testing.T) {
	t.Parallel()
	w := newPlainWorld(t, "far", "pod")
	pod := w.remotes[1].Host
	inPod := w.agent(t, pod, w.cgroup)
	n := newNode(t, w)
	plugin, portmap := filepath.Join(n.dir, "opt/tcpilot-cni"), filepath.Join(n.dir, "opt/portmap")
	must(t, os.Remove(portmap)) // as if /opt/cni/bin were not the runtime's directory of plugins

	follow, follower := n.container(t, "tcpilot.yaml", "cni")
	eventually(t, 10*time.Second, "the plugin waits for the daemon", func() error {
		if !strings.Contains(n.log.String(), "not installed before the daemon is ready") {
			return fmt.Errorf("%s", n.log)
		}
		return nil
	})
	if n.conflist(t) != conflist {
		t.Error("the plugin is installed before the daemon is ready")
	}
	n.startDaemon(t)
	eventually(t, 10*time.Second, "the plugin is not installed where pods could not start with it", func() error {
		if !strings.Contains(n.log.String(), "10-net.conflist has the plugin portmap, whose program is not in /opt/cni/bin") {
			return fmt.Errorf("%s", n.log)
		}
		return nil
	})
	if n.conflist(t) != conflist {
		t.Error("the plugin is installed where pods could not start with it")
	}
	must(t, os.WriteFile(portmap, nil, 0o755))
	eventually(t, 20*time.Second, "the plugin is installed", func() error {
		_, err := os.Stat(plugin)
		if text := n.conflist(t); err == nil && !strings.Contains(text, "{\"type\": \"portmap\"},\n    {\"type\": \"tcpilot-cni\"") {
			err = fmt.Errorf("%s", text)
		}
		return err
	})
	expectCC := func(when, inside, outside string) {
		t.Helper()
		for name, c := range map[string]struct {
			agent *load.Agent
			want  string
		}{"the pod": {inPod, inside}, "another": {w.client, outside}} {
			if got := bulk(t, c.agent, load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: 20 * time.Millisecond}).CCStart; got != c.want {
				t.Errorf("%s, %s: %s, want %s", when, name, got, c.want)
			}
		}
	}
	n.plugin(t, "ADD", pod, "web-1", nil)
	expectCC("after ADD", "reno", "cubic")
	n.api.Put(kubeapitest.Pod{Namespace: "shop", Name: "web-1", UID: "uid-web-1", Node: "here", Annotations: map[string]string{"tcpilot.io/congestion-control": "bbr"}})
	eventually(t, 10*time.Second, "the API server's annotation", func() error {
		if out, err := n.run(t, "pods"); err != nil || !strings.Contains(string(out), "cc=bbr") {
			return fmt.Errorf("%s, %v", out, err)
		}
		return nil
	})
	expectCC("annotated", "bbr", "cubic")
	n.api.Put(kubeapitest.Pod{Namespace: "shop", Name: "web-1", UID: "uid-web-1", Node: "here"})
	eventually(t, 10*time.Second, "no annotation any more", func() error {
		if out, err := n.run(t, "pods"); err != nil || strings.Contains(string(out), "cc=bbr") {
			return fmt.Errorf("%s, %v", out, err)
		}
		return nil
	})
	// If another test's daemon has just unloaded a congestion control, it is loaded again
	// soon.
	eventually(t, 20*time.Second, "tcpilot is not degraded", func() error {
		if d := n.status(t).Degraded; len(d) > 0 {
			return fmt.Errorf("degraded: %q", d)
		}
		return nil
	})

	n.kill()
	n.startDaemon(t)
	if !n.status(t).Adopted {
		t.Error("the programs were not adopted after a kill")
	}
	expectCC("after a kill", "reno", "cubic")
	n.plugin(t, "DEL", pod, "web-1", nil)
	f, err := os.Open(pod.Path()) // of a pod that runs when tcpilot is uninstalled
	must(t, err)
	netns, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3000) // a number that no other test takes once it is closed
	must(t, err)
	must(t, f.Close())
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), netns)
	_, _, err = n.cni(t.Context(), "ADD", "web-2", "eth0", path, map[string]any{"prevResult": map[string]string{"cniVersion": "1.1.0"}})
	must(t, err)

	must(t, follower.Process.Signal(unix.SIGTERM))
	if err := <-follow; err != nil {
		t.Errorf("cni: %v", err)
	}
	n.stop(t)
	detached, _ := n.container(t, "uninstall.yaml", "detach")
	if err := <-detached; err != nil {
		t.Errorf("detach: %v", err)
	}
	removed, remover := n.container(t, "uninstall.yaml", "cni")
	eventually(t, 10*time.Second, "the plugin is removed from the network configuration", func() error {
		if text := n.conflist(t); text != conflist || !strings.Contains(n.log.String(), "stays: ") {
			return fmt.Errorf("%s\n%s", text, n.log)
		}
		return nil
	})
	time.Sleep(3 * time.Second) // longer than it takes to look for pods again
	if _, err := os.Stat(plugin); err != nil {
		t.Errorf("the program is removed although a pod may need it: %v", err)
	}
	// Without the daemon, DEL succeeds with a warning.
	_, _, err = n.cni(t.Context(), "DEL", "web-2", "eth0", path, nil)
	must(t, err)
	time.Sleep(3 * time.Second)
	if _, err := os.Stat(plugin); err != nil {
		t.Errorf("the program is removed although DEL of the plugins before it may fail: %v", err)
	}
	must(t, unix.Close(netns))
	eventually(t, 10*time.Second, "the program is removed after the pod's end", func() error {
		if _, err := os.Stat(plugin); err == nil {
			return fmt.Errorf("%s is there\n%s", plugin, n.log)
		}
		return nil
	})
	must(t, remover.Process.Signal(unix.SIGTERM))
	if err := <-removed; err != nil {
		t.Errorf("uninstall: %v", err)
	}
	// The kernel itself shows maps.debug and progs.debug.
	if left, err := filepath.Glob(filepath.Join(n.dir, "bpf/tcpilot*")); err != nil || len(left) > 0 {
		t.Errorf("left in the BPF file system: %v, %v", left, err)
	}
	if lines := refusals(n.log.String()); lines != nil {
		t.Errorf("a privilege is missing:\n%s", strings.Join(lines, ""))
	}
}
