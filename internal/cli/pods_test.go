package cli

import (
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/api"
)

func TestPods(t *testing.T) {
	w := newWorld(t)
	w.run(t.Context(), "pods").golden(t, "pods-none")
	if r := w.run(t.Context(), "status"); strings.Contains(r.stdout, "pods") {
		t.Errorf("status shows pods that do not exist:\n%s", r.stdout)
	}
	w.fake.AddPods()
	w.run(t.Context(), "pods").golden(t, "pods")
	if r := w.run(t.Context(), "pods", "--sync"); r.code != 0 || !strings.Contains(r.stdout, "shop/web-1") || r.stderr != "record 00112233445566@eth0.json (shop/old): its network namespace /run/netns/cni-1 does not exist; removed\n" {
		t.Errorf("%+v", r)
	}
	w.run(t.Context(), "connections", "--count", "2").golden(t, "pods-connections")
	w.run(t.Context(), "explain", "192.0.2.7:443", "--pod", "shop/web-1").golden(t, "pods-explain")
	if w.fake.Asked.Pod != "shop/web-1" {
		t.Errorf("asked for %+v", w.fake.Asked)
	}
	if r := w.run(t.Context(), "explain", "192.0.2.7", "--pod", "shop/web-1", "--netns", "7"); r.code != 2 {
		t.Errorf("a pod and a namespace: %+v", r)
	}
	if r := w.run(t.Context(), "doctor"); strings.Contains(r.stdout, "CNI plugin\n") {
		t.Errorf("doctor shows a removal that there is not:\n%s", r.stdout)
	}
	w.fake.Removal = &api.PluginRemoval{Pods: []string{"shop/web-1"}}
	r := w.run(t.Context(), "status")
	for _, want := range []string{"\n             'tcpilot cni uninstall' waits for the end of pod shop/web-1\n", "\n  pods       2, 1 record not used: see 'tcpilot pods'\n", "pod shop/db-0: annotation tcpilot.io/congestion-control: vegas is not available"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("status lacks %q:\n%s", want, r.stdout)
		}
	}
	doctor := func(want string) {
		t.Helper()
		if r := w.run(t.Context(), "doctor"); r.code != 0 || !strings.Contains(r.stdout, "\nCNI plugin\n  removal: "+want+"\n") {
			t.Errorf("%d, doctor lacks %q:\n%s", r.code, want, r.stdout)
		}
	}
	doctor("'tcpilot cni uninstall' waits for the end of pod shop/web-1\n" +
		"      end these pods, or move them to another node, and run 'tcpilot cni uninstall' again later, or cancel the removal with 'tcpilot cni install'")
	w.fake.Removal.Pods, w.fake.Removal.Sandboxes = nil, 2
	doctor("'tcpilot cni uninstall' waits for the container runtime, which removes what it has of ended pods: 2\n" +
		"      run 'tcpilot cni uninstall' again later, or cancel the removal with 'tcpilot cni install'")
	w.fake.Removal.Sandboxes = 0
	doctor("no pod needs the CNI plugin any more: run 'tcpilot cni uninstall' again\n      'tcpilot cni install' cancels the removal")
	if r := w.run(t.Context(), "status"); !strings.Contains(r.stdout, "\n             no pod needs the CNI plugin any more: run 'tcpilot cni uninstall' again\n") {
		t.Errorf("nothing is waited for:\n%s", r.stdout)
	}
	if r := w.run(t.Context(), "connections", "--count", "2", "--json"); !strings.Contains(r.stdout, `"pod":"shop/web-1"`) {
		t.Errorf("%s", r.stdout)
	}
	w.fake.Err = api.Unavailable("list records of pods: permission denied")
	if r := w.run(t.Context(), "pods", "--sync"); r.code != 1 || !strings.Contains(r.stderr, "permission denied") {
		t.Errorf("%+v", r)
	}
	w.fake.Err, w.fake.PodList.Pods = nil, []api.Pod{}
	w.run(t.Context(), "pods").golden(t, "pods-refused")
}
