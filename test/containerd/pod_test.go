package containerd

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podrecord"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// sandbox is a pod without containers.
type sandbox struct{ id, name string }

// config describes a pod of the namespace shop as the kubelet does.
func (n *node) config(name string, annotations map[string]string, ports ...*portMapping) *sandboxConfig {
	return &sandboxConfig{Metadata: &metadata{Name: name, UID: "uid-" + name, Namespace: "shop"}, LogDirectory: n.path("log"),
		Annotations: annotations, Ports: ports, Linux: &linuxConfig{CgroupParent: filepath.Join(n.cgroup, "pod"+name)}}
}

func (n *node) tryRun(ctx context.Context, c *sandboxConfig) (sandbox, error) {
	var id sandboxID
	err := n.call(ctx, "RuntimeService/RunPodSandbox", &runRequest{Config: c}, &id)
	return sandbox{id.ID, c.Metadata.Name}, err
}

func (n *node) runPod(t *testing.T, name string, annotations map[string]string, ports ...*portMapping) sandbox {
	t.Helper()
	s, err := n.tryRun(t.Context(), n.config(name, annotations, ports...))
	must(t, err)
	return s
}

// stop is what the kubelet does at a pod's end.
func (n *node) stop(ctx context.Context, id string) error {
	if err := n.call(ctx, "RuntimeService/StopPodSandbox", &sandboxID{ID: id}, &empty{}); err != nil {
		return err
	}
	return n.call(ctx, "RuntimeService/RemovePodSandbox", &sandboxID{ID: id}, &empty{})
}

// sandboxes are those that containerd knows.
func (n *node) sandboxes(t *testing.T) []*listed {
	t.Helper()
	var l listResponse
	must(t, n.call(t.Context(), "RuntimeService/ListPodSandbox", &empty{}, &l))
	return l.Items
}

// addresses are those of the pod, as containerd reports them to the kubelet.
func (n *node) addresses(t *testing.T, s sandbox) (all []string) {
	t.Helper()
	var r sandboxResponse
	must(t, n.call(t.Context(), "RuntimeService/PodSandboxStatus", &sandboxID{ID: s.id}, &r))
	if r.Status.State != 0 || r.Status.Network == nil {
		t.Fatalf("sandbox %s: %+v", s.name, r.Status)
	}
	all = append(all, r.Status.Network.IP)
	for _, a := range r.Status.Network.More {
		all = append(all, a.IP)
	}
	return all
}

// record is what tcpilot-cni has recorded of a pod.
func (n *node) record(t *testing.T, s sandbox) pod.Pod {
	t.Helper()
	p, err := podrecord.Dir(n.records).Get(pod.Key{Container: s.id, Interface: "eth0"})
	must(t, err)
	return p
}

// netns is the network namespace of a pod.
func (n *node) netns(t *testing.T, s sandbox) *testenv.NS {
	t.Helper()
	return testenv.OpenNetNS(t, n.record(t, s).NetNS)
}

// atOnce calls f for 0 to count-1, at most 8 at a time.
func atOnce(count int, f func(i int)) {
	var group sync.WaitGroup
	free := make(chan struct{}, 8)
	for i := range count {
		free <- struct{}{}
		group.Go(func() { f(i); <-free })
	}
	group.Wait()
}

// control is the congestion control of a new connection from one namespace to an address in another one.
func control(t *testing.T, from, to *testenv.NS, address string) string {
	t.Helper()
	l := to.Listen(t, "tcp", netip.AddrPortFrom(netip.MustParseAddr(address), 0).String())
	defer l.Close()
	c := dial(t, from, l)
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	must(t, err)
	var name string
	must(t, raw.Control(func(fd uintptr) { name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION) }))
	must(t, err)
	return strings.TrimRight(name, "\x00")
}

// dial connects from a namespace to a listener in another one.
func dial(t *testing.T, from *testenv.NS, to net.Listener) (c net.Conn) {
	t.Helper()
	var err error
	from.Do(t, func() { c, err = net.DialTimeout("tcp", to.Addr().String(), limit) })
	must(t, err)
	return c
}

// reaches fails unless a line goes to the address and back.
func reaches(t *testing.T, from, to *testenv.NS, address string) netip.Addr {
	t.Helper()
	return from.Speak(t, to, netip.AddrPortFrom(netip.MustParseAddr(address), 0).String(), "", limit)
}
