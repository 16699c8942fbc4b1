package containerd

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/kubeapi/kubeapitest"
)

// cluster is a node with a kubelet, of a real API server. No controller and no scheduler runs.
type cluster struct {
	*node
	api     *kubeapitest.Admin
	name    string // of the node
	kubelet process
}

// kubeletConfig is for a host with or without cgroup2 alone. The kubelet evicts no pod and removes no image, however full the disk is.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: CGROUP
containerRuntimeEndpoint: unix://DIR/containerd.sock
enforceNodeAllocatable: [none]
evictionHard: {memory.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}
failCgroupV1: false
failSwapOn: false
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
nodeStatusUpdateFrequency: 2s
oomScoreAdj: 0
podLogsDir: DIR/log
resolvConf: DIR/resolv.conf
staticPodPath: DIR/static
volumePluginDir: DIR/volume-plugins
`

// namespace is where all pods are that the API server makes.
const namespace = "/api/v1/namespaces/kubelet"

// kubeletOf is the program of the kubelet.
func kubeletOf(t *testing.T) string {
	dir := os.Getenv("TCPILOT_KUBERNETES")
	if dir == "" || kubeapitest.FromEnvironment() == nil { // tools/test-kubernetes sets both
		t.Skip("TCPILOT_KUBERNETES names no directory of Kubernetes' programs")
	}
	return filepath.Join(dir, "kubelet")
}

// serverAddress is that of the service of the API server, the first one of tools/test-kubernetes' --service-cluster-ip-range. The kubelet
// names it to pods.
const serverAddress = "10.200.0.1"

// newCluster starts a node whose kubelet is registered at the API server, and is not ready because it has no network. tcpilot does not run.
func newCluster(t *testing.T, name string) *cluster {
	t.Helper()
	program := kubeletOf(t)
	c := &cluster{node: newHost(t), api: kubeapitest.FromEnvironment(), name: name}
	c.importImage(t, "localhost/server:1")
	c.makeNamespace(t, "kubelet")
	for _, of := range []string{"nodes", "namespaces/kubelet/events", "namespaces/kubelet/pods", "namespaces/tcpilot/pods", "namespaces/tcpilot-uninstall/pods"} {
		c.api.Must(t, "DELETE", "/api/v1/"+of+"?gracePeriodSeconds=0", "", "") // of other tests
	}
	c.host.Run(t, "ip", "address", "add", serverAddress, "dev", "lo")
	c.before = c.network(t)
	url := kubeapitest.Forward(t, c.host.Listen(t, "tcp", serverAddress+":443"), c.api.URL)
	must(t, os.Rename(kubeapitest.Kubeconfig(t, url, c.api.Token), c.path("kubeconfig")))
	c.protectHost(t)
	config := strings.NewReplacer("DIR", c.dir, "CGROUP", filepath.Dir(c.cgroup)).Replace(kubeletConfig)
	must(t, os.WriteFile(c.path("kubelet.yaml"), []byte(config), 0o644))
	must(t, os.WriteFile(c.path("resolv.conf"), nil, 0o644))
	must(t, os.Mkdir(c.path("static"), 0o755))
	c.kubelet = process{host: c.host, log: c.path("kubelet.log"), args: []string{program, "--config", c.path("kubelet.yaml"), "--kubeconfig", c.path("kubeconfig"),
		"--hostname-override", name, "--node-ip", c.own.V4.String() + "," + c.own.V6.String(), "--root-dir", c.path("kubelet"), "--cert-dir", c.path("kubelet/pki")}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(tail(c.kubelet.log))
		}
		c.kubelet.kill()
	})
	c.kubelet.start(t, nil)
	c.expectNode(t, false, "cni plugin not initialized")
	return c
}

// runDaemon starts tcpilot on the host itself.
func (c *cluster) runDaemon(t *testing.T) {
	t.Helper()
	c.writeDaemonConfig(t, c.podKeys(""))
	c.startDaemon(t)
}

// protectHost makes the cgroups that the kubelet wants to have in each hierarchy; tools/test-containerd removes them. What the kubelet
// changes of the whole host stays in the mount namespace of the tests.
func (c *cluster) protectHost(t *testing.T) {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup"))
	must(t, err)
	for _, m := range mounts {
		must(t, os.MkdirAll(filepath.Join(m.Mountpoint, filepath.Dir(c.cgroup)), 0o755))
	}
	for _, name := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"} {
		file, own := "/proc/sys/"+name, c.path(filepath.Base(name))
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		must(t, err)
		must(t, os.WriteFile(own, text, 0o644))
		must(t, unix.Mount(own, file, "", unix.MS_BIND, ""))
	}
	must(t, unix.Mount("tmpfs", "/var/log", "tmpfs", 0, "")) // links to pods' logs
}

// podKeys are the keys of tcpilot's part pods, with the API server and others.
func (c *cluster) podKeys(more string) string {
	return fmt.Sprintf("dir: DIR/pods, kubernetes: {kubeconfig: DIR/kubeconfig, node: %s}%s", c.name, more)
}

// A conditioned object is a node or a pod.
type conditioned struct {
	Status struct {
		Conditions        []kubeCondition
		PodIPs            []struct{ IP string }
		ContainerStatuses []struct {
			RestartCount int
			ContainerID  string
		}
	}
}

type kubeCondition struct{ Type, Status, Message, LastTransitionTime string }

// ready is the object's condition Ready.
func (o *conditioned) ready() kubeCondition {
	if i := slices.IndexFunc(o.Status.Conditions, func(c kubeCondition) bool { return c.Type == "Ready" }); i >= 0 {
		return o.Status.Conditions[i]
	}
	return kubeCondition{}
}

// get reads an object; an error says that there is none.
func (c *cluster) get(t *testing.T, path string) (o conditioned, err error) {
	t.Helper()
	status, answer := c.api.Do(t, "GET", path, "", "")
	if status != http.StatusOK {
		return o, fmt.Errorf("%s: %d: %s", path, status, answer)
	}
	return o, json.Unmarshal([]byte(answer), &o)
}

// expectNode waits until the node is ready, or until it is not because of what the message contains.
func (c *cluster) expectNode(t *testing.T, ready bool, message string) {
	t.Helper()
	within(t, 3*limit, fmt.Sprintf("the node's condition Ready is %v", ready), func() error {
		n, err := c.get(t, "/api/v1/nodes/"+c.name)
		if r := n.ready(); err == nil && (r.Status != map[bool]string{true: "True", false: "False"}[ready] || !strings.Contains(r.Message, message)) {
			err = fmt.Errorf("%+v", r)
		}
		return err
	})
}

// kubePod is a pod that the API server has, and the kubelet runs.
type kubePod struct {
	name      string
	addresses []string
	first     conditioned // when it had become ready
}

// pod describes a pod that runs the server.
func (c *cluster) pod(t *testing.T, name string, hostPort int, annotations map[string]string) string {
	t.Helper()
	notes, err := json.Marshal(annotations)
	must(t, err)
	port := `{"containerPort":80}`
	if hostPort > 0 {
		port = fmt.Sprintf(`{"containerPort":80,"hostPort":%d}`, hostPort)
	}
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"kubelet","annotations":%s},"spec":{"nodeName":%q,
		"automountServiceAccountToken":false,"dnsPolicy":"Default","terminationGracePeriodSeconds":1,
		"containers":[{"name":"server","image":"localhost/server:1","imagePullPolicy":"Never","ports":[%s],
			"readinessProbe":{"httpGet":{"path":"/","port":80},"periodSeconds":1},
			"livenessProbe":{"tcpSocket":{"port":80},"periodSeconds":1}}]}}`, name, notes, c.name, port)
}

// run has the kubelet run the server as a pod, and waits until it is ready.
func (c *cluster) run(t *testing.T, name string, hostPort int, annotations map[string]string) *kubePod {
	t.Helper()
	c.api.Must(t, "POST", namespace+"/pods", "application/json", c.pod(t, name, hostPort, annotations))
	return c.newPod(t, name)
}

// newPod waits until a pod is ready.
func (c *cluster) newPod(t *testing.T, name string) *kubePod {
	t.Helper()
	p := &kubePod{name: name}
	c.awaitPod(t, p)
	for _, a := range p.first.Status.PodIPs {
		p.addresses = append(p.addresses, a.IP)
	}
	return p
}

func (c *cluster) awaitPod(t *testing.T, p *kubePod) {
	t.Helper()
	within(t, 3*limit, p.name+" is ready", func() (err error) {
		if p.first, err = c.get(t, namespace+"/pods/"+p.name); err == nil && p.first.ready().Status != "True" {
			err = fmt.Errorf("%+v: %s", p.first.Status, c.events(t))
		}
		return err
	})
}

// annotate changes an annotation; "null" removes it.
func (c *cluster) annotate(t *testing.T, p *kubePod, key, value string) {
	t.Helper()
	if value != "null" {
		value = strconv.Quote(value)
	}
	c.api.Must(t, "PATCH", namespace+"/pods/"+p.name, "application/merge-patch+json", fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, key, value))
}

// events are the messages of what has happened to pods.
func (c *cluster) events(t *testing.T) string {
	t.Helper()
	var l struct {
		Items []struct{ Reason, Message string }
	}
	must(t, json.Unmarshal([]byte(c.api.Must(t, "GET", namespace+"/events", "", "")), &l))
	var b strings.Builder
	for _, e := range l.Items {
		fmt.Fprintln(&b, e.Reason, e.Message)
	}
	return b.String()
}

// expectReady fails unless a pod has been ready all the time since it first was, and no container was started again.
func (c *cluster) expectReady(t *testing.T, when string, pods ...*kubePod) {
	t.Helper()
	for _, p := range pods {
		now, err := c.get(t, namespace+"/pods/"+p.name)
		must(t, err)
		if now.ready() != p.first.ready() || !slices.Equal(now.Status.ContainerStatuses, p.first.Status.ContainerStatuses) {
			t.Errorf("%s, %s: %+v, and first %+v: %s", when, p.name, now.Status, p.first.Status, c.events(t))
		}
	}
}

// expectReadyAgain waits until pods are ready after a start of the kubelet, and fails if a container was started again. From then on, expectReady
// compares with that.
//
// Ready may have changed: before 1.35 a kubelet always reports a pod with a readiness probe as not ready until its first probe (worker.initialValue in
// pkg/kubelet/prober, kubernetes/kubernetes#100277), and since then if the container is younger than 10 s (kubeletRestartGracePeriod).
func (c *cluster) expectReadyAgain(t *testing.T, pods ...*kubePod) {
	t.Helper()
	for _, p := range pods {
		c.expectProbes(t, "after a start of the kubelet", p)
		before := p.first.Status.ContainerStatuses
		if c.awaitPod(t, p); !slices.Equal(p.first.Status.ContainerStatuses, before) {
			t.Errorf("%s: %+v, and before the kubelet was killed %+v: %s", p.name, p.first.Status, before, c.events(t))
		}
	}
}

// expectProbes waits until the kubelet has probed a pod twice more.
func (c *cluster) expectProbes(t *testing.T, when string, p *kubePod) {
	t.Helper()
	count := func() int {
		n, err := strconv.Atoi(fetch(t, c.host, p.addresses[0], "/probes"))
		must(t, err)
		return n
	}
	begin := count()
	within(t, 3*limit, when+", the kubelet probes "+p.name, func() error {
		if now := count(); now < begin+2 {
			return fmt.Errorf("%d times", now-begin)
		}
		return nil
	})
}

// remove deletes pods at the API server, and waits until the kubelet has ended them.
func (c *cluster) remove(t *testing.T, pods ...*kubePod) {
	t.Helper()
	var paths []string
	for _, p := range pods {
		paths = append(paths, namespace+"/pods/"+p.name)
	}
	c.removePaths(t, paths...)
}

func (c *cluster) removePaths(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		c.api.Do(t, "DELETE", path, "", "")
	}
	for _, path := range paths {
		c.expectNoPod(t, path)
	}
}

// expectNoPod waits until the API server has no such pod, because the kubelet has ended it.
func (c *cluster) expectNoPod(t *testing.T, path string) {
	t.Helper()
	within(t, 3*limit, path+" has ended", func() error {
		if status, answer := c.api.Do(t, "GET", path, "", ""); status != http.StatusNotFound {
			return fmt.Errorf("%d: %s", status, answer)
		}
		return nil
	})
}

// makeNamespace makes a namespace, and in it what the controller manager does.
func (c *cluster) makeNamespace(t *testing.T, name string) {
	t.Helper()
	path := "/api/v1/namespaces/" + name
	c.apply(t, path, fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, name))
	c.apply(t, path+"/serviceaccounts/default", `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}`)
	c.apply(t, path+"/configmaps/kube-root-ca.crt", fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"kube-root-ca.crt"},"data":{"ca.crt":%q}}`, c.authority(t)))
}

// apply makes an object or changes it, as 'kubectl apply --server-side' does.
func (c *cluster) apply(t *testing.T, path, object string) {
	t.Helper()
	c.api.Must(t, "PATCH", path+"?fieldManager=test&force=true&fieldValidation=Strict", "application/apply-patch+yaml", object)
}

// authority is the certificate of the authority of the API server.
func (c *cluster) authority(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(c.api.URL)
	must(t, err)
	conn, err := tls.Dial("tcp", u.Host, &tls.Config{InsecureSkipVerify: true})
	must(t, err)
	defer conn.Close()
	chain := conn.ConnectionState().PeerCertificates
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain[len(chain)-1].Raw}))
}

// setPodCIDRs does what the controller manager does for a new node.
func (c *cluster) setPodCIDRs(t *testing.T, networks ...string) {
	t.Helper()
	list, err := json.Marshal(networks)
	must(t, err)
	c.api.Must(t, "PATCH", "/api/v1/nodes/"+c.name, "application/merge-patch+json", fmt.Sprintf(`{"spec":{"podCIDR":%q,"podCIDRs":%s}}`, networks[0], list))
}

// within waits until f succeeds, which takes longer than eventually allows, or is a request of an API server.
func within(t *testing.T, limit time.Duration, what string, f func() error) {
	t.Helper()
	poll(t, limit, 200*time.Millisecond, what, f)
}
