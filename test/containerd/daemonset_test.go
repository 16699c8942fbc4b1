package containerd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/cgroup"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// The kubelet runs what is in the manifests: the image, the mounts, the capabilities, the probe and the service account. Pods are tuned, also
// when the kubelet has started the daemon again, and uninstall.yaml leaves nothing.
func TestKubeletDaemonSet(t *testing.T) {
	for _, manifest := range []string{"tcpilot-main.yaml", "tcpilot.yaml"} {
		t.Run(manifest, func(t *testing.T) {
			c := newCluster(t, "daemonset")
			c.asOnANode(t)
			c.importImage(t, "localhost/tcpilot:latest")
			c.makeNamespace(t, "tcpilot")
			c.makeNamespace(t, "tcpilot-uninstall")
			if manifest == "tcpilot-main.yaml" {
				c.testMainManifest(t, manifest)
			} else {
				c.testManifest(t, manifest)
			}
		})
	}
}

// The node becomes ready with the manifest of the main plugin, and is not when it is uninstalled. Pods go on, and end.
func (c *cluster) testMainManifest(t *testing.T, manifest string) {
	c.setPodCIDRs(t, "10.244.1.0/24")
	c.install(t, manifest)
	c.expectNode(t, true, "")
	web, db := c.testDaemonSet(t)
	if !strings.HasPrefix(web.addresses[0], "10.244.1.") {
		t.Errorf("addresses %q", web.addresses)
	}
	flow := connect(t, c.outside, net.JoinHostPort(c.own.V4.String(), "8080"))
	c.uninstall(t)
	c.expectNode(t, false, "tcpilot-cni is uninstalled")
	if _, err := flow.get("/"); err != nil {
		t.Errorf("uninstalled, a connection: %v", err)
	}
	fetch(t, c.outside, net.JoinHostPort(c.own.V4.String(), "8080"), "/")
	c.expectReady(t, "uninstalled", web, db)
	c.remove(t, web, db)
	c.expectNoMainPlugin(t)
	c.expectUninstalled(t)
	c.expectNode(t, false, "cni plugin not initialized")
}

// The plugin is added behind those that the node has. Pods go on, and end, when it is uninstalled.
func (c *cluster) testManifest(t *testing.T, manifest string) {
	c.configure(t, v4, ptp, portmap)
	before, err := os.ReadFile(c.conflist())
	must(t, err)
	c.expectNode(t, true, "")
	c.install(t, manifest)
	eventually(t, "the plugin is installed", func() error {
		if text, err := os.ReadFile(c.conflist()); err != nil || !strings.Contains(string(text), "tcpilot-cni") {
			return fmt.Errorf("%s, %v", text, err)
		}
		return nil
	})
	c.awaitNetwork(t)
	web, db := c.testDaemonSet(t)
	c.uninstall(t)
	eventually(t, "the network configuration is as before", func() error {
		if text, err := os.ReadFile(c.conflist()); string(text) != string(before) {
			return fmt.Errorf("%s, %v", text, err)
		}
		return nil
	})
	c.awaitNetwork(t)
	if _, err := os.Stat(c.path("plugins/tcpilot-cni")); err != nil {
		t.Errorf("the program does not wait for the pods: %v", err)
	}
	fetch(t, c.outside, net.JoinHostPort(c.own.V4.String(), "8080"), "/")
	c.expectReady(t, "uninstalled", web, db)
	c.remove(t, web, db)
	c.expectUninstalled(t)
	c.expectNode(t, true, "")
}

const (
	daemonPod    = "/api/v1/namespaces/tcpilot/pods/daemon"
	uninstallPod = "/api/v1/namespaces/tcpilot-uninstall/pods/uninstall"
)

func (c *cluster) install(t *testing.T, manifest string) {
	t.Helper()
	c.applyManifest(t, manifest)
	c.runTemplate(t, "tcpilot", "tcpilot", "daemon")
	c.expectReadyPod(t, daemonPod)
}

func (c *cluster) uninstall(t *testing.T) {
	t.Helper()
	c.removePaths(t, daemonPod)
	c.applyManifest(t, "uninstall.yaml")
	c.runTemplate(t, "tcpilot-uninstall", "tcpilot-uninstall", "uninstall")
	c.expectReadyPod(t, uninstallPod)
}

// expectUninstalled waits until nothing of tcpilot and of pods is left, but the records of pods that ended after it.
func (c *cluster) expectUninstalled(t *testing.T) {
	t.Helper()
	within(t, limit, "nothing is left", func() error {
		for _, pattern := range []string{c.path("plugins/tcpilot-cni"), c.bpffs + "/tcpilot*", c.socket, c.path("leases/net/*.*.*.*")} {
			if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
				return fmt.Errorf("%q are left, %v", left, err)
			}
		}
		if now := c.network(t); now != c.before {
			return fmt.Errorf("before:\n%s\nafter:\n%s", c.before, now)
		}
		return nil
	})
	c.removePaths(t, uninstallPod)
}

// testDaemonSet runs pods, and has the daemon's container killed.
func (c *cluster) testDaemonSet(t *testing.T) (web, db *kubePod) {
	t.Helper()
	web = c.run(t, "web", 8080, map[string]string{profile: "bulk", egress: "20M"})
	db = c.run(t, "db", 0, nil)
	pods := []*kubePod{web, db}
	t.Run("annotations", func(t *testing.T) { c.testAnnotations(t, web, db, nil) })
	t.Run("connections", func(t *testing.T) {
		x := c.startTraffic(t, web, db, pods)
		x.expectRouting(t)
		c.killDaemonsContainer(t)
		x.flow(t, "without the daemon")
		eventually(t, "the daemon has adopted everything", func() error {
			if s := c.status(t); !s.Adopted || len(s.Degraded) > 0 || s.Pods.Count != len(pods) {
				return fmt.Errorf("adopted %v, degraded %q, pods %+v", s.Adopted, s.Degraded, s.Pods)
			}
			return nil
		})
		x.goesOn(t, "after the kubelet has started the daemon again")
		c.expectControl(t, "reno", web, db)
	})
	if t.Failed() {
		t.FailNow()
	}
	return web, db
}

// asOnANode has the directories of the manifests in the mount namespace of the tests.
func (c *cluster) asOnANode(t *testing.T) {
	t.Helper()
	c.socket, c.records, c.bpffs = "/run/tcpilot/tcpilot.sock", "/var/lib/tcpilot/pods", "/sys/fs/bpf"
	testenv.MountBPFFS(t, c.bpffs)
	must(t, unix.Mount("", "/run", "", unix.MS_SHARED|unix.MS_REC, "")) // as systemd makes it; the manifest has mountPropagation
}

// objects are where objects of a kind are.
var objects = map[string]string{"Namespace": "/api/v1/namespaces", "ServiceAccount": "/api/v1/namespaces/NS/serviceaccounts", "ConfigMap": "/api/v1/namespaces/NS/configmaps",
	"DaemonSet": "/apis/apps/v1/namespaces/NS/daemonsets", "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
	"ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"}

// applyManifest applies a manifest with the node's own directories of network configurations and plugins, as
// docs/kubernetes.md says it for k3s, and with rules for the tests' own cgroup.
func (c *cluster) applyManifest(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.built, "manifests", name))
	must(t, err)
	root, err := cgroup.Root()
	must(t, err)
	edited := strings.NewReplacer("path: /etc/cni/net.d", "path: "+c.path("net.d"), "path: /opt/cni/bin", "path: "+c.path("plugins"),
		"    metrics:\n", fmt.Sprintf(`    cgroup: %s
    rules:
      - {name: bulk, match: {pod: {annotation: {tcpilot.io/profile: bulk}}}, set: {cc: reno}}
      - {name: others, match: {remote: [10.88.0.0/16, 10.244.0.0/16]}, set: {cc: cubic}}
    metrics:
`, filepath.Join(root, filepath.Dir(c.cgroup))),
		"        in_cluster: on\n", "        in_cluster: on\n      host_routing: on\n").Replace(string(text))
	for object := range strings.SplitSeq(edited, "\n---\n") {
		field := func(pattern string) string {
			return append(regexp.MustCompile(pattern).FindStringSubmatch(object+"\n"), "", "")[1]
		}
		path := strings.Replace(objects[field(`(?m)^kind: (\w+)`)], "NS", field(`(?m)^  namespace: (\S+)`), 1)
		c.apply(t, path+"/"+field(`(?m)^  name: (\S+)`), object)
	}
}

// runTemplate makes the pod of a DaemonSet, as its controller does.
func (c *cluster) runTemplate(t *testing.T, namespace, daemonSet, name string) {
	t.Helper()
	var set struct {
		Spec struct {
			Template struct{ Spec map[string]any }
		}
	}
	must(t, json.Unmarshal([]byte(c.api.Must(t, "GET", "/apis/apps/v1/namespaces/"+namespace+"/daemonsets/"+daemonSet, "", "")), &set))
	set.Spec.Template.Spec["nodeName"] = c.name
	pod, err := json.Marshal(map[string]any{"metadata": map[string]string{"name": name}, "spec": set.Spec.Template.Spec})
	must(t, err)
	c.api.Must(t, "POST", "/api/v1/namespaces/"+namespace+"/pods", "application/json", string(pod))
}

func (c *cluster) expectReadyPod(t *testing.T, path string) {
	t.Helper()
	within(t, 3*limit, path+" is ready", func() error {
		p, err := c.get(t, path)
		if err == nil && p.ready().Status != "True" {
			err = fmt.Errorf("%+v", p.Status)
		}
		return err
	})
}

// killDaemonsContainer kills the program of the DaemonSet's container tcpilot, and waits until the kubelet has started it again.
func (c *cluster) killDaemonsContainer(t *testing.T) {
	t.Helper()
	before := c.daemonProcesses(t)
	if len(before) != 1 {
		t.Fatalf("processes of the daemon: %v", before)
	}
	must(t, unix.Kill(before[0], unix.SIGKILL))
	eventually(t, "the daemon runs again", func() error {
		if now := c.daemonProcesses(t); len(now) != 1 || now[0] == before[0] {
			return fmt.Errorf("%v", now)
		}
		_, err := c.tcpilot("status")
		return err
	})
}

// daemonProcesses are those of the tests' own PID namespace that execute '/tcpilot run'.
func (c *cluster) daemonProcesses(t *testing.T) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, f := range files {
		line, err := os.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		must(t, err)
		if bytes.HasPrefix(line, []byte("/tcpilot\x00run\x00")) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			must(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

func (c *cluster) status(t *testing.T) (s api.Status) {
	t.Helper()
	text, err := c.tcpilot("status", "--json")
	must(t, err)
	must(t, json.Unmarshal([]byte(text), &s))
	return s
}
