package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/lab/topology"
)

// cni executes a command of tcpilot-cni in the network of the node, as a container runtime does. A container has the
// name of its pod. keys are those of the network configuration beside the common ones. The end of ctx kills the plugin with SIGKILL.
func (p *tcpilot) cni(ctx context.Context, command, pod, device, netns string, keys map[string]any) (stdout, stderr string, err error) {
	conf := map[string]any{"cniVersion": "1.1.0", "name": "net", "type": "tcpilot-cni", "dir": filepath.Join(p.dir, "pods"), "socket": p.socket, "timeout": "10s"}
	maps.Copy(conf, keys)
	stdin, err := json.Marshal(conf)
	if err != nil {
		return "", "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(p.bin), "tcpilot-cni"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+pod, "CNI_IFNAME="+device, "CNI_NETNS="+netns, "CNI_PATH="+p.dir,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME="+pod+";K8S_POD_UID="+cmp.Or(p.uids[pod], "uid-"+pod))
	cmd.Stdin = strings.NewReader(string(stdin))
	var out, log strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &log
	if err = p.w.star.Client.Start(cmd); err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s%s", command, pod, err, &out, &log)
	}
	return out.String(), log.String(), err
}

// chained is cni as a plugin behind another one, which has made device in the network namespace of a host. It returns what the
// plugin prints; a warning fails the test.
func (p *tcpilot) chained(t testing.TB, command string, h *topology.Host, device, pod string, annotations map[string]string) string {
	t.Helper()
	stdout, stderr, err := p.cni(t.Context(), command, pod, device, h.Path(), map[string]any{
		"runtimeConfig": map[string]any{"io.kubernetes.cri.pod-annotations": annotations},
		"prevResult":    map[string]any{"cniVersion": "1.1.0", "interfaces": []any{map[string]any{"name": device, "sandbox": h.Path()}}},
	})
	must(t, err)
	if stderr != "" {
		t.Fatalf("%s %s: %s", command, pod, stderr)
	}
	return stdout
}
