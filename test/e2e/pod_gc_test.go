package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
)

// The namespace of a pod ends without DEL, and the runtime does not know GC. 'tcpilot cni gc' removes what DEL would have removed, and
// nothing of another pod, and the daemon forgets the record.
func TestRootMissedDEL(t *testing.T) {
	t.Parallel()
	n := newMainNode(t)
	conf := filepath.Join(n.dir, "net.d")
	must(t, os.Mkdir(conf, 0o755))
	text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "net", "plugins": []any{map[string]any{
		"type": "tcpilot-cni", "dir": n.dir + "/pods", "socket": n.socket, "ipMasq": true,
		"ipam": map[string]any{"type": "host-local", "dataDir": n.leases, "ranges": []any{[]any{map[string]string{"subnet": "10.88.0.0/16"}}}}}}})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(conf, "10-net.conflist"), text, 0o600))
	must(t, os.Symlink(filepath.Join(filepath.Dir(n.bin), "tcpilot-cni"), filepath.Join(n.dir, "tcpilot-cni")))
	gc := func(args ...string) (string, error) {
		t.Helper()
		return n.star.Client.Run(n.bin, append([]string{"cni", "gc", "--conf-dir", conf, "--bin-dir", n.dir, "--cache-dir", n.dir + "/none", "--pods-dir", n.dir + "/pods"}, args...)...)
	}

	before := n.left(t)
	n.start(t)
	stays, err := n.net.Host("stays")
	must(t, err)
	must(t, n.main(t.Context(), "ADD", "stays", stays.Path(), nil))
	withOne := n.left(t)
	crashes := fmt.Sprintf("tcpilot-crash-%d", os.Getpid())
	must(t, exec.Command("ip", "netns", "add", crashes).Run())
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", crashes).Run() })
	must(t, n.main(t.Context(), "ADD", "crashes", "/run/netns/"+crashes, nil))
	flow := startExchange(t, stays, n.remotes[0].Host, n.remotes[0].Addr4)
	must(t, exec.Command("ip", "netns", "del", crashes).Run())

	eventually(t, 15*time.Second, "the daemon knows that the pod is gone", func() error {
		if r := ask[api.PodList](t, n.tcpilot, "pods").Refused; len(r) != 1 || !strings.Contains(r[0].Why, "tcpilot cni gc") {
			return fmt.Errorf("refused %+v", r)
		}
		return nil
	})
	if out, err := gc(); err != nil || !strings.Contains(out, "kept shop/crashes (container crashes, eth0, network net, 10.88.0.3): its network namespace /run/netns/"+crashes+" does not exist, but it was added only ") {
		t.Errorf("a young one: %s, %v", out, err)
	}
	eventually(t, 15*time.Second, "it is removed", func() error { // the kernel takes its time to end the pair of devices
		want := "removed shop/crashes (container crashes, eth0, network net, 10.88.0.3): its network namespace /run/netns/" + crashes + " does not exist\n"
		if out, err := gc("--older-than", "0s"); err != nil || out != want {
			return fmt.Errorf("%q, %v; want %q", out, err, want)
		}
		return nil
	})
	if got := n.left(t); !slices.Equal(got, withOne) {
		t.Errorf("the node has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(withOne, "\n"))
	}
	if l := ask[api.PodList](t, n.tcpilot, "pods"); len(l.Pods) != 1 || l.Pods[0].Name != "stays" || len(l.Refused) != 0 {
		t.Errorf("%+v", l)
	}
	if err := flow.end(); err != nil {
		t.Errorf("the connection of the pod that stays: %v", err)
	}
	must(t, n.main(t.Context(), "DEL", "stays", stays.Path(), nil))
	n.stop(t)
	if got := n.left(t); !slices.Equal(got, before) {
		t.Errorf("the node has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(before, "\n"))
	}
}
