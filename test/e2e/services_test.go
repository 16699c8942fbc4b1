package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/kubeapi/kubeapitest"
	"github.com/tcpilot/tcpilot/lab/topology"
)

const (
	ofServers = 8080 // port of the servers
	ofService = 80
	// Ports of nodes.
	ofWeb   = 30080
	ofLocal = 30081
)

// cluster is three nodes on one link, with the network that 'tcpilot cni install --main' has written, the routes that the daemons keep,
// and a real API server.
type cluster struct {
	api      *kubeapitest.Admin
	nodes    []*clusterNode
	services map[string][]netip.Addr // of cluster IPs by name, IPv4 first
	mode     string                  // of kube-proxy
	web      map[*clusterNode]*clusterPod
	caller   map[*clusterNode]*clusterPod
}

const servicesPath, slicesPath = "/api/v1/namespaces/services/services", "/apis/discovery.k8s.io/v1/namespaces/services/endpointslices"

// object creates an object of the API server, unless it exists.
func (c *cluster) object(t *testing.T, path string, object map[string]any) {
	t.Helper()
	text, err := json.Marshal(object)
	must(t, err)
	status, answer := c.api.Do(t, "POST", path, "application/json", string(text))
	if status/100 != 2 && status != http.StatusConflict {
		t.Fatalf("POST %s: %d: %s", path, status, answer)
	}
}

func (c *cluster) patch(t *testing.T, path string, object map[string]any) {
	t.Helper()
	text, err := json.Marshal(object)
	must(t, err)
	c.api.Must(t, "PATCH", path, "application/merge-patch+json", string(text))
}

func newCluster(t *testing.T, a *kubeapitest.Admin) *cluster {
	t.Helper()
	c := &cluster{api: a, services: map[string][]netip.Addr{}, web: map[*clusterNode]*clusterPod{}, caller: map[*clusterNode]*clusterPod{}}
	c.object(t, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": "services"}})
	lan, err := newNet(t).Host("lan")
	must(t, err)
	ip := func(h *topology.Host, args string) {
		t.Helper()
		if out, err := h.Run("ip", strings.Fields(args)...); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	ip(lan, "link add lan type bridge")
	ip(lan, "link set lan up")
	for i, name := range []string{"a", "b", "c"} {
		at := i + 1
		networks := []string{fmt.Sprintf("10.99.%d.0/24", at), fmt.Sprintf("fd99:0:0:%d::/64", at)}
		c.object(t, "/api/v1/nodes", map[string]any{"metadata": map[string]any{"name": name}, "spec": map[string]any{"podCIDR": networks[0], "podCIDRs": networks}})
		c.patch(t, "/api/v1/nodes/"+name+"/status", map[string]any{"status": map[string]any{"addresses": []map[string]string{
			{"type": "InternalIP", "address": fmt.Sprint("192.0.2.", at)}, {"type": "InternalIP", "address": fmt.Sprint("2001:db8:99::", at)}}}})
	}
	for i, name := range []string{"a", "b", "c"} {
		n := newClusterNode(t, name, func(w *world) string { return kubeapitest.Kubeconfig(t, forward(t, w, a.URL), a.Token) })
		host := n.star.Client
		ip(host, "link add lan0 type veth peer name "+name+" netns "+lan.Namespace)
		ip(lan, "link set dev "+name+" master lan up")
		ip(host, fmt.Sprintf("address add 192.0.2.%d/24 dev lan0", i+1))
		ip(host, fmt.Sprintf("address add 2001:db8:99::%d/64 dev lan0 nodad", i+1))
		ip(host, "link set lan0 up")
		c.nodes = append(c.nodes, n)
	}
	for _, n := range c.nodes {
		eventually(t, 15*time.Second, "routes to the other nodes", func() error {
			if list := n.nodeRoutes(t); len(list) != 4 {
				return fmt.Errorf("%s has %q: %s", n.name, list, n.missing(t))
			}
			return nil
		})
		c.caller[n], c.web[n] = n.addPod(t, "caller"), n.addPod(t, "web")
		serve(t, c.web[n].Host, "web-"+n.name)
	}
	serve(t, c.nodes[2].star.Client, "host-c")
	serve(t, c.nodes[0].remotes[0].Host, "world")
	web := c.web[c.nodes[0]].addresses()
	c.service(t, "web", map[string]any{"type": "NodePort"}, ofWeb, "a", web)
	c.service(t, "local", map[string]any{"type": "NodePort", "externalTrafficPolicy": "Local"}, ofLocal, "a", web)
	c.service(t, "host", map[string]any{}, 0, "c", nodeAddresses(2))
	c.service(t, "moves", map[string]any{}, 0, "a", web)
	return c
}

// nodeAddresses are those of a node on the link, IPv4 first.
func nodeAddresses(i int) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(fmt.Sprint("192.0.2.", i+1)), netip.MustParseAddr(fmt.Sprint("2001:db8:99::", i+1))}
}

func (p *clusterPod) addresses() []netip.Addr { return []netip.Addr{p.address4, p.addr6} }

// service makes a service of both families, whose endpoint has these addresses and is on a node. nodePort is 0 without a port of nodes.
func (c *cluster) service(t *testing.T, name string, spec map[string]any, nodePort int, node string, endpoint []netip.Addr) {
	t.Helper()
	var ports, served []any
	for _, protocol := range []string{"TCP", "UDP"} {
		port := map[string]any{"name": strings.ToLower(protocol), "protocol": protocol, "port": ofService, "targetPort": ofServers}
		if nodePort != 0 {
			port["nodePort"] = nodePort
		}
		ports = append(ports, port)
		served = append(served, map[string]any{"name": strings.ToLower(protocol), "protocol": protocol, "port": ofServers})
	}
	spec["ipFamilyPolicy"], spec["ports"] = "RequireDualStack", ports
	c.object(t, servicesPath, map[string]any{"metadata": map[string]any{"name": name}, "spec": spec})
	var got struct {
		Spec struct{ ClusterIPs []netip.Addr }
	}
	must(t, json.Unmarshal([]byte(c.api.Must(t, "GET", servicesPath+"/"+name, "", "")), &got))
	c.services[name] = got.Spec.ClusterIPs
	for i, family := range []string{"IPv4", "IPv6"} {
		c.object(t, slicesPath, map[string]any{
			"metadata":    map[string]any{"name": name + strings.ToLower(family), "labels": map[string]string{"kubernetes.io/service-name": name}},
			"addressType": family, "ports": served, "endpoints": []any{},
		})
		c.setEndpoint(t, name, i, node, endpoint[i])
	}
}

// setEndpoint makes an address on a node the only endpoint of a service, of one family.
func (c *cluster) setEndpoint(t *testing.T, service string, family int, node string, address netip.Addr) {
	t.Helper()
	c.patch(t, slicesPath+"/"+service+[]string{"ipv4", "ipv6"}[family], map[string]any{"endpoints": []any{map[string]any{
		"addresses": []string{address.String()}, "nodeName": node, "conditions": map[string]bool{"ready": true}}}})
}

// startKubeProxy runs kube-proxy in a node's network namespace. stop ends it, and removes its rules.
func (n *clusterNode) startKubeProxy(t *testing.T, program, mode string) (stop func()) {
	t.Helper()
	config := filepath.Join(n.dir, "kube-proxy.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
hostnameOverride: %s
clientConnection: {kubeconfig: %s}
clusterCIDR: 10.99.0.0/16,fd99::/48
nodePortAddresses: [192.0.2.0/24, 10.77.0.0/16, "2001:db8:99::/64", "fd77::/16"]
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s} # those of the host
iptables: {minSyncPeriod: 100ms}
nftables: {minSyncPeriod: 100ms}
`, mode, n.name, n.kubeconfig), 0o600))
	log := &syncBuffer{}
	cmd := exec.Command(program, "--config", config)
	cmd.Stdout, cmd.Stderr = log, log
	must(t, n.star.Client.Start(cmd))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kube-proxy of %s (%s):\n%s", n.name, mode, log)
		}
	})
	return func() {
		cmd.Process.Kill()
		cmd.Wait()
		if _, err := n.star.Client.Run(program, "--cleanup"); err != nil { // the next one must make all rules itself
			t.Error(err)
		}
	}
}

// serve answers at all addresses of a host until the test ends: with a name and the client's address, and over TCP then with what it
// gets.
func serve(t *testing.T, at *topology.Host, name string) {
	t.Helper()
	var l net.Listener
	var u net.PacketConn
	must(t, at.Do(func() (err error) { l, err = net.Listen("tcp", fmt.Sprint("[::]:", ofServers)); return err }))
	t.Cleanup(func() { l.Close() })
	must(t, at.Do(func() (err error) { u, err = net.ListenPacket("udp", fmt.Sprint("[::]:", ofServers)); return err }))
	t.Cleanup(func() { u.Close() })
	go func() {
		for {
			_, from, err := u.ReadFrom(nil)
			if err != nil {
				return
			}
			u.WriteTo(fmt.Appendf(nil, "%s %s\n", name, from.(*net.UDPAddr).AddrPort().Addr().Unmap()), from)
		}
	}()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintf(c, "%s %s\n", name, c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap())
				io.Copy(c, c)
			}()
		}
	}()
}

// dial connects within 2 s.
func dial(from *topology.Host, network string, to netip.AddrPort) (c net.Conn, err error) {
	err = from.Do(func() (err error) { c, err = net.DialTimeout(network, to.String(), 2*time.Second); return err })
	return c, err
}

// answer reads what a server of serve says first: its name, and the address that it sees.
func answer(c net.Conn, within time.Duration) (name string, seen netip.Addr, err error) {
	if err = c.SetDeadline(time.Now().Add(within)); err != nil {
		return "", seen, err
	}
	line, err := bufio.NewReader(c).ReadString('\n') // the server sends no more yet
	if err != nil {
		return "", seen, err
	}
	name, address, _ := strings.Cut(strings.TrimSpace(line), " ")
	seen, err = netip.ParseAddr(address)
	return name, seen, err
}

// askByUDP sends one datagram, and returns what comes back.
func askByUDP(c net.Conn) (name string, seen netip.Addr, err error) {
	if _, err = c.Write([]byte("?")); err != nil {
		return "", seen, err
	}
	return answer(c, time.Second)
}

// call connects to a server of serve by TCP.
func call(from *topology.Host, to netip.AddrPort) (c net.Conn, name string, seen netip.Addr, err error) {
	if c, err = dial(from, "tcp", to); err != nil {
		return nil, "", seen, err
	}
	if name, seen, err = answer(c, 5*time.Second); err != nil {
		c.Close()
	}
	return c, name, seen, err
}

// visit is a call, and 300 kB in both directions.
func visit(from *topology.Host, to netip.AddrPort) (name string, seen netip.Addr, err error) {
	c, name, seen, err := call(from, to)
	if err != nil {
		return "", seen, err
	}
	defer c.Close()
	data := bytes.Repeat([]byte("0123456789"), 30_000)
	go c.Write(data)
	got := make([]byte, len(data))
	if _, err = io.ReadFull(c, got); err == nil && !bytes.Equal(got, data) {
		err = errors.New("other data came back")
	}
	return name, seen, err
}

// way is a connection that a cluster has to make possible.
type way struct {
	what string
	from *topology.Host
	to   netip.AddrPort
	name string       // of the server
	seen []netip.Addr // as one of which it sees the client
}

// ways are those of a family: 0 for IPv4, 1 for IPv6.
func (c *cluster) ways(family int) []way {
	a, b, n := c.nodes[0], c.nodes[1], c.nodes[2]
	pod := func(p *clusterPod) []netip.Addr { return p.addresses()[family : family+1] }
	node := func(i int) []netip.Addr { // any address of it
		access := c.nodes[i].star.Access
		list := []netip.Addr{nodeAddresses(i)[family], []netip.Addr{access.Addr4.Addr(), access.Addr6.Addr()}[family]}
		if c.mode == "ipvs" { // it gives the services' addresses to each node
			list = append(list, c.services["web"][family], c.services["local"][family], c.services["host"][family], c.services["moves"][family])
		}
		return list
	}
	service := func(name string) netip.AddrPort { return netip.AddrPortFrom(c.services[name][family], ofService) }
	nodePort := func(i int, port uint16) netip.AddrPort { return netip.AddrPortFrom(nodeAddresses(i)[family], port) }
	far := a.remotes[0]
	world := []netip.Addr{far.Addr4, far.Addr6}[family]
	return []way{
		{"pod to a pod of its node", c.caller[a].Host, netip.AddrPortFrom(pod(c.web[a])[0], ofServers), "web-a", pod(c.caller[a])},
		{"pod to a pod of another node", c.caller[b].Host, netip.AddrPortFrom(pod(c.web[a])[0], ofServers), "web-a", pod(c.caller[b])},
		{"pod to the world", c.caller[a].Host, netip.AddrPortFrom(world, ofServers), "world", node(0)[1:2]},
		{"service, endpoint on the pod's node", c.caller[a].Host, service("web"), "web-a", pod(c.caller[a])},
		{"service, endpoint on another node", c.caller[b].Host, service("web"), "web-a", pod(c.caller[b])},
		{"service, the pod itself is the endpoint", c.web[a].Host, service("web"), "web-a", node(0)},
		{"service, host process, endpoint on its node", a.star.Client, service("web"), "web-a", node(0)},
		{"service, host process, endpoint on another node", n.star.Client, service("web"), "web-a", node(2)[:1]},
		{"service, endpoint is another node", c.caller[a].Host, service("host"), "host-c", node(0)[:1]},
		{"service, endpoint is the pod's node", c.caller[n].Host, service("host"), "host-c", pod(c.caller[n])},
		{"port of a node from another node", n.star.Client, nodePort(0, ofWeb), "web-a", node(0)},
		{"port of a node without an endpoint", n.star.Client, nodePort(1, ofWeb), "web-a", node(1)[:1]},
		{"port of a node from itself", a.star.Client, nodePort(0, ofWeb), "web-a", node(0)},
		{"port of a node from its pod", c.caller[a].Host, nodePort(0, ofWeb), "web-a", append(pod(c.caller[a]), node(0)...)},
		{"port of a node from another node's pod", c.caller[b].Host, nodePort(0, ofWeb), "web-a", node(0)},
		{"port of a node without an endpoint from its pod", c.caller[b].Host, nodePort(1, ofWeb), "web-a", append(pod(c.caller[b]), node(1)...)},
		{"port of a node from the world", far.Host, netip.AddrPortFrom(node(0)[1], ofWeb), "web-a", node(0)},
		{"port with the policy Local from another node", n.star.Client, nodePort(0, ofLocal), "web-a", node(2)[:1]},
		{"port with the policy Local from another node's pod", c.caller[b].Host, nodePort(0, ofLocal), "web-a", node(1)[:1]},
		{"port with the policy Local from the world", far.Host, netip.AddrPortFrom(node(0)[1], ofLocal), "web-a", []netip.Addr{world}},
	}
}

// check tries it, by TCP and by UDP.
func (w *way) check() error {
	name, seen, err := visit(w.from, w.to)
	if err = w.expect("TCP", name, seen, err); err != nil || w.name == "host-c" { // a server of UDP at all addresses answers as any of them
		return err
	}
	c, err := dial(w.from, "udp", w.to)
	if err != nil {
		return err
	}
	defer c.Close()
	for range 2 { // the second one finds what the first one has left
		if name, seen, err = askByUDP(c); err != nil {
			break
		}
	}
	return w.expect("UDP", name, seen, err)
}

func (w *way) expect(protocol, name string, seen netip.Addr, err error) error {
	if err == nil && (name != w.name || !slices.Contains(w.seen, seen)) {
		err = fmt.Errorf("%s sees %v, want %s and one of %v", name, seen, w.name, w.seen)
	}
	if err != nil {
		return fmt.Errorf("%s (%s %s): %w", w.what, protocol, w.to, err)
	}
	return nil
}

// check tries all ways, of both families.
func (c *cluster) check(t *testing.T, when string) {
	t.Helper()
	for family := range 2 {
		for _, w := range c.ways(family) {
			if err := w.check(); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		to := netip.AddrPortFrom(nodeAddresses(1)[family], ofLocal)
		if name, _, err := visit(c.nodes[2].star.Client, to); err == nil {
			t.Errorf("%s: %v, of a node without an endpoint and with the policy Local, leads to %s", when, to, name)
		}
	}
}

// await waits until kube-proxy has made all ways.
func (c *cluster) await(t *testing.T) {
	t.Helper()
	for family := range 2 {
		for _, w := range c.ways(family) {
			eventually(t, 30*time.Second, "kube-proxy is ready", w.check)
		}
	}
}

// routePods turns host routing on or off.
func (c *cluster) routePods(t *testing.T, on bool) {
	t.Helper()
	keys := ""
	if on {
		keys = `, host_routing: on, devices: [lan0], networks: [10.99.0.0/16, "fd99::/48"]`
	}
	for _, n := range c.nodes {
		n.configurePods(t, keys)
		if _, err := n.run(t, "reload"); err != nil {
			t.Fatal(err)
		}
		eventually(t, 10*time.Second, "host routing", func() error {
			for _, pod := range ask[api.PodList](t, n.tcpilot, "pods").Pods {
				if routed := pod.Routing != nil && pod.Routing.Active; routed != on {
					return fmt.Errorf("%s: %+v", pod.Pod, pod.Routing)
				}
			}
			return nil
		})
	}
}

// packets are the packets of a node's pods, by what became of them under host routing.
func (n *clusterNode) packets(t *testing.T) map[string]uint64 {
	t.Helper()
	counts := map[string]uint64{}
	for _, p := range ask[api.PodList](t, n.tcpilot, "pods").Packets {
		counts[p.Fate] = p.Packets
	}
	return counts
}

// pauseOfFlows makes 1 MB/s of each flow, which soon is more than a window that connection tracking remembers.
const pauseOfFlows = 20 * time.Millisecond

// flows are connections of every kind that last.
type flows map[string]*exchange

func (c *cluster) startFlows(t *testing.T) flows {
	t.Helper()
	list := flows{}
	for family := range 2 {
		for _, w := range c.ways(family) {
			conn, _, _, err := call(w.from, w.to)
			if err != nil {
				t.Fatalf("%s: %v", w.what, err)
			}
			list[fmt.Sprintf("%s (%s)", w.what, w.to)] = exchangeOn(conn, pauseOfFlows)
		}
	}
	return list
}

func (l flows) end(t *testing.T) {
	t.Helper()
	turns, longest := 0, time.Duration(0)
	for what, x := range l {
		if err := x.end(); err != nil {
			t.Errorf("a connection, %s, ended after %d turns: %v", what, x.turns, err)
		}
		turns, longest = turns+x.turns, max(longest, x.longest)
	}
	t.Logf("the %d turns of %d connections took %v at most", turns, len(l), longest.Round(time.Millisecond))
}

// A cluster whose network plugin is tcpilot-cni has services by a real kube-proxy on each of three nodes, whether host routing is on or
// not. Connections of every kind go on while it is turned on and off, and while the endpoint of their service moves to another node.
func TestRealServices(t *testing.T) {
	a := kubeapitest.FromEnvironment()
	if a == nil {
		t.Skip("TCPILOT_KUBEAPI names no API server")
	}
	program := filepath.Join(os.Getenv("TCPILOT_KUBERNETES"), "kube-proxy") // tools/test-kubernetes builds it
	c := newCluster(t, a)
	modes := []string{"nftables", "iptables"}
	if _, err := os.Stat("/sys/module/ip_vs"); err == nil {
		modes = append(modes, "ipvs")
	}
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			c.mode = mode
			for _, n := range c.nodes {
				defer n.startKubeProxy(t, program, mode)()
			}
			c.await(t)
			c.check(t, "without host routing")
			before := c.startFlows(t)
			routed := map[*clusterNode]map[string]uint64{c.nodes[0]: c.nodes[0].packets(t), c.nodes[1]: c.nodes[1].packets(t)}
			c.routePods(t, true)
			c.check(t, "with host routing")
			during := c.startFlows(t)
			c.moveEndpoint(t)
			for fate, n := range map[string]*clusterNode{"pod-to-pod": c.nodes[0], "wire-to-pod": c.nodes[0], "pod-to-wire": c.nodes[1], "nat": c.nodes[0]} {
				if counts := n.packets(t); counts[fate] < routed[n][fate]+100 {
					t.Errorf("packets of %s: %v, and %v before, want 100 more of %s", n.name, counts, routed[n], fate)
				}
			}
			c.routePods(t, false)
			time.Sleep(500 * time.Millisecond)
			c.check(t, "after host routing")
			before.end(t)
			during.end(t)
		})
	}
}

// moveEndpoint moves the endpoint of a service to another node: connections that exist stay where they are, others go there, and so do
// datagrams of sockets that have sent some before.
func (c *cluster) moveEndpoint(t *testing.T) {
	t.Helper()
	from := []*topology.Host{c.caller[c.nodes[0]].Host, c.caller[c.nodes[1]].Host, c.caller[c.nodes[2]].Host, c.nodes[2].star.Client}
	for family := range 2 {
		service := netip.AddrPortFrom(c.services["moves"][family], ofService)
		list, datagrams := flows{}, map[*topology.Host]net.Conn{}
		for _, h := range from {
			conn, err := dial(h, "udp", service)
			must(t, err)
			defer conn.Close()
			datagrams[h] = conn
		}
		for _, n := range c.nodes[:2] { // there, and back
			for _, h := range from {
				eventually(t, 10*time.Second, "the service's new endpoint", func() error {
					conn, name, _, err := call(h, service)
					if err != nil {
						return err
					}
					if name != "web-"+n.name {
						conn.Close()
						return fmt.Errorf("%s still leads to %s", service, name)
					}
					list[fmt.Sprintf("%s from %s to %s", service, h.Namespace, name)] = exchangeOn(conn, pauseOfFlows)
					return nil
				})
				eventually(t, 10*time.Second, "the service's new endpoint", func() error {
					if name, _, err := askByUDP(datagrams[h]); err != nil || name != "web-"+n.name {
						return fmt.Errorf("UDP of %s leads to %q: %v", service, name, err)
					}
					return nil
				})
			}
			other := c.nodes[0]
			if n == other {
				other = c.nodes[1]
			}
			c.setEndpoint(t, "moves", family, other.name, c.web[other].addresses()[family])
		}
		time.Sleep(500 * time.Millisecond)
		list.end(t)
	}
}
