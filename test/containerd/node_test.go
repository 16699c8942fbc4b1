package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/cgroup"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// node is a host with containerd and tcpilot, and a host outside, the next hop of its default routes.
type node struct {
	*cri
	host, outside *testenv.NS
	own, wire     testenv.End // of the host, and of the outside
	dir           string
	built         string // directory with the programs
	// Where tcpilot has its socket, the records of pods and its pins.
	socket, records, bpffs string
	cgroup                 string // parent of the pods' cgroups, from the root of the hierarchy
	containerd             process
	daemon                 process
	v2                     bool   // containerd 2
	before                 string // the host's network without pods
}

// containerdConfig is of version 2, which both containerds read.
const containerdConfig = `version = 2
root = "DIR/root"
state = "DIR/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "DIR/containerd.sock"
[ttrpc]
  address = "DIR/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "DIR/plugins"
    conf_dir = "DIR/net.d"
`

// daemonConfig has rules for pods, one for all that connects to pods by IPv4, and none for anything else.
const daemonConfig = `cgroup: CGROUP
bpffs: DIR/bpf
run_dir: DIR/run
state_dir: DIR/lib
metrics: {listen: ""}
pods: {PODS}
rules:
  - {name: bulk, match: {pod: {annotation: {tcpilot.io/profile: bulk}}}, set: {cc: reno}}
  - {name: web, match: {pod: {namespace: shop, name: web-*}}, set: {cc: reno}}
  - {name: others, match: {remote: [10.88.0.0/16]}, set: {cc: cubic}}
`

// newNode starts containerd, without a network configuration, and tcpilot.
func newNode(t *testing.T) *node {
	t.Helper()
	n := newHost(t)
	n.startDaemon(t)
	return n
}

// newHost starts containerd alone.
func newHost(t *testing.T) *node {
	t.Helper()
	n := &node{built: built(t)}
	own, err := cgroup.OfProcess(os.Getpid())
	must(t, err)
	n.cgroup = filepath.Join(filepath.Dir(own), "kubepods")
	n.dir, err = os.MkdirTemp(n.built, "node") // removed by tools/test-containerd, because the runtime leaves mounts
	must(t, err)
	n.socket, n.records, n.bpffs = n.path("tcpilot.sock"), n.path("pods"), n.path("bpf")
	for _, name := range []string{"bpf", "net.d", "pods"} {
		must(t, os.Mkdir(n.path(name), 0o755))
	}
	must(t, os.CopyFS(n.path("plugins"), os.DirFS(filepath.Join(n.built, "plugins"))))
	n.logCalls(t)
	testenv.MountBPFFS(t, n.path("bpf"))
	must(t, os.WriteFile(n.path("containerd.toml"), []byte(strings.ReplaceAll(containerdConfig, "DIR", n.dir)), 0o644))
	n.writeDaemonConfig(t, "dir: DIR/pods")
	n.containerd = process{args: []string{"containerd", "-c", n.path("containerd.toml")}, log: n.path("containerd.log")}
	n.daemon = process{log: n.path("tcpilot.log"),
		args: []string{filepath.Join(n.built, "tcpilot"), "run", "--config", n.path("tcpilot.yaml"), "--socket", n.path("tcpilot.sock")}}
	n.connect(t)
	n.cri = newCRI(n.path("containerd.sock"))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(tail(n.containerd.log), tail(n.daemon.log))
		}
		n.containerd.kill()
		n.daemon.kill()
		n.CloseIdleConnections()
	})
	n.startContainerd(t)
	n.importImage(t, "localhost/pause:1")
	return n
}

// importImage gives containerd an image that tools/test-containerd has made.
func (n *node) importImage(t *testing.T, reference string) {
	t.Helper()
	name, _, _ := strings.Cut(filepath.Base(reference), ":")
	n.host.Run(t, "ctr", "-a", n.path("containerd.sock"), "-n", "k8s.io", "images", "import", filepath.Join(n.built, name+".tar"))
	eventually(t, "the image is there", func() error {
		i := &image{Spec: &imageSpec{Image: reference}}
		var there image
		if err := n.call(t.Context(), "ImageService/ImageStatus", i, &there); err != nil || there.Spec == nil {
			return fmt.Errorf("no image: %v", err)
		}
		return nil
	})
}

// writeDaemonConfig writes tcpilot's configuration, with the keys of its part pods.
func (n *node) writeDaemonConfig(t *testing.T, pods string) {
	t.Helper()
	root, err := cgroup.Root()
	must(t, err)
	text := strings.ReplaceAll(strings.ReplaceAll(daemonConfig, "PODS", pods), "CGROUP", filepath.Join(root, filepath.Dir(n.cgroup)))
	must(t, os.WriteFile(n.path("tcpilot.yaml"), []byte(strings.ReplaceAll(text, "DIR", n.dir)), 0o644))
}

// connect makes the network of the host, and of the host outside.
func (n *node) connect(t *testing.T) {
	t.Helper()
	n.host, n.outside = testenv.NetNS(t), testenv.NetNS(t)
	n.own, n.wire = testenv.Veth(t, n.host, n.outside)
	for _, hop := range []netip.Addr{n.wire.V4, n.wire.V6} {
		n.host.Run(t, "ip", "route", "add", "default", "via", hop.String())
	}
	n.containerd.host, n.daemon.host = n.host, n.host
	n.before = n.network(t)
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) startContainerd(t *testing.T) {
	t.Helper()
	n.containerd.start(t, func() error {
		var v versionResponse
		err := n.call(t.Context(), "RuntimeService/Version", &empty{}, &v)
		n.v2 = strings.HasPrefix(strings.TrimPrefix(v.Version, "v"), "2.")
		return err
	})
}

func (n *node) startDaemon(t *testing.T) {
	t.Helper()
	n.daemon.start(t, func() error {
		_, err := n.tcpilot("status")
		return err
	})
}

// tcpilot runs a command that asks the daemon.
func (n *node) tcpilot(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, n.daemon.args[0], append(args, "--socket", n.socket)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("tcpilot %q: %w: %s", args, err, &stderr)
	}
	return string(out), err
}

// mainPlugin and chained are tcpilot-cni; ptp is the plugin of the CNI project that makes pairs too.
const (
	mainPlugin = `{"type": "tcpilot-cni", "ipMasq": true, "ipam": {HOST-LOCAL}, ` + keys + `}`
	chained    = `{"type": "tcpilot-cni", ` + keys + `}`
	keys       = `"dir": "DIR/pods", "socket": "DIR/tcpilot.sock",
		"capabilities": {"io.kubernetes.cri.pod-annotations": true, "cgroupPath": true, "bandwidth": true}`
	ptp     = `{"type": "ptp", "ipMasq": true, "ipam": {"routes": [{"dst": "0.0.0.0/0"}], HOST-LOCAL}}` // without, pods reach no other host
	portmap = `{"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}`

	v4       = `[{"subnet": "10.88.0.0/16"}]`
	v4AndV6  = v4 + `, [{"subnet": "fd88::/64"}]`
	versions = `"cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"], "name": "net"`
)

// expand fills in host-local with ranges of addresses, and the node's directory for DIR.
func (n *node) expand(text, ranges string) string {
	ipam := `"type": "host-local", "dataDir": "DIR/leases", "ranges": [` + ranges + `]`
	return strings.ReplaceAll(strings.ReplaceAll(text, "HOST-LOCAL", ipam), "DIR", n.dir)
}

// configure writes the network configuration, with a rename within its directory: a runtime does not notice a file that is
// moved there from another one.
func (n *node) configure(t *testing.T, ranges string, plugins ...string) {
	t.Helper()
	text := n.expand(fmt.Sprintf("{%s, \"plugins\": [\n%s\n]}\n", versions, strings.Join(plugins, ",\n")), ranges)
	must(t, os.WriteFile(n.path("net.d/new"), []byte(text), 0o644))
	must(t, os.Rename(n.path("net.d/new"), n.conflist()))
	n.awaitNetwork(t)
}

func (n *node) conflist() string { return n.path("net.d/10-net.conflist") }

// awaitNetwork waits until containerd has read the network configuration, and reports the network as ready.
func (n *node) awaitNetwork(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(n.conflist())
	must(t, err)
	eventually(t, "the network is ready", func() error {
		s, err := n.networkReady(t.Context())
		if err != nil {
			return err
		}
		var read struct {
			Networks []struct{ Config struct{ Name, Source string } }
		}
		if err := json.Unmarshal([]byte(s.Info["cniconfig"]), &read); err != nil {
			return err
		}
		for _, network := range read.Networks {
			if network.Config.Source == string(text) {
				return nil
			}
		}
		return fmt.Errorf("containerd has %+v", read)
	})
}

// networkReady returns why the network is not ready, as containerd reports it to the kubelet.
func (n *node) networkReady(ctx context.Context) (*statusResponse, error) {
	s := new(statusResponse)
	if err := n.call(ctx, "RuntimeService/Status", &statusRequest{Verbose: true}, s); err != nil {
		return nil, err
	}
	for _, c := range s.Status.Conditions {
		if c.Type == "NetworkReady" && !c.Status {
			return nil, errors.New(c.Reason)
		}
	}
	return s, nil
}

// logCalls puts a script in the place of tcpilot-cni, which logs the command.
func (n *node) logCalls(t *testing.T) {
	t.Helper()
	must(t, os.Rename(n.path("plugins/tcpilot-cni"), n.path("tcpilot-cni")))
	text := strings.ReplaceAll("#!/bin/sh\necho $CNI_COMMAND $CNI_CONTAINERID >>DIR/calls\nexec DIR/tcpilot-cni\n", "DIR", n.dir)
	must(t, os.WriteFile(n.path("plugins/tcpilot-cni"), []byte(text), 0o755))
	must(t, os.WriteFile(n.path("calls"), nil, 0o644))
}

// calls counts the calls of tcpilot-cni with a command, and of it with a sandbox.
func (n *node) calls(t *testing.T, command ...string) int {
	t.Helper()
	text, err := os.ReadFile(n.path("calls"))
	must(t, err)
	return strings.Count(string(text), strings.Join(command, " "))
}

// network is what pods could leave in the host's namespace: links, addresses, routes, permanent neighbours, tables of nftables.
func (n *node) network(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, args := range []string{"-br link", "-br address", "-4 route", "-6 route", "neigh show nud permanent"} {
		b.WriteString(n.host.Run(t, "ip", strings.Fields(args)...))
	}
	n.host.Do(t, func() {
		c, err := nftables.New()
		must(t, err)
		tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
		must(t, err)
		for _, table := range tables {
			fmt.Fprintln(&b, "table", table.Name)
		}
	})
	return b.String()
}

// left returns what pods have left: in the network, records, addresses of host-local, or programs on pods' devices.
func (n *node) left(t *testing.T) error {
	t.Helper()
	for _, pattern := range []string{n.records + "/*", n.path("leases/net/*[.:]*"), n.bpffs + "/*/pods/links/*"} {
		files, err := filepath.Glob(pattern)
		must(t, err)
		for _, f := range files {
			if !strings.HasPrefix(filepath.Base(f), "last_reserved_ip.") {
				return fmt.Errorf("%s is left", f)
			}
		}
	}
	if now := n.network(t); now != n.before {
		return fmt.Errorf("before:\n%s\nafter:\n%s", n.before, now)
	}
	return nil
}

// expectNothing fails unless no pod has left anything.
func (n *node) expectNothing(t *testing.T) {
	t.Helper()
	eventually(t, "nothing is left", func() error { return n.left(t) })
	if l := n.sandboxes(t); len(l) != 0 {
		t.Errorf("containerd has %d sandboxes", len(l))
	}
}

// expectPods waits until tcpilot status says that the daemon knows so many pods. What plugins could not ask it to read, it
// reads within 5 s.
func (n *node) expectPods(t *testing.T, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("tcpilot status says %d pods", want), func() error {
		text, err := n.tcpilot("status", "--json")
		if err != nil {
			return err
		}
		var s api.Status
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return err
		}
		if s.Pods == nil {
			s.Pods = new(api.PodStatus)
		}
		if s.Pods.Count != want {
			return fmt.Errorf("it says %+v", *s.Pods)
		}
		return nil
	})
}
