package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// cniFlags are those by which 'tcpilot cni' has the node's directories.
func (n *node) cniFlags() []string {
	return []string{"--conf-dir", n.path("net.d"), "--bin-dir", n.path("plugins"), "--pods-dir", n.records}
}

func (n *node) uninstallPlugin(t *testing.T, flags ...string) string {
	t.Helper()
	out, err := n.tcpilot(append(append([]string{"cni", "uninstall"}, n.cniFlags()...), flags...)...)
	must(t, err)
	return out
}

func (n *node) installMain(t *testing.T) {
	t.Helper()
	_, err := n.tcpilot(append([]string{"cni", "install", "--main", "--pod-cidr", "10.88.1.0/24"}, n.cniFlags()...)...)
	must(t, err)
	n.awaitMain(t, "10-tcpilot.conflist")
	eventually(t, "the network is ready", func() error { _, err := n.networkReady(t.Context()); return err })
}

// awaitMain waits until containerd has read a network configuration. With a version of containerd that knows STATUS, the network is not ready
// if pods only end with it.
func (n *node) awaitMain(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(n.path("net.d/" + name))
	must(t, err)
	uninstalled := strings.Contains(string(text), "uninstalled")
	eventually(t, "containerd has "+name, func() error {
		var s statusResponse
		if err := n.call(t.Context(), "RuntimeService/Status", &statusRequest{Verbose: true}, &s); err != nil {
			return err
		}
		if config := s.Info["cniconfig"]; !strings.Contains(config, `\"tcpilot-cni\"`) || strings.Contains(config, `\"uninstalled\": true`) != uninstalled {
			return fmt.Errorf("it has %s", config)
		}
		if _, err := n.networkReady(t.Context()); n.v2 && uninstalled && (err == nil || !strings.Contains(err.Error(), "tcpilot-cni is uninstalled")) {
			return fmt.Errorf("the network's state is %v", err)
		}
		return nil
	})
}

// pluginLeft returns what is left of the main plugin.
func (n *node) pluginLeft() error {
	for _, pattern := range []string{n.path("net.d/*"), n.path("plugins/tcpilot-cni"), n.records + "/*", "/var/lib/cni/networks/tcpilot", "/var/lib/cni/results/tcpilot-*"} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			return fmt.Errorf("%q are left, %v", left, err)
		}
	}
	return nil
}

// stopTwice is what the kubelet does at a pod's end, and when it removes the sandbox later.
func (n *node) stopTwice(t *testing.T, s sandbox) {
	t.Helper()
	must(t, n.call(t.Context(), "RuntimeService/StopPodSandbox", &sandboxID{ID: s.id}, &empty{}))
	must(t, n.stop(t.Context(), s.id))
}

// Pods of the main plugin go on when it is uninstalled, and end, while no new one begins; the end of the last one leaves nothing. containerd
// and the daemon start again meanwhile.
func TestUninstallMain(t *testing.T) {
	n := newNode(t)
	n.installMain(t)
	web := n.runPod(t, "web-1", nil, &portMapping{Container: 80, Host: 8080})
	db := n.runPod(t, "db-1", nil)
	if out, want := n.uninstallPlugin(t, "--main"), "waits for the end of 2 pods: shop/"; !strings.Contains(out, "removed "+n.path("net.d/10-tcpilot.conflist")) || !strings.Contains(out, want) {
		t.Errorf("%q, want %q", out, want)
	}
	n.awaitMain(t, "zz-tcpilot-uninstalled.conflist")
	if s, err := n.tryRun(t.Context(), n.config("late-1", nil)); err == nil || !strings.Contains(err.Error(), "tcpilot-cni is uninstalled") {
		t.Errorf("a new pod: %+v, %v", s, err)
	}
	status, err := n.tcpilot("status")
	if want := "'tcpilot cni uninstall' waits for the end of 2 pods: shop/"; err != nil || !strings.Contains(status, want) {
		t.Errorf("%v: %s\nwant %q", err, status, want)
	}
	n.containerd.kill()
	n.daemon.kill()
	n.startContainerd(t)
	n.startDaemon(t)
	t.Run("connections", func(t *testing.T) {
		inWeb, inDB := n.netns(t, web), n.netns(t, db)
		reaches(t, inWeb, inDB, n.addresses(t, db)[0])
		reaches(t, n.host, inWeb, n.addresses(t, web)[0])
	})
	n.stopTwice(t, web)
	if out, want := n.uninstallPlugin(t), "stays: it waits for the end of pod shop/db-1\n"; !strings.HasSuffix(out, want) {
		t.Errorf("%q, want %q", out, want)
	}
	must(t, n.call(t.Context(), "RuntimeService/StopPodSandbox", &sandboxID{ID: db.id}, &empty{}))
	if out, want := n.uninstallPlugin(t), "removes what it has of ended pods: 1\n"; !strings.HasSuffix(out, want) { // DEL comes again
		t.Errorf("%q, want %q", out, want)
	}
	must(t, n.stop(t.Context(), db.id)) // as the kubelet does it then
	eventually(t, "nothing of the plugin is left", n.pluginLeft)
	n.expectNothing(t)
	n.expectPods(t, 0)
	if out := n.uninstallPlugin(t, "--main"); out != "nothing to do: the plugin is not installed\n" {
		t.Errorf("again: %q", out)
	}
}

// The plugin that is installed again takes the pods of before over, and their end does not remove it.
func TestUninstallIsCancelled(t *testing.T) {
	n := newNode(t)
	n.installMain(t)
	web := n.runPod(t, "web-1", nil)
	n.uninstallPlugin(t, "--main")
	n.awaitMain(t, "zz-tcpilot-uninstalled.conflist")
	n.installMain(t)
	must(t, n.stop(t.Context(), web.id))
	db := n.runPod(t, "db-1", nil)
	n.uninstallPlugin(t, "--main")
	n.awaitMain(t, "zz-tcpilot-uninstalled.conflist")
	n.stopTwice(t, db)
	eventually(t, "nothing of the plugin is left", n.pluginLeft)
	n.expectNothing(t)
}

// Another network plugin takes effect while pods of the main one run. containerd ends these by that plugin; 'tcpilot cni gc' does the rest.
func TestUninstallForAnotherPlugin(t *testing.T) {
	n := newNode(t)
	n.installMain(t)
	web := n.runPod(t, "web-1", nil)
	n.uninstallPlugin(t, "--main")
	n.configure(t, v4, ptp, portmap)
	db := n.runPod(t, "db-1", nil)
	must(t, n.stop(t.Context(), web.id))
	if out, want := n.uninstallPlugin(t), "may not end them with this plugin: 1, run 'tcpilot cni gc'\n"; !strings.HasSuffix(out, want) {
		t.Errorf("%q, want %q", out, want)
	}
	out := n.host.Run(t, n.daemon.args[0], append([]string{"cni", "gc", "--older-than", "0s"}, n.cniFlags()...)...)
	if !strings.Contains(out, "web-1") {
		t.Errorf("%q", out)
	}
	for _, name := range []string{"plugins/tcpilot-cni", "net.d/zz-tcpilot-uninstalled.conflist"} {
		if _, err := os.Stat(n.path(name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	must(t, n.stop(t.Context(), db.id))
	n.expectNothing(t)
}

// containerd ends pods with its present configuration: a chained plugin that is not in it any more is not needed, even if its program is missing.
func TestUninstallChained(t *testing.T) {
	n := newNode(t)
	n.configure(t, v4, ptp, portmap)
	_, err := n.tcpilot(append([]string{"cni", "install"}, n.cniFlags()...)...)
	must(t, err)
	n.awaitNetwork(t)
	web, db := n.runPod(t, "web-1", nil), n.runPod(t, "db-1", nil)
	if out, want := n.uninstallPlugin(t), "waits for the end of 2 pods"; !strings.Contains(out, want) {
		t.Errorf("%q, want %q", out, want)
	}
	n.awaitNetwork(t)
	must(t, n.stop(t.Context(), web.id))
	if out, want := n.uninstallPlugin(t), "waits for the end of pod shop/db-1\n"; !strings.HasSuffix(out, want) {
		t.Errorf("%q, want %q", out, want)
	}
	n.uninstallPlugin(t, "--force")
	if _, err := os.Stat(n.path("plugins/tcpilot-cni")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the program: %v", err)
	}
	must(t, n.stop(t.Context(), db.id))
	n.expectPods(t, 0)
	n.expectNothing(t)
}
