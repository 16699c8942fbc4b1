package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// full reports whether to use the connection lengths of the README's claims, instead of
// the short ones for CI.
func full() bool { return os.Getenv("TCPILOT_FULL") == "1" }

// port is where every remote's load server listens.
const port = 5201

// remote is a server behind the gateway, and the link from the gateway to it.
type remote struct {
	*topology.Remote
	agent *load.Agent
	way   *link.Direction // nil on a perfect wire
}

// world is one test's network: a client in a cgroup that tcpilot may be attached
// to, a client beside it that tcpilot never sees, one gateway, and remotes.
type world struct {
	net     *topology.Net
	star    *topology.Star
	cgroup  *topology.Cgroup // where tcpilot is attached
	client  *load.Agent      // in cgroup
	beside  *load.Agent      // not in cgroup: its connections are not tuned
	remotes []*remote
	back    *link.Direction // from the gateway to the client; nil on a perfect wire
}

// The wires of a world. On a veth pair without delay, whose RTT is some 50 us, the arms
// hardly differ at 2 % loss: measured, cubic 3.4, reno 3.3 and bbr 2.9 Gbit/s. With this
// rate and delay cubic has 21, reno 25 and bbr 165 Mbit/s, and CPU is never the limit.
const (
	rate  = 200e6 // bit/s towards each remote
	delay = 5 * time.Millisecond
)

// newWorld builds a network whose namespaces default to cubic. Its wires carry
// single segments, so that loss is per packet.
func newWorld(t testing.TB, names ...string) *world {
	t.Helper()
	w := newPlainWorld(t, names...)
	must(t, link.OffloadsOff(w.star.Access, w.star.Entry))
	// Acknowledgements get the delay.
	w.back = shape(t, w.star.Entry, w.star.Access, link.Spec{Delay: delay})
	for _, r := range w.remotes {
		must(t, link.OffloadsOff(r.Near, r.Far))
		r.way = shape(t, r.Near, r.Far, link.Spec{Rate: rate, Queue: link.Queue{Bytes: rate / 8 / 20}})
	}
	return w
}

// newNet is a network without hosts, which ends with the test.
func newNet(t testing.TB) *topology.Net {
	t.Helper()
	testenv.Root(t)
	n, err := topology.New()
	must(t, err)
	stop := testenv.CloseOnSignal(n)
	t.Cleanup(func() {
		stop()
		if err := n.Close(); err != nil {
			t.Errorf("close network: %v", err)
		}
	})
	return n
}

// newPlainWorld builds a network of perfect wires.
func newPlainWorld(t testing.TB, names ...string) *world {
	t.Helper()
	n := newNet(t)
	star, err := topology.NewStar(n, names...)
	must(t, err)
	w := &world{net: n, star: star}
	w.cgroup, err = n.Cgroup("tuned")
	must(t, err)
	other, err := n.Cgroup("beside")
	must(t, err)
	w.tune(t, w.star.Client)
	w.client = w.agent(t, w.star.Client, w.cgroup)
	w.beside = w.agent(t, w.star.Client, other)
	for _, r := range w.star.Remotes {
		w.addRemote(t, r)
	}
	return w
}

func (w *world) addRemote(t testing.TB, r *topology.Remote) {
	t.Helper()
	w.tune(t, r.Host)
	a := w.agent(t, r.Host, nil)
	_, err := a.Listen(t.Context(), load.ListenSpec{Address: fmt.Sprintf("[::]:%d", port)})
	must(t, err)
	w.remotes = append(w.remotes, &remote{Remote: r, agent: a})
}

// tune sets the sysctls that the tests depend on, with enough ports for many short
// connections.
func (w *world) tune(t testing.TB, h *topology.Host) {
	t.Helper()
	must(t, h.SetCongestion("cubic"))
	for key, value := range map[string]string{
		"net.ipv4.ip_local_port_range": "1024 65000",
		"net.ipv4.tcp_tw_reuse":        "1",
	} {
		must(t, h.SetSysctl(key, value))
	}
}

// shape shapes a direction until the test ends.
func shape(t testing.TB, from, to *topology.End, s link.Spec) *link.Direction {
	t.Helper()
	d, err := link.Shape(link.Ends{From: from, To: to}, s, link.Auto)
	must(t, err)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// reshape changes what a direction does.
func reshape(t testing.TB, d *link.Direction, change func(*link.Spec)) {
	t.Helper()
	s := d.Spec()
	change(&s)
	must(t, d.Set(s))
}

// agent starts a load agent, in a cgroup unless that is nil.
func (w *world) agent(t testing.TB, h *topology.Host, c *topology.Cgroup) *load.Agent {
	t.Helper()
	a, err := load.StartAgent(h, c)
	must(t, err)
	t.Cleanup(func() { a.Close() })
	return a
}

// setLoss sets the loss towards a remote.
func (w *world) setLoss(t testing.TB, r *remote, probability float64) {
	t.Helper()
	reshape(t, r.way, func(s *link.Spec) { s.Loss = probability })
}

// at is the address of a remote's load server.
func at(addr netip.Addr) string { return netip.AddrPortFrom(addr, port).String() }

// bulk makes one bulk connection and fails the test on an error.
func bulk(t testing.TB, a *load.Agent, s load.BulkSpec) load.BulkResult {
	t.Helper()
	r, err := a.Bulk(t.Context(), s)
	must(t, err)
	return r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
