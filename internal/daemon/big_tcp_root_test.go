package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/bigtcp"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/poddevice"
	"github.com/tcpilot/tcpilot/internal/rtnetlink"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// bigPlace is a routedPlace with BIG TCP on, and what its devices had before.
type bigPlace struct {
	*routedPlace
	before map[string]bigtcp.Values
}

func newBigPlace(t *testing.T) *bigPlace {
	t.Helper()
	testenv.Root(t)
	_ = exec.Command("modprobe", "tun").Run() // it may be built in
	if err := bigtcp.Try(); errors.Is(err, bigtcp.ErrIgnored) {
		testenv.Missing(t, err.Error())
	}
	return makeBigPlace(t)
}

func makeBigPlace(t *testing.T) *bigPlace {
	t.Helper()
	p := &bigPlace{routedPlace: newRoutedPlace(t)}
	p.put(t, p.a, "a", nil)
	p.put(t, p.b, "b", map[string]string{bigTCPAnnotation: "off"})
	p.big(t, "big_tcp: on, devices: [wire]")
	// Values that no device begins with, so that what comes back is not what the kernel would have chosen.
	p.node.IP(t, "link set wire gso_max_size 61000\nlink set "+p.a.Host+" gro_max_size 62000")
	p.a.IP(t, "link set eth0 gso_max_size 60000")
	p.before = p.sizes(t)
	return p
}

// big writes a configuration.
func (p *bigPlace) big(t *testing.T, pods string) {
	t.Helper()
	p.rules(t, fmt.Sprintf("pods: {dir: %s, %s}\nrules: [{name: all, leave: true}]", p.path("pods"), pods))
}

func sizesOf(t *testing.T, ns *testenv.NS, device string) (v bigtcp.Values) {
	t.Helper()
	ns.Do(t, func() {
		d, err := rtnetlink.LinkByName(device)
		if err == nil {
			_, v, err = bigtcp.Read(d.Index)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	return v
}

// sizes are those of all devices, by what they are.
func (p *bigPlace) sizes(t *testing.T) map[string]bigtcp.Values {
	t.Helper()
	return map[string]bigtcp.Values{
		"wire": sizesOf(t, p.node.NS, "wire"), "a": sizesOf(t, p.node.NS, p.a.Host), "b": sizesOf(t, p.node.NS, p.b.Host),
		"in a": sizesOf(t, p.a.NS, "eth0"), "in b": sizesOf(t, p.b.NS, "eth0"),
	}
}

var raised = bigtcp.Values{Sizes: rtnetlink.Sizes{GSO: bigtcp.Size, GRO: bigtcp.Size, GSO4: bigtcp.Size, GRO4: bigtcp.Size}, MTU6: 1500}

// raisedOf is what a device has then, by what it is. Pods leave room for the header that the kernel counts, and what
// arrives from other hosts is not made larger.
func (p *bigPlace) raisedOf(what string) bigtcp.Values {
	v := raised
	switch what {
	case "wire":
		v.GRO = p.before["wire"].GRO
	case "in a":
		v.MTU6 = 1492
	}
	return v
}

// have fails the test unless the path of pod a is raised, or all devices are as before.
func (p *bigPlace) have(t *testing.T, big bool, when string) {
	t.Helper()
	for what, now := range p.sizes(t) {
		want := p.before[what]
		if big && what != "b" && what != "in b" {
			want = p.raisedOf(what)
		}
		if now != want {
			t.Errorf("%s: device %s has %+v, want %+v", when, what, now, want)
		}
	}
	if _, err := os.Stat(p.path("state", "big-tcp.json")); (err == nil) != big {
		t.Errorf("%s: journal: %v", when, err)
	}
}

func podBig(t *testing.T, c *api.Client, pod string) api.PodBigTCP {
	t.Helper()
	l, err := c.Pods(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range l.Pods {
		if p.Name == pod && p.BigTCP != nil {
			return *p.BigTCP
		}
	}
	return api.PodBigTCP{Why: "not listed"}
}

// bulk sends bytes over TCP one way, and checks them.
func bulk(t *testing.T, from, to *testenv.NS, address netip.Addr) {
	t.Helper()
	l := to.Listen(t, "tcp", netip.AddrPortFrom(address, 0).String())
	defer l.Close()
	data := make([]byte, 8<<20)
	for i := range data {
		data[i] = byte(i>>16) ^ byte(i)
	}
	c := from.Dial(t, "tcp", l.Addr().String())
	go func() {
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = c.Write(data)
		c.Close()
	}()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_ = s.SetDeadline(time.Now().Add(20 * time.Second))
	if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, data) {
		t.Errorf("to %s: %d of %d bytes, %v", address, len(got), len(data), err)
	}
}

// Packets above 64 KB of both families flow, on the path of pods that have them only, and everything that
// was changed for them comes back exactly, whatever becomes of the daemon.
func TestRootBigTCP(t *testing.T) {
	p := newBigPlace(t)
	d := p.spawn(t, p.node.NS)
	p.have(t, true, "at first")
	if a, b := podBig(t, d.Client, "a"), podBig(t, d.Client, "b"); !a.Active || a.Size != bigtcp.Size || b.Active || b.Why != "annotation "+bigTCPAnnotation {
		t.Errorf("a %+v, b %+v\n%s", a, b, d.log)
	}
	for _, address := range []netip.Addr{p.c.V4, p.c.V6} {
		before, sent := podBig(t, d.Client, "a").Sent, uint64(0)
		for range 20 { // how much is sent at once depends on the window, and so on the machine
			bulk(t, p.a.NS, p.c.NS, address)
			if sent = podBig(t, d.Client, "a").Sent - before; sent > 0 {
				break
			}
		}
		if sent == 0 {
			t.Errorf("to %s: no packets above 64 KB", address)
		}
	}
	for _, address := range []netip.Addr{p.b.V4, p.b.V6} {
		bulk(t, p.a.NS, p.b.NS, address)
	}
	for name, ns := range map[string]*testenv.NS{"node": p.node.NS, "far": p.far.NS} {
		if n := ns.Run(t, "sh", "-c", "awk '/Ip6InTooBigErrors/ {print $2}' /proc/thread-self/net/snmp6"); strings.TrimSpace(n) != "0" {
			t.Errorf("%s refused to forward %s packets above 64 KB", name, n)
		}
	}
	for range 2 {
		d.kill()
		p.have(t, true, "killed")
		bulk(t, p.a.NS, p.c.NS, p.c.V6)
		d = p.spawn(t, p.node.NS)
		p.have(t, true, "with a new daemon")
	}
	f := startFlow(t, p.a.NS, p.c.NS, p.c.V4)
	if err := d.DetachPods(ctx); err != nil {
		t.Fatal(err)
	}
	p.have(t, false, "detached")
	f.goesOn(t, "detached")
	if _, err := d.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	p.have(t, true, "reloaded")
	p.big(t, "big_tcp: off")
	if _, err := d.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	p.have(t, false, "switched off")
	p.big(t, "big_tcp: on, devices: [wire]")
	if _, err := d.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	p.have(t, true, "switched on")
	d.kill()
	p.node.Do(t, func() {
		undone, err := DetachPods(p.config)
		if err != nil || !strings.Contains(strings.Join(undone, ";"), "sizes of packets of device eth0 in network namespace "+p.a.Path()) {
			t.Errorf("undone %q, %v", undone, err)
		}
	})
	p.have(t, false, "detached without a daemon")
	f.goesOn(t, "detached without a daemon")
	f.end(t)
	d = p.spawn(t, p.node.NS)
	p.have(t, true, "started again")
	if err := d.Detach(ctx); err != nil {
		t.Fatal(err)
	}
	<-d.ended
	p.have(t, false, "ended")
}

// A kernel that accepts the values of IPv4 and ignores them (6.1) is found out before anything is changed.
func TestRootBigTCPAsKernelCan(t *testing.T) {
	testenv.Root(t)
	p, can := makeBigPlace(t), bigtcp.Try()
	d := p.spawn(t, p.node.NS)
	p.have(t, can == nil, "at first")
	s, err := d.Status(ctx)
	if err != nil || hasFeature(s, featureBigTCP) != (can == nil) || can != nil && !hasInactive(s, featureBigTCP, can.Error()) {
		t.Errorf("%v: %+v, %v", can, s.Features, err)
	}
	if b := podBig(t, d.Client, "a"); b.Active != (can == nil) || can != nil && !strings.Contains(b.Why, can.Error()) {
		t.Errorf("%v: %+v", can, b)
	}
}

// The same sizes are set on pairs of each kind of device that the kernel has; netkit is tried under other kernels
// (test/vm).
func TestRootBigTCPDevices(t *testing.T) {
	for _, s := range poddevice.Try() {
		if s.Err != nil {
			t.Logf("not with %s: %v", s.Device, s.Err)
			continue
		}
		t.Run(string(s.Device), func(t *testing.T) {
			p := newBigPlace(t)
			in := p.b
			if s.Device == pod.Netkit {
				in = p.node.AddNetkitPod(t)
				p.put(t, in, "n", nil)
			}
			p.put(t, p.b, "b", nil)
			host, inside := sizesOf(t, p.node.NS, in.Host), sizesOf(t, in.NS, "eth0")
			d := p.spawn(t, p.node.NS)
			small := raised
			small.MTU6 = 1492
			if h, i := sizesOf(t, p.node.NS, in.Host), sizesOf(t, in.NS, "eth0"); h != raised || i != small {
				t.Errorf("host's end %+v, pod's %+v\n%s", h, i, d.log)
			}
			name := map[bool]string{true: "n", false: "b"}[s.Device == pod.Netkit]
			for _, address := range []netip.Addr{p.c.V4, p.c.V6} {
				before, sent := podBig(t, d.Client, name).Sent, uint64(0)
				for range 20 {
					bulk(t, in.NS, p.c.NS, address)
					if sent = podBig(t, d.Client, name).Sent - before; sent > 0 {
						break
					}
				}
				if sent == 0 {
					t.Errorf("to %s: no packets above 64 KB: %+v", address, podBig(t, d.Client, name))
				}
			}
			if err := d.Detach(ctx); err != nil {
				t.Fatal(err)
			}
			<-d.ended
			if h, i := sizesOf(t, p.node.NS, in.Host), sizesOf(t, in.NS, "eth0"); h != host || i != inside {
				t.Errorf("after the end: host's end %+v, want %+v; pod's %+v, want %+v", h, host, i, inside)
			}
		})
	}
}

// After a daemon is killed between the write of its journal and the change, or between two changes, the
// next one restores the old values.
func TestRootBigTCPCrash(t *testing.T) {
	p := newBigPlace(t)
	d := p.spawn(t, p.node.NS)
	d.kill()
	set := func(ns *testenv.NS, index int, s bigtcp.Values) {
		t.Helper()
		ns.Do(t, func() {
			if err := bigtcp.Set(index, s); err != nil {
				t.Fatal(err)
			}
		})
	}
	set(p.node.NS, p.a.HostIndex, p.before["a"]) // as if only the journal were written
	d = p.spawn(t, p.node.NS)
	p.have(t, true, "only in the journal")
	d.kill()
	other := bigtcp.Values{Sizes: rtnetlink.Sizes{GSO: 100000, GRO: bigtcp.Size, GSO4: 120000, GRO4: bigtcp.Size}, MTU6: 1492}
	set(p.a.NS, p.a.Index, other) // by somebody else
	d = p.spawn(t, p.node.NS)
	if b := podBig(t, d.Client, "a"); b.Active || !strings.Contains(b.Why, "somebody has changed sizes of packets of device eth0") {
		t.Errorf("%+v", b)
	}
	want := other // theirs stay, and the rest comes back
	want.GRO, want.GRO4, want.MTU6 = p.before["in a"].GRO, p.before["in a"].GRO4, p.before["in a"].MTU6
	if now := p.sizes(t); now["in a"] != want || now["a"] != p.before["a"] {
		t.Errorf("changed by somebody else: %+v", now)
	}
	if _, err := d.SyncPods(ctx); err != nil {
		t.Fatal(err)
	}
	if now := p.sizes(t); now["in a"] != want || now["a"] != p.before["a"] {
		t.Errorf("after another look: %+v", now)
	}
	if err := d.Detach(ctx); err != nil {
		t.Fatal(err)
	}
	<-d.ended
	set(p.a.NS, p.a.Index, p.before["in a"])
	p.have(t, false, "ended")

	// The record, the pod's device and the daemon go at one time.
	d = p.spawn(t, p.node.NS)
	d.kill()
	p.node.IP(t, "link del "+p.a.Host)
	p.before["a"], p.before["in a"] = bigtcp.Values{}, bigtcp.Values{}
	d = p.spawn(t, p.node.NS)
	if now := sizesOf(t, p.node.NS, "wire"); now != p.raisedOf("wire") {
		t.Errorf("without the pod: %+v", now)
	}
	if err := d.Detach(ctx); err != nil {
		t.Fatal(err)
	}
	<-d.ended
	if now := sizesOf(t, p.node.NS, "wire"); now != p.before["wire"] {
		t.Errorf("after the pod's end: %+v, want %+v", now, p.before["wire"])
	}
}

// If somebody changes the MTU of a pod, it loses the room for the header that the kernel counts. So the pod's packets get their sizes of before.
func TestRootBigTCPOtherMTU(t *testing.T) {
	p := newBigPlace(t)
	d := p.spawn(t, p.node.NS)
	d.kill() // the next one looks at once
	p.a.IP(t, "link set eth0 mtu 1400\nlink set eth0 mtu 1500")
	d = p.spawn(t, p.node.NS)
	if b := podBig(t, d.Client, "a"); b.Active || !strings.Contains(b.Why, "somebody has changed sizes of packets of device eth0") {
		t.Errorf("%+v", b)
	}
	for what, now := range p.sizes(t) {
		if want := p.before[what]; what != "wire" && now != want {
			t.Errorf("device %s has %+v, want %+v", what, now, want)
		}
	}
	if err := d.Detach(ctx); err != nil {
		t.Fatal(err)
	}
	<-d.ended
	p.have(t, false, "ended")
}

// If a device of the path cannot have packets above 64 KB, nothing is changed, status says why, and
// the values from before an earlier change are restored.
func TestRootBigTCPRefused(t *testing.T) {
	p := newBigPlace(t)
	d := p.spawn(t, p.node.NS)
	p.have(t, true, "at first")
	refused := func(when, why string) {
		t.Helper()
		if _, err := d.SyncPods(ctx); err != nil {
			t.Fatal(err)
		}
		s, err := d.Status(ctx)
		if err != nil || !hasInactive(s, featureBigTCP, why) {
			t.Errorf("%s: %+v, %v", when, s.Features, err)
		}
		if b := podBig(t, d.Client, "a"); b.Active || !strings.Contains(b.Why, why) {
			t.Errorf("%s: %+v", when, b)
		}
		p.have(t, false, when)
	}
	again := func(when string) {
		t.Helper()
		if _, err := d.SyncPods(ctx); err != nil {
			t.Fatal(err)
		}
		p.have(t, true, when)
	}
	p.node.IP(t, "link add tunnel0 type vxlan id 5 dstport 4789\nlink set tunnel0 up\nroute add default dev tunnel0")
	refused("a tunnel", "device tunnel0 of the route to 192.0.2.1: it is a tunnel (vxlan)")
	p.node.IP(t, "link del tunnel0")
	again("without the tunnel")
	if out := p.node.Run(t, "sh", "-c", "ip xfrm policy add src 10.0.0.0/8 dst 11.0.0.0/8 dir fwd tmpl src 10.0.0.1 dst 11.0.0.1 proto esp mode tunnel || echo none"); !strings.Contains(out, "none") {
		refused("IPsec", "the host has policies of IPsec")
		p.node.Run(t, "ip", "xfrm", "policy", "flush")
		again("without IPsec")
	}
	p.big(t, "big_tcp: on, devices: [wire, small0]")
	p.node.IP(t, "tuntap add small0 mode tap")
	if _, err := d.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	refused("a device without support", "device small0: its driver does not support packets above 64 KB")
	p.node.IP(t, "link del small0\nlink add br0 type bridge\nlink set "+p.a.Host+" master br0")
	if _, err := d.SyncPods(ctx); err != nil {
		t.Fatal(err)
	}
	if b := podBig(t, d.Client, "a"); b.Active || !strings.Contains(b.Why, "belongs to br0, of the kind bridge") {
		t.Errorf("%+v", b)
	}
	p.node.IP(t, "link del br0")
	again("without the bridge")
	p.put(t, p.a, "a", map[string]string{bigTCPAnnotation: "maybe"})
	if _, err := d.SyncPods(ctx); err != nil {
		t.Fatal(err)
	}
	if b := podBig(t, d.Client, "a"); b.Active || !strings.Contains(b.Why, `"maybe" is neither on nor off`) {
		t.Errorf("%+v", b)
	}
	if now := p.sizes(t); now["in a"] != p.before["in a"] || now["a"] != p.before["a"] {
		t.Errorf("not asked for any more: %+v", now)
	}
}
