package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/kubeapi/kubeapitest"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// clusterNode is a node of a cluster, whose network is what 'tcpilot cni install --main' has written, and a pod on it.
type clusterNode struct {
	*world
	*tcpilot
	name       string
	conf       string
	runtime    *libcni.CNIConfig
	list       *libcni.NetworkConfigList
	kubeconfig string
	pod        *clusterPod
}

// clusterPod is a pod of a clusterNode.
type clusterPod struct {
	*topology.Host
	address4, addr6 netip.Addr
}

func newClusterNode(t *testing.T, name string, kubeconfig func(w *world) string) *clusterNode {
	t.Helper()
	w := newPlainWorld(t, "far")
	p := newTcpilot(t, w, settings{})
	n := &clusterNode{world: w, tcpilot: p, name: name, conf: filepath.Join(p.dir, "net.d")}
	n.kubeconfig = kubeconfig(w)
	n.configurePods(t, "")
	bin := filepath.Join(p.dir, "bin")
	must(t, os.Mkdir(bin, 0o755))
	for _, tool := range []string{"host-local", "portmap"} {
		out, err := exec.Command("go", "tool", "-n", tool).Output() // builds it, and prints its path; of the CNI project
		must(t, err)
		must(t, os.Symlink(strings.TrimSpace(string(out)), filepath.Join(bin, tool)))
	}
	n.runtime = libcni.NewCNIConfigWithCacheDir([]string{bin}, filepath.Join(p.dir, "cache"), nil)
	n.start(t)
	out, err := w.star.Client.Run(p.bin, "cni", "install", "--main", "--conf-dir", n.conf, "--bin-dir", bin, "--pods-dir", p.dir+"/pods", "--socket", p.socket,
		"--kubeconfig", n.kubeconfig, "--node", name, "--cluster-cidr", "10.99.0.0/16,fd99::/48")
	if must(t, err); !strings.Contains(out, "wrote "+n.conf+"/10-tcpilot.conflist, with tcpilot-cni as the main plugin and addresses of 10.99.") {
		t.Fatal(out)
	}
	text, err := os.ReadFile(filepath.Join(n.conf, "10-tcpilot.conflist"))
	must(t, err)
	// Only the directory of addresses is another one: they are in /var/lib, which both nodes share here.
	text = []byte(strings.Replace(string(text), `"type": "host-local"`, fmt.Sprintf(`"type": "host-local", "dataDir": %q`, p.dir+"/leases"), 1))
	n.list, err = libcni.NetworkConfFromBytes(text)
	must(t, err)
	return n
}

// configurePods writes the daemon's configuration, with further keys of pods.
func (n *clusterNode) configurePods(t *testing.T, more string) {
	t.Helper()
	n.configure(t, settings{keys: fmt.Sprintf("pods: {dir: %s/pods, node_routes: on, kubernetes: {kubeconfig: %s, node: %s}%s}\n", n.dir, n.kubeconfig, n.name, more),
		rules: "  - {name: all, learn: {arms: [cubic]}}\n"})
}

func (n *clusterNode) runtimeConf(pod *topology.Host) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: pod.Name + "-" + n.name, NetNS: pod.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", pod.Name + "-" + n.name}}}
}

// addPod starts a pod as a container runtime does.
func (n *clusterNode) addPod(t *testing.T, name string) *clusterPod {
	t.Helper()
	host, err := n.net.Host(name)
	must(t, err)
	must(t, n.star.Client.Do(func() error {
		_, err := n.runtime.AddNetworkList(t.Context(), n.list, n.runtimeConf(host))
		return err
	}))
	pod := &clusterPod{Host: host}
	out, err := host.Run("ip", "-br", "address", "show", "eth0")
	must(t, err)
	for text := range strings.FieldsSeq(out) {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil || p.Addr().IsLinkLocalUnicast():
		case p.Addr().Is4():
			pod.address4 = p.Addr()
		default:
			pod.addr6 = p.Addr()
		}
	}
	return pod
}

// nodeRoutes are the routes of tcpilot's protocol, and missing why there are no others.
func (n *clusterNode) nodeRoutes(t *testing.T) (list []string) {
	t.Helper()
	for _, family := range []string{"-4", "-6"} {
		out, err := n.star.Client.Run("ip", family, "route", "show", "proto", "84")
		must(t, err)
		for line := range strings.Lines(out) {
			list = append(list, strings.Join(strings.Fields(line)[:3], " "))
		}
	}
	return list
}

func (n *clusterNode) expectRoutes(t *testing.T, when string, want ...string) {
	t.Helper()
	eventually(t, 10*time.Second, when, func() error {
		if got := n.nodeRoutes(t); !slices.Equal(got, want) {
			return fmt.Errorf("%s has the routes %q, want %q", n.name, got, want)
		}
		return nil
	})
}

// missing is why some routes do not exist, as status says it.
func (n *clusterNode) missing(t *testing.T) string {
	t.Helper()
	for _, f := range ask[api.Status](t, n.tcpilot, "status").Features {
		if f.Name == "routes to pods of other nodes" {
			return f.Why
		}
	}
	return "not a feature"
}

// seenAs is the address from which one pod's connection arrives at an address of another one.
func seenAs(t *testing.T, from, to *topology.Host, address netip.Addr) netip.Addr {
	t.Helper()
	var l net.Listener
	must(t, to.Do(func() (err error) { l, err = net.Listen("tcp", netip.AddrPortFrom(address, 0).String()); return err }))
	defer l.Close()
	seen := make(chan netip.Addr, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			seen <- c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
			c.Close()
		}
	}()
	must(t, from.Do(func() error {
		c, err := net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
		if err == nil {
			c.Close()
		}
		return err
	}))
	return <-seen
}

// Two nodes on one link have the network configurations that 'cni install --main' writes and the routes that the daemons keep: their pods
// reach each other by their own addresses. Routes go with the node, and others' routes stay.
func TestRootNodeRoutes(t *testing.T) {
	t.Parallel()
	server := kubeapitest.New(t, nil)
	server.PutNode(kubeapitest.Node{Name: "a", UID: "1", PodCIDRs: []string{"10.99.1.0/24", "fd99:0:0:1::/64"}, Addresses: []string{"192.0.2.1", "2001:db8:99::1"}})
	nodeB := kubeapitest.Node{Name: "b", UID: "2", PodCIDRs: []string{"10.99.2.0/24", "fd99:0:0:2::/64"}, Addresses: []string{"192.0.2.2", "2001:db8:99::2"}}
	server.PutNode(nodeB)
	kubeconfig := func(w *world) string { return kubeapitest.Kubeconfig(t, forward(t, w, server.URL), "secret") }
	a, b := newClusterNode(t, "a", kubeconfig), newClusterNode(t, "b", kubeconfig)
	eventually(t, 15*time.Second, "before the nodes are joined, there is no way between them", func() error {
		if why := a.missing(t); !strings.Contains(why, "10.99.2.0/24 of node b: the node's address 192.0.2.2 is behind a router") && !strings.Contains(why, "there is no route to the node's address") {
			return errors.New(why)
		}
		return nil
	})
	ip := func(n *clusterNode, args string) {
		t.Helper()
		out, err := n.star.Client.Run("ip", strings.Fields(args)...)
		if err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	ip(a, "route add 10.99.4.0/24 via 192.0.2.2 dev lo onlink") // somebody else's
	ip(a, "link add lan0 type veth peer name lan0 netns "+b.star.Client.Namespace)
	for n, at := range map[*clusterNode]string{a: "1", b: "2"} {
		ip(n, "address add 192.0.2."+at+"/24 dev lan0")
		ip(n, "address add 2001:db8:99::"+at+"/64 dev lan0 nodad")
		ip(n, "link set lan0 up")
	}
	toB := []string{"10.99.2.0/24 via 192.0.2.2", "fd99:0:0:2::/64 via 2001:db8:99::2"}
	a.expectRoutes(t, "the nodes are joined", toB...)
	b.expectRoutes(t, "the nodes are joined", "10.99.1.0/24 via 192.0.2.1", "fd99:0:0:1::/64 via 2001:db8:99::1")
	for _, n := range []*clusterNode{a, b} {
		eventually(t, 10*time.Second, "status has no more to say", func() error {
			if why := n.missing(t); why != "" {
				return fmt.Errorf("%s", why)
			}
			return nil
		})
		n.pod = n.addPod(t, "pod")
	}
	for _, way := range [][2]*clusterNode{{a, b}, {b, a}} {
		from, to := way[0].pod, way[1].pod
		if got := seenAs(t, from.Host, to.Host, to.address4); got != from.address4 {
			t.Errorf("the pod of %s is seen as %v, want %v", way[0].name, got, from.address4)
		}
		if got := seenAs(t, from.Host, to.Host, to.addr6); got != from.addr6 {
			t.Errorf("the pod of %s is seen as %v, want %v", way[0].name, got, from.addr6)
		}
	}

	flow := startExchange(t, a.pod.Host, b.pod.Host, b.pod.address4)
	server.PutNode(kubeapitest.Node{Name: "d", UID: "4", PodCIDRs: []string{"10.99.4.0/24"}, Addresses: []string{"192.0.2.4"}})
	server.PutNode(kubeapitest.Node{Name: "e", UID: "5", PodCIDRs: []string{"10.99.5.0/24"}, Addresses: []string{"203.0.113.5"}})
	eventually(t, 10*time.Second, "what cannot be is said", func() error {
		why := a.missing(t)
		if !strings.Contains(why, "10.99.4.0/24 of node d: somebody else has a route to it (proto 3)") || !strings.Contains(why, "10.99.5.0/24 of node e: ") {
			return fmt.Errorf("%q", why)
		}
		return nil
	})
	a.expectRoutes(t, "others' routes stay", toB...)
	if out, err := a.star.Client.Run("ip", "route", "show", "10.99.4.0/24"); err != nil || !strings.Contains(out, "dev lo") {
		t.Errorf("somebody else's route: %s, %v", out, err)
	}
	a.kill()
	a.expectRoutes(t, "a killed daemon", toB...)
	server.Hold() // it starts while the API server does not answer
	a.start(t)
	a.expectRoutes(t, "a daemon that does not know the nodes yet", toB...)
	server.Release()
	if err := flow.end(); err != nil {
		t.Errorf("the pods' connection: %v", err)
	}
	t.Logf("its %d turns took %v at most", flow.turns, flow.longest)

	if _, err := a.run(t, "detach", "--pods"); err != nil {
		t.Error(err)
	}
	a.expectRoutes(t, "detached")
	if _, err := a.run(t, "reload"); err != nil {
		t.Error(err)
	}
	a.expectRoutes(t, "read again", toB...)
	server.DeleteNode("2")
	a.expectRoutes(t, "the node is gone")
	server.PutNode(nodeB)
	a.expectRoutes(t, "the node is back", toB...)
	seenAs(t, a.pod.Host, b.pod.Host, b.pod.address4)

	for _, n := range []*clusterNode{a, b} {
		must(t, n.star.Client.Do(func() error { return n.runtime.DelNetworkList(t.Context(), n.list, n.runtimeConf(n.pod.Host)) }))
		n.stop(t)
		n.expectRoutes(t, "the daemon has ended")
	}
	if out, err := a.star.Client.Run("ip", "route", "show", "10.99.4.0/24"); err != nil || !strings.Contains(out, "dev lo") {
		t.Errorf("somebody else's route at the end: %s, %v", out, err)
	}
}
