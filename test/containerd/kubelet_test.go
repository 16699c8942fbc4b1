package containerd

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

const (
	profile = "tcpilot.io/profile"
	egress  = "kubernetes.io/egress-bandwidth"
)

// With tcpilot-cni as the main plugin, the node is ready when 'cni install --main' has written the network configuration
// with the networks that the API server knows of the node.
func TestKubeletMain(t *testing.T) {
	c := newCluster(t, "main")
	c.runDaemon(t)
	c.setPodCIDRs(t, "10.88.1.0/24", "fd88:0:0:1::/64")
	out := c.host.Run(t, c.daemon.args[0], "cni", "install", "--main", "--conf-dir", c.path("net.d"), "--bin-dir", c.path("plugins"), "--pods-dir", c.path("pods"),
		"--socket", c.path("tcpilot.sock"), "--kubeconfig", c.path("kubeconfig"), "--node", c.name, "--cluster-cidr", "10.88.0.0/16,fd88::/48")
	if want := "10-tcpilot.conflist, with tcpilot-cni as the main plugin and addresses of 10.88.1.0/24 and fd88:0:0:1::/64\n"; !strings.HasSuffix(out, want) {
		t.Fatalf("%q, want %q", out, want)
	}
	c.expectNode(t, true, "")
	c.testStaticPod(t)
	c.testPods(t, 2)
}

// When the main plugin is uninstalled, its pods go on, and end, and no new one begins. The end of the last one leaves nothing.
func TestKubeletUninstall(t *testing.T) {
	c := newCluster(t, "uninstall")
	c.runDaemon(t)
	c.installMain(t)
	c.expectNode(t, true, "")
	web := c.run(t, "web", 8080, nil)
	flow := connect(t, c.outside, net.JoinHostPort(c.own.V4.String(), "8080"))
	c.uninstallPlugin(t, "--main")
	c.expectNode(t, false, "tcpilot-cni is uninstalled")
	c.api.Must(t, "POST", namespace+"/pods", "application/json", c.pod(t, "late", 0, nil))
	within(t, limit, "the kubelet does not start a pod", func() error {
		if text := c.events(t); !strings.Contains(text, "NetworkNotReady") {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
	if _, err := flow.get("/"); err != nil {
		t.Errorf("uninstalled, a connection: %v", err)
	}
	c.expectProbes(t, "uninstalled", web)
	c.expectReady(t, "uninstalled", web)
	c.remove(t, web, &kubePod{name: "late"})
	c.expectNoMainPlugin(t)
	c.expectNothing(t)
	c.expectNode(t, false, "cni plugin not initialized")
}

// expectNoMainPlugin waits until the kubelet has removed the sandboxes of the main plugin's pods, which it does once a minute, and nothing
// of the plugin is left.
func (c *cluster) expectNoMainPlugin(t *testing.T) {
	t.Helper()
	within(t, 9*limit, "nothing of the plugin is left", c.pluginLeft)
}

// Behind ptp and portmap, tcpilot-cni does the same. A pod that ran before it was installed has rules and annotations too.
func TestKubeletChained(t *testing.T) {
	c := newCluster(t, "chained")
	c.runDaemon(t)
	c.configure(t, v4, ptp, portmap)
	c.expectNode(t, true, "")
	early := c.run(t, "early", 0, map[string]string{profile: "bulk"})
	out, err := c.tcpilot("cni", "install", "--conf-dir", c.path("net.d"), "--bin-dir", c.path("plugins"), "--pods-dir", c.path("pods"))
	must(t, err)
	if want := "added tcpilot-cni to "; !strings.Contains(out, want) {
		t.Fatalf("%q, want %q", out, want)
	}
	c.awaitNetwork(t)
	c.expectPod(t, "early", func(p *api.Pod) bool { return !p.Recorded && slices.Equal(p.Rules, []string{"bulk"}) })
	c.testPods(t, 1, early)
}

// A static pod has the annotations that its object at the API server has, although its UID is another one there.
func (c *cluster) testStaticPod(t *testing.T) {
	t.Helper()
	file := c.path("static/server.json")
	must(t, os.WriteFile(file, []byte(c.pod(t, "static", 0, map[string]string{profile: "bulk"})), 0o644))
	p := c.newPod(t, "static-"+c.name)
	for _, of := range []struct {
		value string
		rules int
	}{{"bulk", 1}, {"null", 0}, {"bulk", 1}} {
		c.annotate(t, p, profile, of.value)
		c.expectPod(t, p.name, func(p *api.Pod) bool { return p.Recorded && len(p.Rules) == of.rules })
	}
	must(t, os.Remove(file))
	c.expectNoPod(t, namespace+"/pods/"+p.name)
}

// testPods runs pods with addresses of so many families, until nothing of them is left.
func (c *cluster) testPods(t *testing.T, families int, others ...*kubePod) {
	t.Helper()
	web := c.run(t, "web", 8080, map[string]string{profile: "bulk", egress: "20M"})
	db := c.run(t, "db", 0, nil)
	pods := append([]*kubePod{web, db}, others...)
	if len(web.addresses) != families || len(db.addresses) != families {
		t.Fatalf("addresses %q and %q", web.addresses, db.addresses)
	}
	c.expectPod(t, "web", func(p *api.Pod) bool {
		return p.Recorded && slices.Equal(p.Rules, []string{"bulk"}) && p.Annotations[profile] == "bulk" && p.Egress != nil && p.Egress.Limit == 20e6/8
	})
	c.expectPod(t, "db", func(p *api.Pod) bool { return p.Recorded && len(p.Rules) == 0 && p.Egress == nil })
	c.expectPods(t, len(pods))

	t.Run("annotations", func(t *testing.T) { c.testAnnotations(t, web, db, others) })
	t.Run("connections", func(t *testing.T) { c.testConnections(t, web, db, pods) }) // its end closes the pods' namespaces
	if t.Failed() {
		return
	}
	sandbox := c.sandbox(t, web)
	c.remove(t, pods...)
	if c.calls(t, "DEL", sandbox.id) == 0 {
		t.Error("DEL was not called")
	}
	c.expectNothingOfPods(t)
}

// expectNothingOfPods waits until nothing is left of pods, but what containerd keeps of sandboxes until the kubelet removes them.
func (c *cluster) expectNothingOfPods(t *testing.T) {
	t.Helper()
	eventually(t, "nothing is left", func() error { return c.left(t) })
	for _, pattern := range []string{"/var/lib/cni/results/*", "/var/lib/cni/networks/*/[0-9a-f]*[.:]*"} {
		if files, err := filepath.Glob(pattern); err != nil || len(files) > 0 {
			t.Errorf("%q are left, %v", files, err)
		}
	}
	c.expectPods(t, 0)
}

// What the annotations say holds for connections of the pod's program, and changes with them. One that is wrong is an event.
func (c *cluster) testAnnotations(t *testing.T, web, db *kubePod, others []*kubePod) {
	c.expectControl(t, "reno", db, append(others, web)...)
	c.expectControl(t, "cubic", web, db)
	const slow, fast = 20e6, 40e6
	c.expectRate(t, web, slow)
	c.annotate(t, web, egress, "40M")
	within(t, limit, "40M", func() error {
		if took, most := c.expectRate(t, web, fast), leastTime(slow); took > most {
			return fmt.Errorf("%.2f s, want %.2f s at most", took, most)
		}
		return nil
	})
	c.annotate(t, web, profile, "null")
	c.annotate(t, db, profile, "bulk")
	c.expectPod(t, "web", func(p *api.Pod) bool { return len(p.Rules) == 0 && p.Egress.Limit == 40e6/8 })
	c.expectPod(t, "db", func(p *api.Pod) bool { return slices.Equal(p.Rules, []string{"bulk"}) })
	c.expectControl(t, "cubic", db, web)
	c.expectControl(t, "reno", web, db)
	c.annotate(t, db, "tcpilot.io/congestion-control", "nonsense")
	within(t, limit, "the event", func() error {
		if text := c.events(t); !strings.Contains(text, "AnnotationNotFollowed annotation tcpilot.io/congestion-control: nonsense is not available here") {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}

// Connections and the kubelet's probes go on while host routing is switched, and while the daemon, the kubelet and containerd are killed.
func (c *cluster) testConnections(t *testing.T, web, db *kubePod, pods []*kubePod) {
	x := c.startTraffic(t, web, db, pods)
	c.configureDaemon(t, c.podKeys(", host_routing: on"))
	x.expectRouting(t)
	c.daemon.kill()
	x.goesOn(t, "without the daemon")
	c.startDaemon(t)
	c.expectPods(t, len(pods))
	c.kubelet.kill()
	x.flow(t, "without the kubelet")
	c.containerd.kill()
	x.flow(t, "without the kubelet and containerd")
	c.startContainerd(t)
	c.kubelet.start(t, nil)
	c.expectReadyAgain(t, pods...)
	x.goesOn(t, "after all of them have started again")
	c.configureDaemon(t, c.podKeys(""))
	x.goesOn(t, "without host routing")
	c.expectControl(t, "cubic", db, web)
}

// traffic is that to the pod web: connections from the outside by its host's port, from its host and from the pod db, and probes of the kubelet.
type traffic struct {
	c        *cluster
	web      *kubePod
	pods     []*kubePod // have to stay ready
	inDB     *testenv.NS
	hostPort string
	flows    []*flow
}

func (c *cluster) startTraffic(t *testing.T, web, db *kubePod, pods []*kubePod) *traffic {
	t.Helper()
	x := &traffic{c: c, web: web, pods: pods, inDB: c.netns(t, c.sandbox(t, db)), hostPort: net.JoinHostPort(c.own.V4.String(), "8080")}
	x.flows = append(x.flows, connect(t, c.outside, x.hostPort))
	for _, address := range web.addresses {
		x.flows = append(x.flows, connect(t, c.host, address), connect(t, x.inDB, address))
	}
	x.goesOn(t, "at first")
	return x
}

// flow fails unless the connections work.
func (x *traffic) flow(t *testing.T, when string) {
	t.Helper()
	for _, f := range x.flows {
		if _, err := f.get("/"); err != nil {
			t.Errorf("%s, the connection from %v to %v: %v", when, f.LocalAddr(), f.RemoteAddr(), err)
		}
	}
}

// goesOn fails unless the connections, new ones and probes work, and have worked all the time.
func (x *traffic) goesOn(t *testing.T, when string) {
	t.Helper()
	x.flow(t, when)
	x.c.expectProbes(t, when, x.web)
	x.c.expectReady(t, when, x.pods...)
	for _, address := range x.web.addresses {
		fetch(t, x.inDB, address, "/")
	}
	if got := fetch(t, x.c.outside, x.hostPort, "/"); !strings.HasPrefix(got, x.c.wire.V4.String()+":") {
		t.Errorf("%s, the pod sees the outside as %s", when, got)
	}
}

// expectRouting waits until the pods have host routing, and fails unless it is used.
func (x *traffic) expectRouting(t *testing.T) {
	t.Helper()
	for _, name := range []string{"web", "db"} {
		x.c.expectPod(t, name, func(p *api.Pod) bool { return p.Routing != nil && p.Routing.Active })
	}
	before := x.c.routed(t)
	x.goesOn(t, "with host routing")
	if x.c.routed(t) == before {
		t.Error("no packet was routed from pod to pod")
	}
}

// expectControl fails unless new connections of the pods' own programs to another pod have a congestion control.
func (c *cluster) expectControl(t *testing.T, want string, to *kubePod, pods ...*kubePod) {
	t.Helper()
	for _, p := range pods {
		if got := fetch(t, c.host, p.addresses[0], "/control?to="+net.JoinHostPort(to.addresses[0], "80")); got != want {
			t.Errorf("a connection of %s has %s, want %s", p.name, got, want)
		}
	}
}

const ofRate = 4 << 20 // bytes

// leastTime is in what time ofRate bytes may arrive at a rate in bit/s, in seconds.
func leastTime(rate float64) float64 { return 0.9 * ofRate * 8 / rate }

// expectRate fails if what a pod sends arrives faster than its limit allows, in bit/s. It returns the seconds that ofRate bytes took.
func (c *cluster) expectRate(t *testing.T, p *kubePod, rate float64) float64 {
	t.Helper()
	begin := time.Now()
	if got := fetch(t, c.outside, net.JoinHostPort(c.own.V4.String(), "8080"), fmt.Sprint("/bytes?n=", ofRate)); len(got) != ofRate {
		t.Errorf("%d bytes have arrived", len(got))
	}
	took := time.Since(begin).Seconds()
	if least := leastTime(rate); took < least {
		t.Errorf("%s: %d bytes at %v bit/s took %.2f s, want %.2f s at least", p.name, ofRate, rate, took, least)
	}
	return took
}

// sandbox is the pod's, as tcpilot has it.
func (c *cluster) sandbox(t *testing.T, p *kubePod) (s sandbox) {
	t.Helper()
	c.expectPod(t, p.name, func(known *api.Pod) bool { s = sandbox{known.Container, p.name}; return true })
	return s
}

// flow is a connection to a server, which keeps it open.
type flow struct {
	net.Conn
	r *bufio.Reader
}

// connect connects to a server. Without a port in the address, it is 80.
func connect(t *testing.T, from *testenv.NS, address string) (f *flow) {
	t.Helper()
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(address, "80")
	}
	from.Do(t, func() {
		conn, err := net.DialTimeout("tcp", address, limit)
		must(t, err)
		f = &flow{conn, bufio.NewReader(conn)}
	})
	t.Cleanup(func() { f.Close() })
	return f
}

// get asks for a path, and returns the answer.
func (f *flow) get(path string) (string, error) {
	f.SetDeadline(time.Now().Add(limit))
	if _, err := fmt.Fprintf(f, "GET %s HTTP/1.1\r\nHost: pod\r\n\r\n", path); err != nil {
		return "", err
	}
	response, err := http.ReadResponse(f.r, nil)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return string(text), err
}

// fetch asks a server once.
func fetch(t *testing.T, from *testenv.NS, address, path string) string {
	t.Helper()
	f := connect(t, from, address)
	defer f.Close()
	text, err := f.get(path)
	must(t, err)
	return text
}
