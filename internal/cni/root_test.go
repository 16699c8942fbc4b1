package cni

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podrecord"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// TestMain is also the plugin that makes the pods' links in the chains of root tests: this program
// under another name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == linkPlugin {
		skel.PluginMainFuncs(skel.CNIFuncs{Add: addLink, Del: removeLink, Check: nothing, GC: nothing, Status: nothing}, version.All, linkPlugin)
		os.Exit(0)
	}
	testenv.Main(m)
}

const linkPlugin = "tcpilot-test-link"

func nothing(*skel.CmdArgs) error { return nil }

// conf is the version that the plugin was asked in.
func conf(a *skel.CmdArgs) string {
	v, err := (&version.ConfigDecoder{}).Decode(a.StdinData)
	if err != nil {
		return "1.1.0"
	}
	return v
}

func addLink(a *skel.CmdArgs) error {
	h := fnv.New32a()
	io.WriteString(h, a.ContainerID+" "+a.IfName)
	sum := h.Sum32()
	address := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(sum >> 16), byte(sum >> 8), byte(sum) | 1}), 16)
	host := fmt.Sprintf("tp%08x", sum)
	mac, err := testenv.PodLink(a.Netns, a.IfName, host, address)
	if err != nil {
		return err
	}
	inner := 1
	r := &types100.Result{
		CNIVersion: "1.1.0",
		Interfaces: []*types100.Interface{{Name: host}, {Name: a.IfName, Mac: mac.String(), Sandbox: a.Netns}},
		IPs:        []*types100.IPConfig{{Interface: &inner, Address: net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(16, 32)}}},
		DNS:        types.DNS{Nameservers: []string{"10.0.0.10"}},
	}
	return types.PrintResult(r, conf(a))
}

func removeLink(a *skel.CmdArgs) error { return testenv.RemovePodLink(a.Netns, a.IfName) }

// chain is a network configuration, the programs that it names, and a runtime.
type chain struct {
	*libcni.CNIConfig
	list    *libcni.NetworkConfigList
	records podrecord.Dir
	bin     string
	log     *bytes.Buffer // standard error of the plugins
	// plain is the list with tcpilot-cni alone: for GC without DEL.
	plain *libcni.NetworkConfigList
}

// buildPlugins returns a directory with the program, and with the plugins that tests put before and behind it.
func buildPlugins(t *testing.T) (bin string) {
	testenv.Root(t)
	bin = t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(bin, "tcpilot-cni"), "github.com/tcpilot/tcpilot/cmd/tcpilot-cni")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build tcpilot-cni: %v\n%s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	plugins := map[string]string{linkPlugin: self}
	for _, tool := range []string{"host-local", "portmap"} { // of the CNI project; go.mod has them
		out, err := exec.Command("go", "tool", "-n", tool).Output() // builds it, and prints its path
		if err != nil {
			t.Fatalf("build %s: %v", tool, err)
		}
		plugins[tool] = strings.TrimSpace(string(out))
	}
	for name, path := range plugins {
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// newChain makes the test's goroutine the runtime, in a network namespace of its own, which no one
// else sees.
func newChain(t *testing.T, bin, version, socket string) *chain {
	t.Helper()
	testenv.NetNS(t).Enter(t)
	dir := t.TempDir()
	c := &chain{records: podrecord.Dir(filepath.Join(dir, "pods")), bin: bin, log: new(bytes.Buffer)}
	ours := fmt.Sprintf(`{"type": "tcpilot-cni", "dir": %q, "socket": %q, "timeout": "10s",
		"capabilities": {"bandwidth": true, "cgroupPath": true, "io.kubernetes.cri.pod-annotations": true}}`, c.records, socket)
	parse := func(plugins ...string) *libcni.NetworkConfigList {
		list, err := libcni.NetworkConfFromBytes([]byte(fmt.Sprintf(`{"cniVersion": %q, "name": "shop-net", "plugins": [%s]}`, version, strings.Join(plugins, ", "))))
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	c.list, c.plain = parse(fmt.Sprintf(`{"type": %q}`, linkPlugin), ours), parse(ours)
	c.CNIConfig = libcni.NewCNIConfigWithCacheDir([]string{c.bin}, filepath.Join(dir, "cache"),
		&invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: c.log}})
	return c
}

func attachment(ns, container, iface string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: container, NetNS: ns, IfName: iface,
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "web-" + container}, {"K8S_POD_UID", "f5"}},
		CapabilityArgs: map[string]any{
			"bandwidth":                         map[string]any{"EgressRate": 1000000, "EgressBurst": uint64(4294967295)},
			"cgroupPath":                        "/kubepods/podf5",
			"io.kubernetes.cri.pod-annotations": map[string]string{"tcpilot.io/profile": "bulk"},
		},
	}
}

// codeOf is the code of a plugin's error.
func codeOf(err error) code {
	var e *types.Error
	if errors.As(err, &e) {
		return code(e.Code)
	}
	return 0
}

// A runtime's library drives the program behind another plugin through the life of a pod, in every
// version that it may choose, with the daemon up and down.
func TestRootChain(t *testing.T) {
	bin := buildPlugins(t)
	for _, v := range []string{"0.4.0", "1.0.0", "1.1.0"} {
		for _, up := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/daemon=%v", v, up), func(t *testing.T) { lifeOfPod(t, bin, v, up) })
		}
	}
}

func lifeOfPod(t *testing.T, bin, v string, up bool) {
	ctx := t.Context()
	socket := filepath.Join(t.TempDir(), "none.sock")
	var mu sync.Mutex
	asked := 0
	if up {
		socket = daemon(t, podrecord.Dir(socket), func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			asked++
			io.WriteString(w, "{}")
		})
	}
	c := newChain(t, bin, v, socket)
	ns := testenv.NetNS(t)
	rt := attachment(ns.Path(), "c1", "eth0")

	if _, err := c.ValidateNetworkList(ctx, c.list); err != nil { // VERSION
		t.Error(err)
	}
	result, err := c.AddNetworkList(ctx, c.list, rt)
	if err != nil {
		t.Fatal(err)
	}
	r, err := types100.GetResult(result)
	if err != nil {
		t.Fatal(err)
	}
	if result.Version() != v || len(r.Interfaces) != 2 || r.Interfaces[1].Name != "eth0" || len(r.IPs) != 1 || r.DNS.Nameservers[0] != "10.0.0.10" {
		t.Errorf("version %s, result %+v", result.Version(), r)
	}
	ns.Do(t, func() {
		if _, err := net.InterfaceByName("eth0"); err != nil {
			t.Error(err)
		}
	})
	pods := records(t, c.records)
	if len(pods) != 1 {
		t.Fatalf("records %+v", pods)
	}
	p := pods[0]
	if p.NetNS != ns.Path() || p.Cookie < 2 || p.Namespace != "shop" || p.Name != "web-c1" || p.UID != "f5" || p.Cgroup != "/kubepods/podf5" ||
		p.Annotations["tcpilot.io/profile"] != "bulk" || p.Bandwidth != (pod.Bandwidth{Egress: 1000000}) || p.Network != "shop-net" {
		t.Errorf("record %+v", p)
	}
	outer, err := net.InterfaceByName(r.Interfaces[0].Name)
	if err != nil {
		t.Fatal(err)
	}
	if p.Device != pod.Veth || p.Index < 2 || p.HostIndex != outer.Index || len(p.Addresses) != 1 || p.Addresses[0].String() != r.IPs[0].Address.String() {
		t.Errorf("recorded interface %+v; the other end has index %d, the result %v", p.Link, outer.Index, r.IPs)
	}
	if err := c.CheckNetworkList(ctx, c.list, rt); err != nil {
		t.Error(err)
	}
	// The record of another namespace, and none, are found.
	p.Cookie++
	if err := c.records.Put(&p); err != nil {
		t.Fatal(err)
	}
	if err := c.CheckNetworkList(ctx, c.list, rt); codeOf(err) != codeOtherNetNS {
		t.Errorf("CHECK with the record of another namespace: %v", err)
	}
	if _, err := c.records.Delete(p.Key()); err != nil {
		t.Fatal(err)
	}
	if err := c.CheckNetworkList(ctx, c.list, rt); codeOf(err) != codeNoRecord {
		t.Errorf("CHECK without a record: %v", err)
	}
	p.Cookie--
	if err := c.records.Put(&p); err != nil {
		t.Fatal(err)
	}
	if v == "1.1.0" {
		if err := c.GetStatusNetworkList(ctx, c.list); err != nil {
			t.Error(err)
		}
		if err := c.GCNetworkList(ctx, c.list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}}}); err != nil {
			t.Error(err)
		}
		if len(records(t, c.records)) != 1 {
			t.Error("GC deleted a valid record")
		}
	}
	if err := c.DelNetworkList(ctx, c.list, rt); err != nil { // with netns and prevResult
		t.Error(err)
	}
	if pods := records(t, c.records); len(pods) != 0 {
		t.Errorf("after DEL: %+v", pods)
	}
	gone := attachment("", "c1", "eth0")
	for range 2 {
		if err := c.DelNetworkList(ctx, c.list, gone); err != nil { // with neither
			t.Error(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if want := 2; up && (asked != want || c.log.Len() > 0) {
		t.Errorf("the daemon was asked %d times, want %d; messages %q", asked, want, c.log)
	}
	if text := "ADD pod shop/web-c1: tcpilot is not running (no socket at " + socket + ")"; !up && !strings.Contains(c.log.String(), text) {
		t.Errorf("messages %q, want %q", c.log, text)
	}
}

// Pods come and go at 8 at a time; each finds its own record, and nothing is left.
func TestRootManyAtOnce(t *testing.T) {
	testenv.Root(t)
	c := newChain(t, buildPlugins(t), "1.1.0", filepath.Join(t.TempDir(), "none.sock"))
	ns := testenv.NetNS(t)
	config := string(plainConfig(t, c, nil))
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			for i := range 10 {
				container := fmt.Sprintf("c%d-%d", w, i)
				for _, command := range []string{"ADD", "CHECK", "CHECK", "DEL", "DEL"} {
					if out, err := c.run(t.Context(), command, container, ns.Path(), config); err != nil {
						t.Errorf("%s %s: %v: %s", command, container, err, out)
					}
				}
			}
		})
	}
	workers.Wait()
	if left := tree(t, string(c.records)); len(left) != 1 {
		t.Errorf("left %q", left)
	}
}

// plainConfig is the request configuration of tcpilot-cni with a previous result and more keys.
func plainConfig(t *testing.T, c *chain, keys map[string]any) []byte {
	t.Helper()
	all := map[string]any{"name": c.plain.Name, "cniVersion": c.plain.CNIVersion, "prevResult": raw(`{"cniVersion": "1.1.0", "ips": []}`)}
	maps.Copy(all, keys)
	p, err := libcni.InjectConf(c.plain.Plugins[0], all)
	if err != nil {
		t.Fatal(err)
	}
	return p.Bytes
}

// run executes tcpilot-cni without the library; the end of ctx kills it with SIGKILL.
func (c *chain) run(ctx context.Context, command, container, ns, config string) ([]byte, error) {
	return c.runPlugin(ctx, "tcpilot-cni", command, container, ns, config)
}

// runPlugin returns when the plugin and all that it has started have ended: an IPAM plugin whose ADD goes on after
// the kill would allocate an address behind the DEL that follows.
func (c *chain) runPlugin(ctx context.Context, plugin, command, container, ns, config string) ([]byte, error) {
	ended, held, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ended.Close()
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, plugin))
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + container, "CNI_IFNAME=eth0", "CNI_NETNS=" + ns, "CNI_PATH=" + c.bin,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=" + container}
	cmd.Stdin, cmd.ExtraFiles = strings.NewReader(config), []*os.File{held}
	out, err := cmd.Output()
	held.Close()
	io.Copy(io.Discard, ended)
	return out, err
}

// The program is killed at random points of ADD and DEL of 50 attachments or more. Readers see whole records
// only, and GC leaves those of attachments that the runtime still has, and nothing else.
func TestRootKilled(t *testing.T) {
	testenv.Root(t)
	socket := daemon(t, podrecord.Dir(filepath.Join(t.TempDir(), "pods")), func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "{}") })
	c := newChain(t, buildPlugins(t), "1.1.0", socket)
	ns := testenv.NetNS(t)
	// Large records take time to write.
	config := string(plainConfig(t, c, map[string]any{"runtimeConfig": map[string]any{
		"io.kubernetes.cri.pod-annotations": map[string]string{"large": strings.Repeat("x", 1<<20)}}}))

	start := time.Now()
	for i := range 5 {
		if out, err := c.run(t.Context(), "ADD", fmt.Sprint("whole", i), ns.Path(), config); err != nil {
			t.Fatalf("ADD: %v: %s", err, out)
		}
	}
	usual := time.Since(start) / 5
	r := rand.New(rand.NewPCG(1, 2))
	killed, finished := 0, 0
	kill := func(command, container string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.Float64()*1.2*float64(usual)))
		defer cancel()
		_, err := c.run(ctx, command, container, ns.Path(), config)
		switch {
		case err == nil:
			finished++
		case ctx.Err() != nil:
			killed++
		default:
			t.Errorf("%s %s: %v", command, container, err)
		}
	}
	for i := 0; i < 50 || killed < 20 && i < 500; i++ {
		container := fmt.Sprint("c", i)
		kill("ADD", container)
		if i%3 == 0 {
			kill("DEL", container)
		}
		records(t, c.records) // fails if one is damaged
	}
	left := tree(t, string(c.records))[1:]
	half := slices.DeleteFunc(slices.Clone(left), func(path string) bool { return !strings.HasSuffix(path, ".tmp") })
	t.Logf("an ADD takes %v; %d processes were killed, %d had ended before; %d files, %d of them temporary", usual, killed, finished, len(left), len(half))
	if killed < 20 {
		t.Errorf("only %d processes were killed", killed)
	}
	valid := []types.GCAttachment{{ContainerID: "whole1", IfName: "eth0"}, {ContainerID: "whole3", IfName: "eth0"}}
	if err := c.GCNetworkList(t.Context(), c.plain, &libcni.GCArgs{ValidAttachments: valid}); err != nil {
		t.Error(err)
	}
	if got, want := tree(t, string(c.records))[1:], []string{"/whole1@eth0.json", "/whole3@eth0.json"}; !slices.Equal(got, want) {
		t.Errorf("left %q, want %q", got, want)
	}
	if err := c.GCNetworkList(t.Context(), c.plain, &libcni.GCArgs{}); err != nil {
		t.Error(err)
	}
	if left := tree(t, string(c.records)); len(left) != 1 {
		t.Errorf("left %q", left)
	}
}
