package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/kubeapi/kubeapitest"
	"github.com/tcpilot/tcpilot/lab/load"
)

// A pod that began before the plugin was installed has no record. The API server names it, its cgroup has its UID, and its processes
// are in its network namespace: it gets its rules all the same, also when that process ends and another one goes on.
func TestRootPodsWithoutARecord(t *testing.T) {
	t.Parallel()
	const uid = "2f5a8d1e-0b3c-4d6e-8f9a-123456789abc"
	w := newPlainWorld(t, "far", "pod")
	above, err := w.cgroup.Child(w.net, "kubepods-burstable.slice")
	must(t, err)
	slice, err := above.Child(w.net, "kubepods-burstable-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
	must(t, err)
	scope := func(name string) *load.Agent {
		t.Helper()
		c, err := slice.Child(w.net, "cri-containerd-"+name+".scope")
		must(t, err)
		return w.agent(t, w.remotes[1].Host, c)
	}
	// A runtime may have a process of its own beside the pod's.
	monitor, err := slice.Child(w.net, "crio-conmon-1.scope")
	must(t, err)
	w.agent(t, w.star.Client, monitor)
	first, second := scope("1"), scope("2")
	// The pod claims to be another one.
	const other = "11111111-1111-1111-1111-111111111111"
	burstable, err := slice.Child(w.net, "burstable")
	must(t, err)
	claimed, err := burstable.Child(w.net, "pod"+other)
	must(t, err)
	w.agent(t, w.remotes[1].Host, claimed)
	// A pod that uses the host's network has no connections of its own.
	const host = "22222222-2222-2222-2222-222222222222"
	inHost, err := above.Child(w.net, "pod"+host)
	must(t, err)
	ofHost := w.agent(t, w.star.Client, inHost)
	n := newNode(t, w)
	n.startDaemon(t)
	defer n.stop(t)
	expectCC := func(when string, agent *load.Agent, want string) {
		t.Helper()
		eventually(t, 15*time.Second, when, func() error {
			if got := bulk(t, agent, load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: 20 * time.Millisecond}).CCStart; got != want {
				return fmt.Errorf("%s, want %s", got, want)
			}
			return nil
		})
	}
	expectCC("not known to the API server", first, "cubic")
	put := func(annotations map[string]string) {
		n.api.Put(kubeapitest.Pod{Namespace: "shop", Name: "web-1", UID: uid, Node: "here", Annotations: annotations})
	}
	n.api.Put(kubeapitest.Pod{Namespace: "shop", Name: "db", UID: other, Node: "here", Annotations: map[string]string{"tcpilot.io/congestion-control": "cubic"}})
	n.api.Put(kubeapitest.Pod{Namespace: "shop", Name: "web-host", UID: host, Node: "here"})
	put(nil)
	expectCC("found", first, "reno")
	expectCC("in the host's network", ofHost, "cubic")
	list := ask[api.PodList](t, n.tcpilot, "pods").Pods
	if len(list) != 1 || list[0].Pod != "shop/web-1" || list[0].Recorded || !strings.HasSuffix(list[0].Cgroup, ".slice") {
		t.Errorf("%+v", list)
	}
	expectCC("of the host itself", w.client, "cubic")
	put(map[string]string{"tcpilot.io/congestion-control": "bbr"})
	expectCC("annotated", first, "bbr")
	must(t, first.Close())
	expectCC("after its first process", second, "bbr")
	n.api.Delete(uid)
	expectCC("no pod any more", second, "cubic")
	if lines := refusals(n.log.String()); lines != nil {
		t.Errorf("a privilege is missing:\n%s", strings.Join(lines, ""))
	}
}
