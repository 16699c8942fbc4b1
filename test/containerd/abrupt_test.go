package containerd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// The kubelet does not wait any longer: containerd kills the plugin at any point of ADD, and of DEL. When the kubelet has
// stopped what containerd still lists, nothing is left.
func TestRequestsAreCancelled(t *testing.T) {
	n := newNode(t)
	n.configure(t, v4AndV6, mainPlugin, portmap)
	var started, stopped atomic.Int32
	const pods = 48
	atOnce(pods, func(i int) {
		wait := limit
		if i%3 > 0 {
			wait = time.Duration(40*(1+i%16)) * time.Millisecond // eight pods start within about 0.4 s
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		if _, err := n.tryRun(ctx, n.config(podName(i), nil)); err == nil {
			started.Add(1)
		}
	})
	listed := n.sandboxes(t)
	atOnce(len(listed), func(i int) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(100*(1+i%8))*time.Millisecond)
		defer cancel()
		if n.stop(ctx, listed[i].ID) == nil {
			stopped.Add(1)
		}
	})
	t.Logf("of %d requests to start pods %d were not cancelled, and of %d to stop them %d; %d calls of ADD, %d of DEL",
		pods, started.Load(), len(listed), stopped.Load(), n.calls(t, "ADD"), n.calls(t, "DEL"))
	eventually(t, "all pods are stopped", func() error {
		for _, s := range n.sandboxes(t) {
			if err := n.stop(t.Context(), s.ID); err != nil {
				return err
			}
		}
		return n.left(t)
	})
	n.expectNothing(t)
	n.expectPods(t, 0)
}

// After a crash of the host, the kubelet stops the pods that containerd remembers; their addresses are free again.
func TestCrash(t *testing.T) {
	n := newNode(t)
	n.configure(t, v4AndV6, mainPlugin, portmap)
	n.runPod(t, "web-1", nil, &portMapping{Container: 80, Host: 8080})
	n.runPod(t, "db-1", nil)
	n.crash(t)
	n.startDaemon(t)
	n.startContainerd(t)
	n.awaitNetwork(t)
	n.expectPods(t, 0)
	web := n.runPod(t, "web-2", nil)
	old := 0
	for _, s := range n.sandboxes(t) {
		if s.ID != web.id {
			old++
			eventually(t, "a pod of before is stopped", func() error { return n.stop(t.Context(), s.ID) })
		}
	}
	if old != 2 {
		t.Errorf("containerd remembers %d pods", old)
	}
	n.expectPods(t, 1)
	reaches(t, n.host, n.netns(t, web), n.addresses(t, web)[0])
	must(t, n.stop(t.Context(), web.id))
	n.expectNothing(t)
	n.expectPods(t, 0)
}

// After a crash of the host with which containerd loses what it knows, nobody asks for DEL. 'tcpilot cni gc' does it for the pods of
// before, and leaves those that run alone.
func TestCrashForgotten(t *testing.T) {
	n := newNode(t)
	n.configure(t, v4AndV6, mainPlugin, portmap)
	n.runPod(t, "web-1", nil, &portMapping{Container: 80, Host: 8080})
	n.runPod(t, "db-1", nil)
	n.crash(t)
	must(t, os.RemoveAll(n.path("root")))
	n.startDaemon(t)
	n.startContainerd(t)
	n.importImage(t, "localhost/pause:1")
	n.awaitNetwork(t)
	web := n.runPod(t, "web-2", nil)
	if l := n.sandboxes(t); len(l) != 1 {
		t.Fatalf("containerd has %d sandboxes", len(l))
	}
	out := n.host.Run(t, n.daemon.args[0], "cni", "gc", "--conf-dir", n.path("net.d"), "--bin-dir", n.path("plugins"), "--pods-dir", n.path("pods"), "--older-than", "0s")
	if strings.Count(out, "removed shop/") != 2 || strings.Count(out, "\n") != 2 || strings.Contains(out, "web-2") {
		t.Errorf("it writes\n%s", out)
	}
	reaches(t, n.host, n.netns(t, web), n.addresses(t, web)[0])
	must(t, n.stop(t.Context(), web.id))
	n.expectNothing(t)
	n.expectPods(t, 0)
}

// crash kills all that the test has started, and replaces what a host loses when it starts again: its network, and what is
// below /run.
func (n *node) crash(t *testing.T) {
	t.Helper()
	n.containerd.kill()
	n.daemon.kill()
	processes, err := filepath.Glob("/proc/[0-9]*/exe") // of the tests' own PID namespace
	must(t, err)
	for _, p := range processes {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p)))
		must(t, err)
		if pid != os.Getpid() && pid != os.Getppid() {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, "/run/") && !strings.HasPrefix(m.Mountpoint, n.path("state/")), false
	})
	must(t, err)
	for _, m := range slices.Backward(mounts) {
		// EINVAL: a mount of the real host, which the tests' own /run hides.
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Fatalf("unmount %s: %v", m.Mountpoint, err)
		}
	}
	must(t, os.RemoveAll(n.path("state")))
	for _, dir := range []string{"/run/netns", "/run/containerd"} {
		must(t, os.RemoveAll(dir))
	}
	n.connect(t)
}
