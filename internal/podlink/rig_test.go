package podlink

import (
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// rig is two nodes with a wire between them; the test is in the first, whose programs are under test.
type rig struct {
	t         testing.TB
	node, far *testenv.Node
	a, b      *testenv.Pod // of the node
	c         *testenv.Pod // of the far one
	dir       string       // of pins
	links     *Links
}

func newRig(t testing.TB) *rig {
	t.Helper()
	needRoot(t)
	r := &rig{t: t, node: testenv.NewNode(t, 1), far: testenv.NewNode(t, 2)}
	r.a, r.b, r.c = r.node.AddPod(t), r.node.AddPod(t), r.far.AddPod(t)
	testenv.Wire(t, r.node, r.far)
	bpffs := t.TempDir()
	testenv.MountBPFFS(t, bpffs)
	r.dir = filepath.Join(bpffs, "pods")
	r.node.Enter(t)
	return r
}

// needRoot skips the test without root, and loads the kernel's connection tracking.
func needRoot(t testing.TB) {
	t.Helper()
	testenv.Root(t)
	_ = exec.Command("modprobe", "nf_conntrack").Run() // it may be built in
}

func (r *rig) open() {
	r.t.Helper()
	links, err := Open(r.dir, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = links.Close() })
	r.links = links
}

// record is what tcpilot-cni writes of a pod.
func record(t testing.TB, p *testenv.Pod) *pod.Pod {
	t.Helper()
	cookie, err := netns.Cookie(p.Path())
	if err != nil {
		t.Fatal(err)
	}
	return &pod.Pod{Container: p.Host, Interface: "eth0", NetNS: p.Path(), Cookie: cookie, Made: true, Link: pod.Link{
		Device: pod.Veth, Index: p.Index, HostIndex: p.HostIndex,
		Addresses: []netip.Prefix{netip.PrefixFrom(p.V4, 32), netip.PrefixFrom(p.V6, 128)},
	}}
}

// wanted is that everything is routed, to the far node's pods too.
func (r *rig) wanted() *Wanted {
	r.t.Helper()
	return &Wanted{
		Pods:    []Pod{{Pod: record(r.t, r.a), Route: true}, {Pod: record(r.t, r.b), Route: true}},
		Devices: []string{"wire"}, Networks: []netip.Prefix{r.far.V4, r.far.V6},
	}
}

// set puts what is wanted into force; all of it must be possible.
func (r *rig) set(w *Wanted) {
	r.t.Helper()
	missing, err := r.links.Set(w)
	if err != nil || len(missing.Pods)+len(missing.Routes)+len(missing.Devices) > 0 {
		r.t.Fatalf("%v, missing %+v", err, missing)
	}
}

// counts are the packets since the maps were made, by outcome.
func (r *rig) counts() map[string]uint64 {
	r.t.Helper()
	counts, err := r.links.Counters()
	if err != nil {
		r.t.Fatal(err)
	}
	byName := map[string]uint64{}
	for _, c := range counts {
		byName[c.Name] = c.Count
	}
	return byName
}

// grown are the counters that f made grow, and by how much, without those of neighbour discovery.
func (r *rig) grown(f func()) map[string]uint64 {
	r.t.Helper()
	before := r.settled()
	f()
	grown := map[string]uint64{}
	for name, n := range r.counts() {
		if n > before[name] && name != "link" && name != "protocol" {
			grown[name] = n - before[name]
		}
	}
	return grown
}

// settled waits until the last packets of an earlier connection are counted.
func (r *rig) settled() map[string]uint64 {
	r.t.Helper()
	n := r.counts()
	for range 100 {
		time.Sleep(20 * time.Millisecond)
		before := n
		if n = r.counts(); maps.Equal(n, before) {
			break
		}
	}
	return n
}

// serve handles one connection after the other until the listener is closed.
func serve(l net.Listener, each func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		each(c)
		_ = c.Close()
	}
}

// exchange sends so many bytes by TCP, has them sent back, and fails the test unless they arrive.
func exchange(t *testing.T, from, to *testenv.NS, address netip.Addr, bytes int) {
	t.Helper()
	at := netip.AddrPortFrom(address, 5001)
	exchangeAt(t, from, to, at, at, bytes)
}

// exchangeAt is exchange with a server that listens elsewhere than where the client connects to.
func exchangeAt(t *testing.T, from, to *testenv.NS, remote, local netip.AddrPort, bytes int) {
	t.Helper()
	l := to.Listen(t, "tcp", local.String())
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.CopyN(c, c, int64(bytes))
			_ = c.Close() // before the exchange is over
		}
		done <- err
	}()
	c := from.Dial(t, "tcp", remote.String())
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = c.Write(make([]byte, bytes)) }()
	if n, err := io.CopyN(io.Discard, c, int64(bytes)); err != nil {
		t.Errorf("%d of %d bytes came back from %s: %v", n, bytes, remote, err)
		return
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// forEach runs f as a subtest for each family.
func forEach(t *testing.T, f func(t *testing.T, address func(*testenv.Pod) netip.Addr)) {
	t.Helper()
	t.Run("IPv4", func(t *testing.T) { f(t, func(p *testenv.Pod) netip.Addr { return p.V4 }) })
	t.Run("IPv6", func(t *testing.T) { f(t, func(p *testenv.Pod) netip.Addr { return p.V6 }) })
}

// send sends one datagram.
func send(t *testing.T, from *testenv.NS, to netip.Addr) {
	t.Helper()
	c := from.Dial(t, "udp", netip.AddrPortFrom(to, 9).String())
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Error(err)
	}
}
