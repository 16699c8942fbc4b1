package e2e

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/kernelcc"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
)

// With scope netns, what is learned of a pod's connections is not used for another pod's, also of the same remote. Without scope, it is.
func TestRootPodsLearnApart(t *testing.T) {
	t.Parallel()
	const slow, fast, way = 20e6, 100e6, 20 * time.Millisecond // bit/s of the pods' links
	n := newPodNode(t)
	pods, wires := []*podHost{n.pod, n.peer}, n.star.Wires
	inherited, err := kernelcc.Default()
	must(t, err)
	for _, one := range pods { // a namespace's own congestion control would be left alone
		must(t, one.SetCongestion(inherited))
	}
	for _, w := range wires[:2] {
		must(t, link.OffloadsOff(w.From, w.To))
	}
	shape(t, wires[0].From, wires[0].To, link.Spec{Rate: slow, Queue: link.Queue{Bytes: slow / 8 / 20}})
	shape(t, wires[0].To, wires[0].From, link.Spec{Delay: way})
	shape(t, wires[1].To, wires[1].From, link.Spec{Rate: fast, Queue: link.Queue{Bytes: fast / 8 / 20}})
	p := newTcpilot(t, n.world, settings{})
	configure := func(scope string) {
		t.Helper()
		p.configure(t, settings{holdOut: "0%", keys: fmt.Sprintf("congestion_controls: none\npods: {dir: %s/pods}\n", p.dir),
			rules: "  - {name: all, learn: {arms: [cubic, reno], scope: " + scope + "}}\n"})
	}
	configure("netns")
	p.start(t)
	for _, one := range pods {
		p.add(t, one, nil)
	}
	// learned makes connections of pods until so many paths to the network of far are known, with all that is compared.
	learned := func(want int, by ...*podHost) (paths []*engine.PathState) {
		t.Helper()
		eventually(t, time.Minute, fmt.Sprintf("%d paths are known", want), func() error {
			for _, one := range by {
				bulk(t, one.agent, load.BulkSpec{To: at(n.far.addr), Duration: 250 * time.Millisecond})
			}
			paths = nil
			for _, s := range ask[api.PathList](t, p, "paths").Paths {
				if prefix := netip.MustParsePrefix(s.Prefix); prefix.Bits() == 24 && prefix.Contains(n.far.addr) && scored(s) >= 4 && s.MinRTT != 0 && s.Rate != 0 {
					paths = append(paths, s)
				}
			}
			if len(paths) != want {
				return fmt.Errorf("%d paths", len(paths))
			}
			return nil
		})
		return paths
	}
	explained := func(name string) *api.Entry {
		t.Helper()
		return ask[api.Explanation](t, p, "explain", n.far.addr.String(), "--pod", "shop/"+name).Entry
	}
	isSlow := func(s *engine.PathState) bool {
		return s.MinRTT >= uint32(way.Microseconds()) && 8*float64(s.Rate) < (slow+fast)/2
	}

	byScope := map[uint64]*engine.PathState{}
	for _, s := range learned(2, pods...) {
		byScope[s.Scope] = s
	}
	for _, one := range ask[api.PodList](t, p, "pods").Pods {
		s, e := byScope[one.NetNS], explained(one.Name)
		if s == nil || e == nil || e.Scope != one.NetNS {
			t.Fatalf("pod %s: path %+v, explained by %+v", one.Name, s, e)
		}
		t.Logf("pod %s: %d samples, RTT %d us, %.1f Mbit/s", one.Name, s.Samples, s.MinRTT, 8*float64(s.Rate)/1e6)
		if isSlow(s) != (one.Name == n.pod.Name) {
			t.Errorf("pod %s: RTT %d us, rate %d bytes/s", one.Name, s.MinRTT, s.Rate)
		}
	}

	configure("shared")
	if _, err := p.run(t, "reload"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the paths of single pods are forgotten", func() error {
		for _, s := range ask[api.PathList](t, p, "paths").Paths {
			if s.Scope != 0 {
				return fmt.Errorf("%s of scope %d", s.Prefix, s.Scope)
			}
		}
		return nil
	})
	if s := learned(1, n.pod)[0]; !isSlow(s) {
		t.Errorf("shared, of the pod with the slow link: RTT %d us, rate %d bytes/s", s.MinRTT, s.Rate)
	}
	for _, one := range pods { // one of which has made no connection since
		if e := explained(one.Name); e == nil || e.Scope != 0 || !netip.MustParsePrefix(e.Prefix).Contains(n.far.addr) {
			t.Errorf("pod %s, shared: %+v", one.Name, e)
		}
	}
	eventually(t, time.Minute, "the other pod's connections count for the same path", func() error {
		if s := learned(1, n.peer)[0]; isSlow(s) {
			return fmt.Errorf("RTT %d us", s.MinRTT)
		}
		return nil
	})
}
