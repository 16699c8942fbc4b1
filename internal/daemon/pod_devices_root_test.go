package daemon

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podlink"
	"github.com/tcpilot/tcpilot/internal/rtnetlink"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// routedPlace is a node with two pods, and another node with one; daemons run in the first.
type routedPlace struct {
	*place
	node, far *testenv.Node
	a, b, c   *testenv.Pod
}

func newRoutedPlace(t *testing.T) *routedPlace {
	t.Helper()
	p := &routedPlace{place: newPlace(t), node: testenv.NewNode(t, 1), far: testenv.NewNode(t, 2)}
	p.a, p.b, p.c = p.node.AddPod(t), p.node.AddPod(t), p.far.AddPod(t)
	testenv.Wire(t, p.node, p.far)
	_ = exec.Command("modprobe", "nf_conntrack").Run() // it may be built in
	p.bpffs = p.path("bpf")
	if err := os.Mkdir(p.bpffs, 0o700); err != nil {
		t.Fatal(err)
	}
	testenv.MountBPFFS(t, p.bpffs)
	p.routing(t, "on")
	return p
}

// routing writes a configuration.
func (p *routedPlace) routing(t *testing.T, value string) {
	t.Helper()
	p.rules(t, fmt.Sprintf("pods: {dir: %s, host_routing: %s, devices: [wire], networks: [%s, %q]}\nrules: [{name: all, leave: true}]",
		p.path("pods"), value, p.far.V4, p.far.V6))
}

// put writes the record of a pod.
func (p *routedPlace) put(t *testing.T, in *testenv.Pod, name string, annotations map[string]string) (file string) {
	t.Helper()
	cookie, err := netns.Cookie(in.Path())
	if err != nil {
		t.Fatal(err)
	}
	return putRecord(t, p.path("pods"), &pod.Pod{Container: name, Namespace: "shop", Name: name, NetNS: in.Path(), Cookie: cookie, Annotations: annotations, Link: pod.Link{
		Device: pod.Veth, Index: in.Index, HostIndex: in.HostIndex,
		Addresses: []netip.Prefix{netip.PrefixFrom(in.V4, 32), netip.PrefixFrom(in.V6, 128)},
	}})
}

// attached is how many programs are at the device of pod a. Without any, no qdisc for filters may be there.
func (p *routedPlace) attached(t *testing.T) int { t.Helper(); return p.attachedTo(t, p.a) }

func (p *routedPlace) attachedTo(t *testing.T, in *testenv.Pod) (n int) {
	t.Helper()
	p.node.Do(t, func() {
		for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			n += len(testenv.ClsPrograms(t, in.HostIndex, at))
		}
		if kind, err := rtnetlink.ClsactOf(in.HostIndex); err != nil || n == 0 && kind != "" {
			t.Errorf("no program, and the qdisc %q, %v", kind, err)
		}
	})
	return n
}

func packets(t *testing.T, c *api.Client, fate string) uint64 {
	t.Helper()
	l, err := c.Pods(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range l.Packets {
		if p.Fate == fate {
			return p.Packets
		}
	}
	return 0
}

// flow is a connection on which one end sends requests, and gets the answers, until it is ended.
type flow struct {
	done  chan error
	stop  atomic.Bool
	turns atomic.Uint64
}

func startFlow(t *testing.T, from, to *testenv.NS, address netip.Addr) *flow {
	t.Helper()
	l := to.Listen(t, "tcp", netip.AddrPortFrom(address, 5001).String())
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.Copy(c, c)
			c.Close()
		}
	}()
	c := from.Dial(t, "tcp", l.Addr().String())
	f := &flow{done: make(chan error, 1)}
	go func() { f.done <- f.run(c) }()
	return f
}

func (f *flow) run(c net.Conn) error {
	defer c.Close()
	request := make([]byte, 20000)
	for !f.stop.Load() {
		if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return err
		}
		if _, err := c.Write(request); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, request); err != nil {
			return err
		}
		f.turns.Add(1)
	}
	return nil
}

// goesOn waits for some turns more.
func (f *flow) goesOn(t *testing.T, when string) {
	t.Helper()
	for want := f.turns.Load() + 100; f.turns.Load() < want; time.Sleep(time.Millisecond) {
		select {
		case err := <-f.done:
			f.done <- err
			t.Fatalf("%s: the connection ended: %v", when, err)
		default:
		}
	}
}

func (f *flow) end(t *testing.T) {
	t.Helper()
	f.stop.Store(true)
	if err := <-f.done; err != nil {
		t.Errorf("connection: %v", err)
	}
}

// A connection of a pod outlives the daemon's death and its return, and every change between
// programs and the host's stack.
func TestRootHostRouting(t *testing.T) {
	p := newRoutedPlace(t)
	p.put(t, p.a, "a", nil)
	p.put(t, p.b, "b", map[string]string{routingAnnotation: "off"})
	d := p.spawn(t, p.node.NS)
	l, err := d.Pods(ctx)
	if err != nil || len(l.Pods) != 2 || l.Pods[0].Routing == nil || !l.Pods[0].Routing.Active || l.Pods[1].Routing == nil ||
		l.Pods[1].Routing.Active || l.Pods[1].Routing.Why != "annotation "+routingAnnotation {
		t.Fatalf("%+v, %v\n%s", l, err, d.log)
	}
	if p.attached(t) != 2 {
		t.Errorf("%d programs at the pod's device", p.attached(t))
	}
	s, err := d.Status(ctx)
	if want := (api.Feature{Name: featureRouting, Wanted: true, Active: true, Why: podlink.WithoutTCX()}); err != nil || !slices.Contains(s.Features, want) {
		t.Errorf("features %+v, %v, want %+v", s.Features, err, want)
	}
	f := startFlow(t, p.a.NS, p.c.NS, p.c.V4)
	back := startFlow(t, p.c.NS, p.a.NS, p.a.V6)
	both := func(when string) { t.Helper(); f.goesOn(t, when); back.goesOn(t, when) }
	both("at first")
	before := packets(t, d.Client, "pod-to-wire")
	if before < 100 || packets(t, d.Client, "wire-to-pod") < 100 {
		t.Errorf("%d packets routed to the wire, %d from it", before, packets(t, d.Client, "wire-to-pod"))
	}
	for range 3 {
		d.kill()
		both("without a daemon")
		d = p.spawn(t, p.node.NS)
		both("with a new daemon")
		if p.attached(t) != 2 {
			t.Errorf("%d programs at the pod's device after a restart", p.attached(t))
		}
	}
	routed := packets(t, d.Client, "pod-to-wire")
	if routed < before+600 { // 100 turns each time, which are a packet at least
		t.Errorf("%d packets were routed before the daemon was killed, %d now", before, routed)
	}

	if err := d.DetachPods(ctx); err != nil {
		t.Fatal(err)
	}
	both("without programs")
	s, err = d.Status(ctx)
	if err != nil || !hasInactive(s, featureRouting, "detached on request") || p.attached(t) != 0 {
		t.Errorf("detached: %+v, %v, %d programs", s.Features, err, p.attached(t))
	}
	if _, err := d.SyncPods(ctx); err != nil || p.attached(t) != 0 {
		t.Errorf("%d programs came back, %v", p.attached(t), err)
	}
	if _, err := d.Reload(ctx); err != nil || p.attached(t) != 2 {
		t.Errorf("%d programs after a reload, %v", p.attached(t), err)
	}
	both("with programs again")
	if packets(t, d.Client, "pod-to-wire") < 100 {
		t.Error("not routed after a reload")
	}
	p.routing(t, "off")
	if _, err := d.Reload(ctx); err != nil || p.attached(t) != 0 {
		t.Errorf("%d programs after it was switched off, %v", p.attached(t), err)
	}
	both("switched off")
	p.put(t, p.b, "b", map[string]string{pod.IngressAnnotation: "1G"})
	if _, err := d.SyncPods(ctx); err != nil || p.attached(t) != 0 || p.attachedTo(t, p.b) != 2 {
		t.Errorf("%d programs at a pod without a limit, %d at one with a limit, %v", p.attached(t), p.attachedTo(t, p.b), err)
	}
	p.put(t, p.b, "b", map[string]string{routingAnnotation: "off"})
	p.routing(t, "on")
	if _, err := d.Reload(ctx); err != nil || p.attached(t) != 2 {
		t.Errorf("%d programs after it was switched on, %v", p.attached(t), err)
	}
	d.kill()
	p.node.Do(t, func() {
		undone, err := DetachPods(p.config)
		if err != nil || len(undone) != 1 {
			t.Errorf("undone %q, %v", undone, err)
		}
	})
	if p.attached(t) != 0 {
		t.Errorf("%d programs without a daemon after detaching", p.attached(t))
	}
	both("detached without a daemon")
	f.end(t)
	back.end(t)
}

func hasInactive(s api.Status, feature, why string) bool {
	for _, f := range s.Features {
		if f.Name == feature && f.Wanted && !f.Active && strings.Contains(f.Why, why) {
			return true
		}
	}
	return false
}

// Pods and devices without host routing are reported with the reason, and the others have it.
func TestRootHostRoutingPartly(t *testing.T) {
	p := newRoutedPlace(t)
	p.node.IP(t, "link set wire down\nlink set wire name cable")
	file := p.put(t, p.a, "a", nil)
	p.put(t, p.b, "b", map[string]string{routingAnnotation: "never"})
	d := p.spawn(t, p.node.NS)
	s, err := d.Status(ctx)
	if err != nil || !hasInactive(s, featureRouting, "packets that arrive at device wire: there is no device wire") {
		t.Errorf("%+v, %v", s.Features, err)
	}
	l, err := d.Pods(ctx)
	if err != nil || len(l.Pods) != 2 || !l.Pods[0].Routing.Active || l.Pods[1].Routing.Active || !strings.Contains(l.Pods[1].Routing.Why, `"never" is neither on nor off`) {
		t.Errorf("%+v, %v", l, err)
	}
	p.node.IP(t, "link del "+p.b.Host)
	p.put(t, p.b, "b", nil)
	if _, err := d.SyncPods(ctx); err != nil {
		t.Fatal(err)
	}
	if l, err = d.Pods(ctx); err != nil || l.Pods[1].Routing.Active || !strings.Contains(l.Pods[1].Routing.Why, "no such device") {
		t.Errorf("%+v, %v", l, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := d.SyncPods(ctx); err != nil || p.attached(t) != 0 {
		t.Errorf("%d programs at the device of a pod that is gone, %v", p.attached(t), err)
	}
}

// tcpilot may start before what loads the kernel's connection tracking. Packets are routed once it is there, or, if it has
// come in another way, when the configuration is read again; until then the programs that cannot route only limit bandwidth.
func TestRootRoutingBeginsWithConnectionTracking(t *testing.T) {
	p := newRoutedPlace(t)
	p.put(t, p.a, "a", map[string]string{pod.EgressAnnotation: "1G"})
	cfg, _, err := loadConfig(p.config)
	if err != nil {
		t.Fatal(err)
	}
	p.node.Do(t, func() {
		d, log := podDaemon(cfg.Pods.Dir, cfg.Rules...)
		d.bpffs, d.bigTCP = p.bpffs, newBigTCP(cfg, d.log)
		d.cfg.Store(cfg)
		d.readPods(d.controls.usable)
		without := func(conntrack bool) {
			d.followPodDevices()
			d.podDevices.noRouting, d.podDevices.conntrack = errors.New("no connection tracking"), conntrack
			d.followPodDevices()
		}
		wire, err := net.InterfaceByName("wire")
		if err != nil {
			t.Fatal(err)
		}
		routes := func() bool {
			return len(testenv.ClsPrograms(t, wire.Index, ebpf.AttachTCXIngress)) > 0 && d.podDevices.view().failed == nil
		}
		defer func() {
			if err := d.closePodDevices(false); err != nil {
				t.Error(err)
			}
		}()

		without(true)
		if routes() {
			t.Error("programs that cannot route are said to route")
		}
		could := d.podDevices.links
		d.reloadPodDevices()
		if !routes() || d.podDevices.links == could {
			t.Errorf("after a reload: %+v, the same programs: %v", d.podDevices.view(), d.podDevices.links == could)
		}
		without(false) // and the module is there
		if !routes() || !strings.Contains(log.String(), "has connection tracking now") {
			t.Errorf("once connection tracking is there: %+v\n%s", d.podDevices.view(), log)
		}
	})
	if p.attached(t) != 0 {
		t.Errorf("%d programs left", p.attached(t))
	}
}
