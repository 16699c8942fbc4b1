package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
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
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/nftables"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/poddevice"
	"github.com/tcpilot/tcpilot/internal/podnet"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// cluster is a node whose pods' interfaces tcpilot-cni makes, with addresses of host-local, and a
// host outside.
type cluster struct {
	*chain
	host, outside *testenv.NS
	own, wire     testenv.End // of the host, and of the outside
	leases        string      // directory of host-local
	before        string      // state of the host without pods
}

// newCluster makes the test's goroutine's thread that of the host. keys are more keys of
// tcpilot-cni, and behind are the plugins behind it.
func newCluster(t *testing.T, bin, version, keys string, behind ...string) *cluster {
	t.Helper()
	c := &cluster{host: testenv.NetNS(t), outside: testenv.NetNS(t)}
	c.host.Run(t, "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.all.accept_dad=0") // so that the wire is usable at once
	c.own, c.wire = testenv.Veth(t, c.host, c.outside)
	c.chain = newChain(t, bin, version, filepath.Join(t.TempDir(), "none.sock"))
	c.host.Enter(t)
	c.host.Run(t, "ip", "-4", "route", "add", "default", "via", c.wire.V4.String())
	c.host.Run(t, "ip", "-6", "route", "add", "default", "via", c.wire.V6.String())
	c.leases = filepath.Join(t.TempDir(), "leases")
	ipam := fmt.Sprintf(`{"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd88::/64"}]]}`, c.leases)
	if strings.Contains(keys, `"ipam"`) {
		keys = strings.ReplaceAll(keys, "LEASES", c.leases)
	} else {
		keys += `, "ipam": ` + ipam
	}
	ours := fmt.Sprintf(`{"type": "tcpilot-cni", "dir": %q, "socket": %q, "timeout": "10s", "capabilities": {"io.kubernetes.cri.pod-annotations": true}, %s}`,
		c.records, "/none.sock", strings.TrimPrefix(keys, ", "))
	parse := func(plugins ...string) *libcni.NetworkConfigList {
		list, err := libcni.NetworkConfFromBytes([]byte(fmt.Sprintf(`{"cniVersion": %q, "name": "shop-net", "plugins": [%s]}`, version, strings.Join(plugins, ", "))))
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	for i := range behind {
		behind[i] = strings.ReplaceAll(behind[i], "RECORDS", string(c.records))
	}
	c.list, c.plain = parse(append([]string{ours}, behind...)...), parse(ours)
	c.before = c.state(t)
	return c
}

// state is what the host's namespace has of links, addresses, routes, permanent neighbours and nftables' tables.
func (c *cluster) state(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, args := range []string{"-br link", "-br address", "-4 route", "-6 route", "neigh show nud permanent"} {
		b.WriteString(c.host.Run(t, "ip", strings.Fields(args)...))
	}
	c.host.Do(t, func() {
		n, err := nftables.New()
		if err != nil {
			t.Fatal(err)
		}
		tables, err := n.ListTablesOfFamily(nftables.TableFamilyINet)
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range tables {
			b.WriteString("table " + table.Name + "\n")
		}
	})
	return b.String()
}

// expectNothing fails unless no pod has left anything.
func (c *cluster) expectNothing(t *testing.T) {
	t.Helper()
	if after := c.state(t); after != c.before {
		t.Errorf("before:\n%s\nafter:\n%s", c.before, after)
	}
	if left := c.leased(t); len(left) != 0 {
		t.Errorf("addresses %q are not released", left)
	}
	if left := records(t, c.records); len(left) != 0 {
		t.Errorf("records %+v", left)
	}
}

// leased lists the addresses that host-local has given.
func (c *cluster) leased(t *testing.T) (addresses []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.leases, "shop-net", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if _, err := netip.ParseAddr(filepath.Base(f)); err == nil {
			addresses = append(addresses, filepath.Base(f))
		}
	}
	return addresses
}

// speaks sends a line over TCP, and returns the address that the server sees. port is the server's,
// and to the address that the client connects to.
func speaks(t *testing.T, client, server *testenv.NS, to string, listen, connect int) netip.Addr {
	t.Helper()
	return client.Speak(t, server, fmt.Sprintf(":%d", listen), net.JoinHostPort(to, fmt.Sprint(connect)), 5*time.Second)
}

// kinds are the values of device that the kernel can do. Netkit is tried under other kernels (test/vm).
func kinds(t *testing.T) (list []string) {
	testenv.Root(t)
	for _, s := range poddevice.Try() {
		switch {
		case s.Err != nil:
			t.Log(s.Err)
		case s.Device == pod.Netkit:
			list = append(list, "netkit", "netkit-l2", "auto")
		default:
			list = append(list, string(s.Device))
		}
	}
	return list
}

// A runtime's library drives the main plugin with host-local and portmap through the life of two
// pods: they reach each other, the host and the outside, and are reached by a port of the host.
func TestRootMainPlugin(t *testing.T) {
	const portmapConf = `{"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}`
	bin := buildPlugins(t)
	for _, v := range []string{"0.4.0", "1.0.0", "1.1.0"} {
		for _, device := range kinds(t) {
			t.Run(v+"/"+device, func(t *testing.T) {
				c := newCluster(t, bin, v, fmt.Sprintf(`"device": %q, "ipMasq": true`, device), portmapConf)
				lifeOfMainPods(t, c, v, device)
			})
		}
	}
}

func lifeOfMainPods(t *testing.T, c *cluster, v, device string) {
	ctx := t.Context()
	a, b := testenv.NetNS(t), testenv.NetNS(t)
	b.Run(t, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1") // as some runtimes do
	ra, rb := attachment(a.Path(), "a", "eth0"), attachment(b.Path(), "b", "eth0")
	for _, rt := range []*libcni.RuntimeConf{ra, rb} {
		rt.CapabilityArgs = map[string]any{}
	}
	ra.CapabilityArgs["portMappings"] = []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}
	if _, err := c.ValidateNetworkList(ctx, c.list); err != nil {
		t.Error(err)
	}
	result, err := c.AddNetworkList(ctx, c.list, ra)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.AddNetworkList(ctx, c.list, rb); err != nil {
		t.Fatal(err)
	}
	r, err := types100.GetResult(result)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Interfaces) != 2 || len(r.IPs) != 2 || len(r.Routes) != 2 || r.Interfaces[1].Sandbox != a.Path() {
		t.Fatalf("result %+v", r)
	}
	p, err := c.records.Get(pod.Key{Container: "a", Interface: "eth0"})
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := net.InterfaceByName(r.Interfaces[0].Name); want == nil || p.HostIndex != want.Index || p.Index < 2 || len(p.Addresses) != 2 || !p.Made {
		t.Errorf("record %+v; device %+v", p, want)
	}
	if want := map[string]pod.Device{"netkit-l2": pod.Netkit, "auto": pod.Netkit}[device]; want != "" && p.Device != want || want == "" && string(p.Device) != device {
		t.Errorf("device %q was made for %q", p.Device, device)
	}
	b4, b6 := "10.88.0.3", "fd88::3"
	if got := speaks(t, a, b, b4, 80, 80).String(); got != "10.88.0.2" {
		t.Errorf("b sees a as %s", got)
	}
	if got := speaks(t, a, b, b6, 80, 80).String(); got != "fd88::2" {
		t.Errorf("b sees a as %s", got)
	}
	for _, e := range []struct{ host, outside netip.Addr }{{c.own.V4, c.wire.V4}, {c.own.V6, c.wire.V6}} {
		if got := speaks(t, a, c.outside, e.outside.String(), 80, 80); got != e.host {
			t.Errorf("the outside sees a as %s, want %s", got, e.host)
		}
		speaks(t, a, c.host, e.host.String(), 80, 80)
	}
	speaks(t, c.outside, a, c.own.V4.String(), 80, 8080) // the port of the host
	for _, rt := range []*libcni.RuntimeConf{ra, rb} {
		if err := c.CheckNetworkList(ctx, c.list, rt); err != nil {
			t.Error(err)
		}
	}
	a.Run(t, "ip", "route", "del", "default")
	if err := c.CheckNetworkList(ctx, c.list, ra); codeOf(err) != codeChanged || !strings.Contains(err.Error(), "route to 0.0.0.0/0") {
		t.Errorf("CHECK without a route: %v", err)
	}
	if _, err := c.AddNetworkList(ctx, c.plain, rb); codeOf(err) != codeExists { // of an attachment that is there
		t.Errorf("a second ADD: %v", err)
	}
	speaks(t, b, c.outside, c.wire.V4.String(), 80, 80)
	if v == "1.1.0" {
		if err := c.GetStatusNetworkList(ctx, c.list); err != nil {
			t.Error(err)
		}
		if err := c.GCNetworkList(ctx, c.plain, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "a", IfName: "eth0"}, {ContainerID: "b", IfName: "eth0"}}}); err != nil {
			t.Error(err)
		}
		speaks(t, b, c.outside, c.wire.V4.String(), 80, 80)
	}
	if err := c.DelNetworkList(ctx, c.list, ra); err != nil {
		t.Error(err)
	}
	speaks(t, b, c.outside, c.wire.V4.String(), 80, 80)
	for range 2 { // with neither namespace nor previous result the second time
		if err := c.DelNetworkList(ctx, c.list, rb); err != nil {
			t.Error(err)
		}
		rb.NetNS = ""
	}
	c.expectNothing(t)
	if c.log.Len() > 0 && !strings.Contains(c.log.String(), "tcpilot is not running") {
		t.Errorf("messages %q", c.log)
	}
}

// With a chained tcpilot-cni behind the main one, all commands find one record, which is complete, and DEL leaves
// nothing.
func TestRootMainPluginBehindItself(t *testing.T) {
	testenv.Root(t)
	ctx := t.Context()
	c := newCluster(t, buildPlugins(t), "1.1.0", `"ipMasq": true, "device": "veth"`,
		`{"type": "tcpilot-cni", "dir": "RECORDS", "socket": "/none.sock", "capabilities": {"cgroupPath": true}}`)
	ns := testenv.NetNS(t)
	rt := attachment(ns.Path(), "a", "eth0")
	if _, err := c.AddNetworkList(ctx, c.list, rt); err != nil {
		t.Fatal(err)
	}
	if r := records(t, c.records); len(r) != 1 || !r[0].Made || !r[0].Chained || r[0].HostIndex == 0 || len(r[0].Addresses) != 2 || r[0].Cgroup == "" || r[0].Annotations == nil {
		t.Errorf("records %+v", r)
	}
	valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "a", IfName: "eth0"}}}
	if err := errors.Join(c.CheckNetworkList(ctx, c.list, rt), c.GCNetworkList(ctx, c.list, valid)); err != nil {
		t.Error(err)
	}
	speaks(t, ns, c.outside, c.wire.V4.String(), 80, 80)
	n, err := nftables.New()
	if err == nil {
		n.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "tcpilot-shop-net"})
		err = n.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := c.CheckNetworkList(ctx, c.list, rt); codeOf(err) != codeChanged || !strings.Contains(err.Error(), "the pod is not masqueraded: there is no nftables table inet tcpilot-shop-net") {
		t.Errorf("CHECK without rules: %v", err)
	}
	for range 2 {
		if err := c.DelNetworkList(ctx, c.list, rt); err != nil {
			t.Error(err)
		}
		c.expectNothing(t)
	}
}

// What ADD began is undone when a step fails, and what others have is left alone.
func TestRootMainPluginFails(t *testing.T) {
	testenv.Root(t)
	ctx := t.Context()
	// Two addresses for pods: .2 and .3.
	c := newCluster(t, buildPlugins(t), "1.1.0", `"ipMasq": true, "device": "veth", "ipam": {"type": "host-local", "dataDir": "LEASES", "ranges": [[{"subnet": "10.88.0.0/24", "rangeStart": "10.88.0.2", "rangeEnd": "10.88.0.3"}]]}`)
	ns := testenv.NetNS(t)
	rt := func(container string) *libcni.RuntimeConf { return attachment(ns.Path(), container, "eth0") }

	// The pod has an interface of that name.
	ns.Run(t, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0-peer")
	if _, err := c.AddNetworkList(ctx, c.list, rt("a")); codeOf(err) != codeExists {
		t.Errorf("eth0 is in the pod: %v", err)
	}
	c.expectNothing(t)
	if err := c.DelNetworkList(ctx, c.list, rt("a")); err != nil { // as runtimes do after an error
		t.Error(err)
	}
	ns.Run(t, "ip", "link", "show", "eth0") // DEL has not taken it for its own
	ns.Run(t, "ip", "link", "del", "eth0")

	// The host has a device of that name, which is another program's.
	foreign := podnet.HostName(pod.Key{Container: "a", Interface: "eth0"})
	c.host.Run(t, "ip", "link", "add", foreign, "type", "veth", "peer", "name", "foreign")
	if _, err := c.AddNetworkList(ctx, c.list, rt("a")); codeOf(err) != codeExists {
		t.Errorf("%s is on the host: %v", foreign, err)
	}
	if err := c.DelNetworkList(ctx, c.list, rt("a")); err != nil {
		t.Error(err)
	}
	c.host.Run(t, "ip", "link", "del", foreign)
	c.expectNothing(t)

	// The route of the address leads elsewhere.
	for _, to := range []string{"10.88.0.2/32", "10.88.0.3/32"} {
		c.host.Run(t, "ip", "route", "add", to, "dev", c.own.Name)
	}
	if _, err := c.AddNetworkList(ctx, c.list, rt("a")); codeOf(err) != codeIO || !strings.Contains(err.Error(), "add route to 10.88.0.") {
		t.Errorf("the route exists: %v", err)
	}
	for _, to := range []string{"10.88.0.2/32", "10.88.0.3/32"} {
		c.host.Run(t, "ip", "route", "del", to)
	}
	c.expectNothing(t)

	// There is no address left.
	for i, container := range []string{"a", "b", "c"} {
		own := testenv.NetNS(t)
		_, err := c.AddNetworkList(ctx, c.list, attachment(own.Path(), container, "eth0"))
		if i < 2 && err != nil {
			t.Error(err)
		}
		if i == 2 && (err == nil || !strings.Contains(err.Error(), "ADD of IPAM plugin host-local")) {
			t.Errorf("no address is left: %v", err)
		}
	}
	// An ADD of an attachment that there is undoes nothing of it, also with another namespace.
	if _, err := c.AddNetworkList(ctx, c.list, rt("a")); codeOf(err) != codeExists {
		t.Errorf("a second ADD: %v", err)
	}
	if n := len(records(t, c.records)); n != 2 || len(c.leased(t)) != 2 {
		t.Errorf("%d records, addresses %q", n, c.leased(t))
	}

	// GC deletes all that is not valid, without DEL, also if the runtime has lost the pod's namespace.
	c.CNIConfig = libcni.NewCNIConfigWithCacheDir([]string{c.bin}, t.TempDir(), nil)
	if err := c.GCNetworkList(ctx, c.plain, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "b", IfName: "eth0"}}}); err != nil {
		t.Error(err)
	}
	if left := records(t, c.records); len(left) != 1 || left[0].Container != "b" || len(c.leased(t)) != 1 {
		t.Errorf("left %+v, %q", left, c.leased(t))
	}
	if err := c.GCNetworkList(ctx, c.plain, &libcni.GCArgs{}); err != nil {
		t.Error(err)
	}
	c.expectNothing(t)
}

// Pods come and go at 8 at a time; the program is killed at random points of ADD and DEL. DEL of some
// and GC of the others leave nothing.
func TestRootMainPluginKilled(t *testing.T) {
	testenv.Root(t)
	c := newCluster(t, buildPlugins(t), "1.1.0", `"ipMasq": true`)
	conf := string(mainConfOf(t, c))
	stay := testenv.NetNS(t)
	if out, err := c.run(t.Context(), "ADD", "stays", stay.Path(), conf); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	start := time.Now()
	first := testenv.NetNS(t)
	for _, command := range []string{"ADD", "DEL"} {
		if out, err := c.run(t.Context(), command, "first", first.Path(), conf); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	usual := time.Since(start) / 2
	var mu sync.Mutex
	killed := 0
	var workers sync.WaitGroup
	for w := range 8 {
		r := rand.New(rand.NewPCG(uint64(w), 1))
		var namespaces []*testenv.NS
		for range 6 {
			namespaces = append(namespaces, testenv.NetNS(t))
		}
		workers.Go(func() {
			c.host.Do(t, func() {
				for i, ns := range namespaces {
					container := fmt.Sprintf("c%d-%d", w, i)
					for _, command := range []string{"ADD", "DEL"}[:1+i%2] {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.Float64()*3*float64(usual)))
						if out, err := c.run(ctx, command, container, ns.Path(), conf); err != nil && ctx.Err() == nil {
							t.Errorf("%s %s: %v: %s", command, container, err, out)
						} else if err != nil {
							mu.Lock()
							killed++
							mu.Unlock()
						}
						cancel()
					}
					if i%3 != 0 {
						continue
					}
					for range 2 {
						if out, err := c.run(t.Context(), "DEL", container, "", conf); err != nil {
							t.Errorf("DEL %s: %v: %s", container, err, out)
						}
					}
				}
			})
		})
	}
	workers.Wait()
	t.Logf("ADD and DEL take %v; %d processes were killed; left: %d records, %d addresses", usual, killed, len(records(t, c.records)), len(c.leased(t)))
	if killed < 10 {
		t.Errorf("only %d processes were killed", killed)
	}
	if err := c.GCNetworkList(t.Context(), c.plain, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "stays", IfName: "eth0"}}}); err != nil {
		t.Error(err)
	}
	if left := records(t, c.records); len(left) != 1 || len(c.leased(t)) != 2 {
		t.Errorf("left %+v, %q", left, c.leased(t))
	}
	speaks(t, stay, c.outside, c.wire.V4.String(), 80, 80)
	if out, err := c.run(t.Context(), "DEL", "stays", stay.Path(), conf); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	c.expectNothing(t)
}

// mainConfOf is the request configuration of tcpilot-cni as the main plugin.
func mainConfOf(t *testing.T, c *cluster) []byte {
	t.Helper()
	p, err := libcni.InjectConf(c.plain.Plugins[0], map[string]any{"name": c.plain.Name, "cniVersion": c.plain.CNIVersion})
	if err != nil {
		t.Fatal(err)
	}
	return p.Bytes
}

// daemon starts tcpilot itself with a rule for all pods, and returns its socket.
func (c *cluster) daemon(t *testing.T) (socket string) {
	t.Helper()
	dir := t.TempDir()
	bin, bpffs, config := filepath.Join(dir, "tcpilot"), filepath.Join(dir, "bpf"), filepath.Join(dir, "tcpilot.yaml")
	if out, err := exec.Command("go", "build", "-o", bin, "github.com/tcpilot/tcpilot/cmd/tcpilot").CombinedOutput(); err != nil {
		t.Fatalf("build tcpilot: %v\n%s", err, out)
	}
	if err := os.Mkdir(bpffs, 0o700); err != nil {
		t.Fatal(err)
	}
	testenv.MountBPFFS(t, bpffs)
	text := fmt.Sprintf(`cgroup: %s
bpffs: %s
run_dir: %s
state_dir: %s
metrics: {listen: ""}
pods: {dir: %s}
rules: [{name: pods, match: {pod: {namespace: "*"}}, set: {cc: reno}}]
`, testenv.Cgroup(t).Path, bpffs, filepath.Join(dir, "run"), filepath.Join(dir, "state"), c.records)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "run", "tcpilot.sock")
	c.host.Start(t, bin, "run", "--config", config)
	for range 200 {
		if exec.Command(bin, "status", "--json", "--socket", socket).Run() == nil {
			return socket
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("tcpilot is not ready")
	return ""
}

// 1,000 pods come and go at 8 at a time beside the traffic of another one: how long does an ADD take
// beyond what its IPAM plugin takes? Nothing is left.
func TestMeasureMainPlugin(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		measureMainPlugin(t, m, "without a daemon", func(*cluster) string { return "/none.sock" })
		measureMainPlugin(t, m, "with a daemon", func(c *cluster) string { return c.daemon(t) })
	})
}

func measureMainPlugin(t *testing.T, m *testenv.Measurement, how string, socket func(*cluster) string) {
	t.Run(how, func(t *testing.T) {
		const workers, each = 8, 125
		c := newCluster(t, buildPlugins(t), "1.1.0", `"ipMasq": true`)
		conf := strings.Replace(string(mainConfOf(t, c)), "/none.sock", socket(c), 1)
		stay := testenv.NetNS(t)
		if out, err := c.run(t.Context(), "ADD", "stays", stay.Path(), conf); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		l := c.outside.Listen(t, "tcp", net.JoinHostPort(c.wire.V4.String(), "0"))
		served := make(chan struct{})
		go func() {
			defer close(served)
			if s, err := l.Accept(); err == nil {
				io.Copy(s, s)
				s.Close()
			}
		}()
		flow := stay.Dial(t, "tcp", l.Addr().String())
		defer func() { flow.Close(); <-served }()
		var mu sync.Mutex
		times := map[string][]time.Duration{}
		cycle := func(plugin, container, ns string) {
			start := time.Now()
			out, err := c.runPlugin(t.Context(), plugin, "ADD", container, ns, conf)
			took := time.Since(start)
			if err == nil {
				out, err = c.runPlugin(t.Context(), plugin, "DEL", container, ns, conf)
			}
			if err != nil {
				t.Errorf("%s %s: %v: %s", plugin, container, err, out)
			}
			mu.Lock()
			defer mu.Unlock()
			times[plugin] = append(times[plugin], took)
		}
		var group sync.WaitGroup
		for w := range workers {
			ns := testenv.NetNS(t)
			group.Go(func() {
				c.host.Do(t, func() {
					for i := range each {
						cycle("tcpilot-cni", fmt.Sprintf("c%d-%d", w, i), ns.Path())
						if i%5 == 0 {
							cycle("host-local", fmt.Sprintf("h%d-%d", w, i), ns.Path())
						}
					}
				})
			})
		}
		group.Wait()
		flow.SetDeadline(time.Now().Add(5 * time.Second))
		io.WriteString(flow, "hello")
		if _, err := io.ReadFull(flow, make([]byte, 5)); err != nil {
			t.Errorf("the connection of the other pod: %v", err)
		}
		p99 := func(plugin string) time.Duration {
			slices.Sort(times[plugin])
			return times[plugin][len(times[plugin])*99/100]
		}
		beyond := p99("tcpilot-cni") - p99("host-local")
		t.Logf("p99 of ADD: %v, of host-local alone %v; median %v and %v", p99("tcpilot-cni"), p99("host-local"),
			times["tcpilot-cni"][workers*each/2], times["host-local"][len(times["host-local"])/2])
		m.Holds("p99 of 1,000 ADDs at 8 at a time, beyond host-local's, "+how, "below 100ms", beyond < 100*time.Millisecond, beyond.Round(time.Millisecond).String())
		if out, err := c.run(t.Context(), "DEL", "stays", stay.Path(), conf); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		c.expectNothing(t)
	})
}
