package e2e

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/scenario"
)

// network is a link whose type of network tcpilot is to find.
type network struct {
	name           string
	scenario, edge string // of a shipped scenario; empty is its own link
	of             string // case of the scenario; empty is the first one
	emulated       bool   // as its section for slow processors has it
	link           scenario.Link
	small          bool // only small requests use it
	seconds        time.Duration
	want           []string
	test           bool // part of the test; the others are only measured
}

// networks has a link of each shipped type, and others like them. A policer is found only if the rule adapts the pacing rate.
var networks = []network{
	{name: "datacentre", seconds: 3, scenario: "datacentre", edge: "bottleneck", want: []string{"datacentre"}, test: true},
	{name: "lan", seconds: 3, link: scenario.Link{Forward: link.Spec{Delay: delay / 10, Rate: rate, Queue: link.Queue{Bytes: 128e3}}, Backward: link.Spec{Delay: delay / 10}}, want: []string{"lan"}},
	{name: "wifi", seconds: 5, scenario: "wifi-like", edge: "bottleneck", emulated: true, want: []string{"wifi"}, test: true},
	{name: "cellular", seconds: 8, scenario: "cellular-like", edge: "bottleneck", want: []string{"cellular"}},
	{name: "satellite", seconds: 12, scenario: "satellite", edge: "bottleneck", want: []string{"satellite"}},
	{name: "bufferbloated", seconds: 5, scenario: "bufferbloat", edge: "bottleneck", want: []string{"bufferbloated"}, test: true},
	{name: "policer", seconds: 4, scenario: "policer", edge: "bottleneck", emulated: true, want: []string{"unknown", "policed"}},
	{name: "loss", seconds: 4, scenario: "loss", edge: "hop1", of: "1 % at 20 ms", emulated: true, want: []string{"unknown"}},
	{name: "long-fat", seconds: 4, scenario: "delay", edge: "hop1", of: "100 ms, limited", want: []string{"long-fat"}, test: true},
	{name: "small requests", seconds: 2, scenario: "bufferbloat", edge: "bottleneck", small: true, want: []string{"unknown"}},
}

// TestRootNetworkType: a host that serves files of 1 to 5 MB and answers small requests finds
// the type of the network to its clients.
func TestRootNetworkType(t *testing.T) {
	t.Parallel()
	for n, got := range findTypes(t, 4, func(n *network) bool { return n.test }) {
		t.Logf("%s: %s: %s", n.name, got.Type, got.Why)
		if !slices.Contains(n.want, got.Type) || got.AssumedFrom != "" {
			t.Errorf("%s: type %+v, want one of %v", n.name, got, n.want)
		}
	}
}

// TestMeasureNetworkType: the same for a link of each shipped type.
func TestMeasureNetworkType(t *testing.T) {
	testenv.Measure(t, func(t *testing.T, m *testenv.Measurement) {
		for n, got := range findTypes(t, 1, func(*network) bool { return true }) {
			m.Holds(n.name, strings.Join(n.want, " or "), slices.Contains(n.want, got.Type), got.Type)
		}
	})
}

// findTypes has traffic over each chosen link in turn, and yields the type that tcpilot finds. On a busy
// machine it may take more traffic than otherwise: up to the given number of rounds.
func findTypes(t *testing.T, rounds int, chosen func(*network) bool) iter.Seq2[*network, *engine.NetworkType] {
	var links []*network
	var names []string
	for i := range networks {
		if n := &networks[i]; chosen(n) {
			links = append(links, n)
			names = append(names, fmt.Sprintf("client%d", i))
		}
	}
	w := newPlainWorld(t, names...)
	must(t, link.OffloadsOff(w.star.Access, w.star.Entry))
	w.back = shape(t, w.star.Entry, w.star.Access, link.Spec{})
	_, err := w.client.Listen(t.Context(), load.ListenSpec{Address: fmt.Sprintf("[::]:%d", port)})
	must(t, err)
	p := startTcpilot(t, w, settings{rules: "  - {name: lab, match: {remote: [10.77.0.0/16]}, learn: {hold_out: 0}}\n"})
	return func(yield func(*network, *engine.NetworkType) bool) {
		for i, n := range links {
			r := w.remotes[i]
			must(t, link.OffloadsOff(r.Near, r.Far))
			r.way = shape(t, r.Near, r.Far, link.Spec{})
			found := func() *engine.NetworkType {
				e := ask[api.Explanation](t, p, "explain", r.Addr4.String(), "--incoming")
				if e.Network == nil {
					t.Fatalf("no type of network: %+v", e)
				}
				return e.Network
			}
			var got *engine.NetworkType
			for range rounds {
				w.serve(t, r, n.shipped(t), n.seconds*time.Second, n.small)
				got = found()
				for end := time.Now().Add(time.Second); !slices.Contains(n.want, got.Type) && time.Now().Before(end); got = found() {
					time.Sleep(100 * time.Millisecond) // the latest samples
				}
				if slices.Contains(n.want, got.Type) {
					break
				}
			}
			if !yield(n, got) {
				return
			}
		}
	}
}

// shipped is the link of the network.
func (n *network) shipped(t *testing.T) scenario.Link {
	t.Helper()
	if n.scenario == "" {
		return n.link
	}
	s, err := scenario.Load(n.scenario, scenario.Options{Emulated: n.emulated})
	must(t, err)
	i := max(0, slices.IndexFunc(s.Cases, func(c scenario.Case) bool { return c.Name == n.of }))
	l, ok := s.Cases[i].Links[n.edge]
	if !ok {
		t.Fatalf("scenario %s has no link %s", n.scenario, n.edge)
	}
	return l
}

// serve makes a remote the client of the world's tuned host for some seconds, over a link.
func (w *world) serve(t *testing.T, r *remote, l scenario.Link, during time.Duration, small bool) {
	t.Helper()
	must(t, w.back.Set(l.Backward))
	must(t, r.way.Set(l.Forward))
	ctx, cancel := context.WithTimeout(t.Context(), during)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() {
		begin := time.Now()
		for _, c := range l.Schedule {
			if !load.Pause(ctx, time.Until(begin.Add(c.At))) {
				return
			}
			if err := r.way.Set(c.Forward); err != nil {
				t.Error(err)
			}
		}
	})
	// What is still running at the end is aborted, like the connections of a client that leaves.
	flows := func(first uint64, concurrency int, gap time.Duration, sizes ...uint32) {
		s := load.FlowsSpec{To: at(w.star.Access.Addr4.Addr()), Account: first, Concurrency: concurrency, Gap: gap, Duration: during, Repeat: true}
		for _, size := range sizes {
			s.Flows = append(s.Flows, load.Flow{Size: size})
		}
		r.agent.Flows(ctx, s)
	}
	all.Go(func() { flows(1e6, 3, 40*time.Millisecond, 4e3, 1e3, 20e3) })
	if !small {
		all.Go(func() {
			flows(2e6, 1, time.Second, 3e5)
		})
		all.Go(func() {
			if load.Pause(ctx, time.Second) {
				flows(3e6, 2, 100*time.Millisecond, 1e6, 3e6, 2e6, 5e6)
			}
		})
	}
	all.Wait()
}
