package containerd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// containerd and the daemon are killed while pods run, and while pods start. Pods that run are not disturbed, and are
// stopped as usual. What containerd has forgotten of pods that were starting, GC removes.
func TestRestarts(t *testing.T) {
	n := newNode(t)
	n.configure(t, v4AndV6, mainPlugin, portmap)
	web, db := n.runPod(t, "web-1", nil), n.runPod(t, "db-1", nil)
	inWeb, inDB := n.netns(t, web), n.netns(t, db)
	dbAt := n.addresses(t, db)
	stays := func(when string) {
		t.Helper()
		for _, address := range dbAt {
			reaches(t, inWeb, inDB, address)
		}
		reaches(t, inWeb, n.outside, n.wire.V4.String())
		if t.Failed() {
			t.Fatal(when)
		}
	}
	n.containerd.kill()
	stays("without containerd")
	n.daemon.kill()
	stays("without containerd and tcpilot")
	n.startDaemon(t)
	n.startContainerd(t)
	n.awaitNetwork(t)
	stays("after both have started again")
	if got := n.addresses(t, db); !slices.Equal(got, dbAt) {
		t.Errorf("the runtime reports the addresses %q, and %q before", got, dbAt)
	}
	if got := control(t, inWeb, inDB, dbAt[0]); got != "reno" {
		t.Errorf("a connection of web-1 has %s", got)
	}

	started, failed := 0, 0
	const rounds, pods = 8, 6
	for round := range rounds {
		ended := make(chan bool)
		for i := range pods {
			go func() {
				_, err := n.tryRun(t.Context(), n.config(podName(pods*round+i), nil))
				ended <- err == nil
			}()
		}
		time.Sleep(time.Duration(50*(round+1)) * time.Millisecond) // six pods start within about 0.4 s
		if round%2 == 0 {
			n.daemon.kill()
		}
		n.containerd.kill()
		for range pods {
			if <-ended {
				started++
			} else {
				failed++
			}
		}
		n.awaitPlugins(t)
		removeEmptyResults(t)
		if round%2 == 0 {
			n.startDaemon(t)
		}
		n.startContainerd(t)
		n.awaitNetwork(t)
	}
	stays("after the kills")
	for _, s := range n.sandboxes(t) {
		if s.ID == web.id || s.ID == db.id {
			continue
		}
		eventually(t, "a pod is stopped", func() error { return n.stop(t.Context(), s.ID) })
	}
	stays("after the other pods have ended")
	forgotten, err := filepath.Glob(n.path("pods/*.json"))
	must(t, err)
	t.Logf("RunPodSandbox: %d ended before containerd was killed, %d with it; it has forgotten %d pods", started, failed, len(forgotten)-2)
	n.collect(t, web, db)
	stays("after GC")
	n.expectPods(t, 2)
	for _, s := range []sandbox{web, db} {
		must(t, n.stop(t.Context(), s.id))
	}
	n.expectNothing(t)
	n.expectPods(t, 0)
}

// A pod that starts without the daemon has the kernel's defaults, and its rule when the daemon has started.
func TestDaemonDown(t *testing.T) {
	n := newNode(t)
	n.configure(t, v4AndV6, mainPlugin, portmap)
	n.daemon.kill()
	web, db := n.runPod(t, "web-1", nil), n.runPod(t, "db-1", nil)
	inWeb, inDB := n.netns(t, web), n.netns(t, db)
	to := n.addresses(t, db)[1] // no other rule is for connections to it
	usual := strings.TrimSpace(inWeb.Run(t, "sysctl", "-n", "net.ipv4.tcp_congestion_control"))
	if got := control(t, inWeb, inDB, to); got != usual {
		t.Errorf("without tcpilot, a connection has %s, want %s", got, usual)
	}
	n.startDaemon(t)
	n.expectPods(t, 2)
	if got := control(t, inWeb, inDB, to); got != "reno" {
		t.Errorf("with tcpilot, a connection of web-1 has %s", got)
	}
	n.daemon.kill()
	for _, s := range []sandbox{web, db} {
		must(t, n.stop(t.Context(), s.id))
	}
	n.startDaemon(t)
	n.expectNothing(t)
	n.expectPods(t, 0)
}

// Pods start and end while the daemon is killed and started again: all of them start, and it knows all.
func TestDaemonIsKilled(t *testing.T) {
	n := newNode(t)
	n.configure(t, v4AndV6, mainPlugin, portmap)
	var ids [20]string
	during := func(f func(i int) error) (kills int) {
		done := make(chan bool)
		go func() {
			defer close(done)
			atOnce(len(ids), func(i int) {
				if err := f(i); err != nil {
					t.Error(err)
				}
			})
		}()
		for ; ; kills++ {
			select {
			case <-done:
				return kills
			case <-time.After(20 * time.Millisecond):
				n.daemon.kill()
				n.startDaemon(t)
			}
		}
	}
	kills := during(func(i int) error {
		s, err := n.tryRun(t.Context(), n.config(podName(i), nil))
		ids[i] = s.id
		return err
	})
	n.expectPods(t, len(ids))
	kills += during(func(i int) error { return n.stop(t.Context(), ids[i]) })
	t.Logf("the daemon was killed %d times", kills)
	n.expectNothing(t)
	n.expectPods(t, 0)
}

func podName(i int) string { return fmt.Sprint("many-", i) }

// awaitPlugins waits until no plugin runs: those of a killed containerd go on.
func (n *node) awaitPlugins(t *testing.T) {
	t.Helper()
	eventually(t, "all plugins have ended", func() error {
		programs, err := filepath.Glob("/proc/[0-9]*/exe") // of the tests' own PID namespace
		must(t, err)
		for _, p := range programs {
			if target, err := os.Readlink(p); err == nil && (strings.HasPrefix(target, n.path("plugins/")) || target == n.path("tcpilot-cni")) {
				return fmt.Errorf("%s runs", target)
			}
		}
		return nil
	})
}

// removeEmptyResults removes what a killed containerd has left of a file that it was writing: the result of a plugin for
// StopPodSandbox, which fails as long as it cannot be read.
func removeEmptyResults(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob("/var/lib/cni/results/*")
	must(t, err)
	for _, f := range files {
		if info, err := os.Stat(f); err == nil && info.Size() == 0 {
			t.Log("containerd has left an empty result")
			must(t, os.Remove(f))
		}
	}
}

// collect is GC with the sandboxes that are valid, as docs/pods.md says it for an administrator.
func (n *node) collect(t *testing.T, valid ...sandbox) {
	t.Helper()
	var list []string
	for _, s := range valid {
		list = append(list, fmt.Sprintf(`{"containerID": %q, "ifname": "eth0"}`, s.id))
	}
	conf := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "cni.dev/valid-attachments": [%s], %s`, strings.Join(list, ", "),
		n.expand(mainPlugin, v4AndV6)[1:])
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, n.path("tcpilot-cni"))
	cmd.Env = []string{"CNI_COMMAND=GC", "CNI_PATH=" + n.path("plugins")}
	cmd.Stdin = strings.NewReader(conf)
	n.host.Do(t, func() {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("GC: %v: %s", err, out)
		}
	})
}
