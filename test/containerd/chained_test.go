package containerd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tcpilot/tcpilot/internal/pod"
)

// Behind ptp and portmap, where 'tcpilot cni install' puts it, the plugin records what the runtime says of a pod, and
// rules and annotations hold for the pod's first connection. The pod's end leaves nothing, although DEL comes twice.
func TestChained(t *testing.T) {
	n := newNode(t)
	n.configure(t, v4, ptp, portmap)
	_, err := n.tcpilot("cni", "install", "--conf-dir", n.path("net.d"), "--bin-dir", n.path("plugins"), "--pods-dir", n.path("pods"))
	must(t, err)
	n.awaitNetwork(t)
	web := n.runPod(t, "web-1", map[string]string{"kubernetes.io/egress-bandwidth": "10M", "team": "blue"})
	db := n.runPod(t, "db-1", map[string]string{"tcpilot.io/congestion-control": "bbr"})
	other := n.runPod(t, "other-1", nil)

	p := n.record(t, web)
	if p.Network != "net" || p.Namespace != "shop" || p.Name != "web-1" || p.UID != "uid-web-1" || p.Made ||
		p.Annotations["kubernetes.io/egress-bandwidth"] != "10M" || p.Annotations["team"] != "blue" || p.Bandwidth.Egress != 10_000_000 ||
		p.Device != pod.Veth || p.HostIndex == 0 || len(p.Addresses) != 1 || p.Addresses[0].Addr().String() != n.addresses(t, web)[0] {
		t.Errorf("record %+v", p)
	}
	if limits, err := filepath.Glob(n.path("bpf/*/pods/links/*")); err != nil || len(limits) == 0 {
		t.Errorf("no program limits the bandwidth of web-1: %v", err)
	}
	if want := map[bool]string{true: n.config("web-1", nil).Linux.CgroupParent}[n.v2]; p.Cgroup != want {
		t.Errorf("cgroup %q is recorded, want %q", p.Cgroup, want)
	}
	n.expectPods(t, 3)
	for _, c := range []struct {
		from, to sandbox
		want     string
	}{{web, db, "reno"}, {db, web, "bbr"}, {other, web, "cubic"}} {
		if got := control(t, n.netns(t, c.from), n.netns(t, c.to), n.addresses(t, c.to)[0]); got != c.want {
			t.Errorf("a connection of %s has %s, want %s", c.from.name, got, c.want)
		}
	}
	for _, s := range []sandbox{web, db, other} {
		must(t, n.stop(t.Context(), s.id))
		if dels := n.calls(t, "DEL", s.id); dels != 2 {
			t.Errorf("containerd has called DEL %d times for %s", dels, s.name)
		}
	}
	n.expectNothing(t)
	n.expectPods(t, 0)
}

// A runtime that knows STATUS reports an error of the plugin to the kubelet, which starts no pods then.
func TestStatus(t *testing.T) {
	n := newNode(t)
	n.configure(t, v4, mainPlugin)
	must(t, os.Remove(n.path("pods")))
	must(t, os.WriteFile(n.path("pods"), nil, 0o644)) // no records can be written there
	_, err := n.networkReady(t.Context())
	if calls := n.calls(t, "STATUS"); n.v2 != (calls > 0) || n.v2 != (err != nil) {
		t.Errorf("without a directory of records, STATUS was called %d times: %v", calls, err)
	}
	must(t, os.Remove(n.path("pods")))
	n.awaitNetwork(t)
	must(t, n.stop(t.Context(), n.runPod(t, "web-1", nil).id))
	n.expectNothing(t)
}
